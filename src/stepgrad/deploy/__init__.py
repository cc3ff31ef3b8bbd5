"""What a finished detector needs for use: thresholds that keep a promise, and scores that are probabilities."""

from stepgrad.deploy.apply import apply_thresholds, predictor_hook
from stepgrad.deploy.expected import Expected, ExpectedNumber
from stepgrad.deploy.thresholds import ClassThreshold, Thresholds, thresholds

__all__ = [
    "ClassThreshold",
    "Expected",
    "ExpectedNumber",
    "Thresholds",
    "apply_thresholds",
    "predictor_hook",
    "thresholds",
]
