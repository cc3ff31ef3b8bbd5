"""Pseudogradients of any step function: its nearest steps by search, and the maths of the piecewise-constant layers."""
