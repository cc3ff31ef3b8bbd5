"""Pseudogradients of mAP in box coordinates: an experiment, see README.md beside this file."""
