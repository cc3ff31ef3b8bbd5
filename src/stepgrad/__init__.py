"""Train directly for the metric you report, by exact pseudogradients of step functions.

Names are imported when first used: the kernels' compiler takes as long to import as a small library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepgrad.detector import FastRCNN as FastRCNN
    from stepgrad.evaluation import Evaluator as Evaluator
    from stepgrad.gradient.estimators import mee as mee
    from stepgrad.gradient.estimators import radius_difference as radius_difference
    from stepgrad.gradient.estimators import sde as sde
    from stepgrad.gradient.map_steps import Steps as Steps
    from stepgrad.gradient.map_steps import map_pseudogradient as map_pseudogradient
    from stepgrad.gradient.map_steps import map_steps as map_steps
    from stepgrad.losses.map_loss import MAPLoss as MAPLoss
    from stepgrad.metric.mean_ap import MAPResult as MAPResult
    from stepgrad.metric.mean_ap import mean_average_precision as mean_average_precision
    from stepgrad.metric.mean_ap import nms as nms
    from stepgrad.metric.protocol import PROTOCOLS as PROTOCOLS
    from stepgrad.metric.protocol import Protocol as Protocol
    from stepgrad.metric.protocol import get_protocol as get_protocol

_HOME = {
    "Evaluator": "evaluation",
    "FastRCNN": "detector",
    "MAPLoss": "losses.map_loss",
    "MAPResult": "metric.mean_ap",
    "PROTOCOLS": "metric.protocol",
    "Protocol": "metric.protocol",
    "Steps": "gradient.map_steps",
    "get_protocol": "metric.protocol",
    "map_pseudogradient": "gradient.map_steps",
    "map_steps": "gradient.map_steps",
    "mean_average_precision": "metric.mean_ap",
    "mee": "gradient.estimators",
    "nms": "metric.mean_ap",
    "radius_difference": "gradient.estimators",
    "sde": "gradient.estimators",
}
__all__ = [*_HOME]  # the table above is the list


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'stepgrad' has no attribute {name!r}")
    value = getattr(import_module(f"stepgrad.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
