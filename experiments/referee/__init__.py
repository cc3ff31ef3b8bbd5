"""Evaluators side by side on a real detector's output."""
