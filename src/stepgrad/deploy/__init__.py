"""What a finished detector needs for use: thresholds that keep a promise, and scores that are probabilities."""

from stepgrad.deploy.apply import apply_thresholds, predictor_hook
from stepgrad.deploy.calibration import Calibration, ClassMap, calibrate
from stepgrad.deploy.calibration_files import read_calibration
from stepgrad.deploy.expected import Expected, ExpectedNumber
from stepgrad.deploy.reliability import AtThreshold, Reliability
from stepgrad.deploy.thresholds import ClassThreshold, Thresholds, thresholds

__all__ = [
    "AtThreshold",
    "Calibration",
    "ClassMap",
    "ClassThreshold",
    "Expected",
    "ExpectedNumber",
    "Reliability",
    "Thresholds",
    "apply_thresholds",
    "calibrate",
    "predictor_hook",
    "read_calibration",
    "thresholds",
]
