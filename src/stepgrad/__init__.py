"""Train directly for the metric you report, by exact pseudogradients of step functions."""

from stepgrad.gradient.estimators import mee, radius_difference, sde
from stepgrad.gradient.map_steps import Steps, map_pseudogradient, map_steps
from stepgrad.losses.map_loss import MAPLoss
from stepgrad.metric.mean_ap import MAPResult, mean_average_precision, nms
from stepgrad.metric.protocol import PROTOCOLS, Protocol, get_protocol

__all__ = [
    "PROTOCOLS",
    "MAPLoss",
    "MAPResult",
    "Protocol",
    "Steps",
    "get_protocol",
    "map_pseudogradient",
    "map_steps",
    "mean_average_precision",
    "mee",
    "nms",
    "radius_difference",
    "sde",
]
