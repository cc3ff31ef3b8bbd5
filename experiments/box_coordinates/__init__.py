"""Pseudogradients of mAP in box coordinates: an experiment, see docs/box_gradient.md."""
