"""Rescoring the detections of finished detectors: experiments."""
