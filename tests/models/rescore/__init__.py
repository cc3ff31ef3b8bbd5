"""Rescoring finished detections."""
