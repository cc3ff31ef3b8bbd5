"""Better scores for the detections of a finished detector."""

from stepgrad.models.rescore.rescorer import Rescorer

__all__ = ["Rescorer"]
