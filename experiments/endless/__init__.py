"""Detectors trained by their stock losses to the end, on images of `shapes` that never repeat."""
