"""Train directly for the metric you report, by exact pseudogradients of step functions.

Names are imported when first used: the kernels' compiler takes as long to import as a small library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"  # the one place: pyproject.toml reads it from here

if TYPE_CHECKING:
    from stepgrad import errors as errors
    from stepgrad import reference as reference
    from stepgrad.detector import FastRCNN as FastRCNN
    from stepgrad.evaluation import Evaluator as Evaluator
    from stepgrad.gradient.box_steps import BoxMethod as BoxMethod
    from stepgrad.gradient.estimators import mee as mee
    from stepgrad.gradient.estimators import radius_difference as radius_difference
    from stepgrad.gradient.estimators import sde as sde
    from stepgrad.gradient.map_steps import Steps as Steps
    from stepgrad.gradient.map_steps import map_pseudogradient as map_pseudogradient
    from stepgrad.gradient.map_steps import map_steps as map_steps
    from stepgrad.losses.layers import ArgmaxOneHot as ArgmaxOneHot
    from stepgrad.losses.layers import NMSLayer as NMSLayer
    from stepgrad.losses.layers import Ranks as Ranks
    from stepgrad.losses.layers import Round as Round
    from stepgrad.losses.layers import Sign as Sign
    from stepgrad.losses.layers import Staircase as Staircase
    from stepgrad.losses.layers import Threshold as Threshold
    from stepgrad.losses.layers import TopKMask as TopKMask
    from stepgrad.losses.layers import UniformQuantizer as UniformQuantizer
    from stepgrad.losses.map_loss import MAPLoss as MAPLoss
    from stepgrad.losses.score_memory import ScoreMemory as ScoreMemory
    from stepgrad.metric.mean_ap import MAPResult as MAPResult
    from stepgrad.metric.mean_ap import mean_average_precision as mean_average_precision
    from stepgrad.metric.mean_ap import nms as nms
    from stepgrad.metric.protocol import PROTOCOLS as PROTOCOLS
    from stepgrad.metric.protocol import Protocol as Protocol
    from stepgrad.metric.protocol import get_protocol as get_protocol
    from stepgrad.ranking.losses import APLoss as APLoss
    from stepgrad.ranking.losses import AUCLoss as AUCLoss
    from stepgrad.ranking.losses import MRRLoss as MRRLoss
    from stepgrad.ranking.losses import NDCGLoss as NDCGLoss
    from stepgrad.ranking.losses import PrecisionAtKLoss as PrecisionAtKLoss
    from stepgrad.ranking.losses import RecallAtKLoss as RecallAtKLoss
    from stepgrad.ranking.losses import SpearmanLoss as SpearmanLoss
    from stepgrad.ranking.steps import RankingSteps as RankingSteps
    from stepgrad.steps.layer import ElementwiseLayer as ElementwiseLayer
    from stepgrad.steps.layer import StepLayer as StepLayer
    from stepgrad.steps.nearest import NearestSteps as NearestSteps
    from stepgrad.steps.nearest import Pseudogradient as Pseudogradient
    from stepgrad.steps.nearest import SearchIncompleteWarning as SearchIncompleteWarning
    from stepgrad.steps.nearest import find_steps as find_steps
    from stepgrad.steps.nearest import pseudogradient as pseudogradient
    from stepgrad.steps.torch_function import step_function as step_function
    from stepgrad.train.distributed import DistributedMAPLoss as DistributedMAPLoss
    from stepgrad.train.large_batch import large_batch as large_batch

_HOME = {
    "APLoss": "ranking.losses",
    "AUCLoss": "ranking.losses",
    "ArgmaxOneHot": "losses.layers",
    "BoxMethod": "gradient.box_steps",
    "DistributedMAPLoss": "train.distributed",
    "ElementwiseLayer": "steps.layer",
    "Evaluator": "evaluation",
    "FastRCNN": "detector",
    "MAPLoss": "losses.map_loss",
    "MAPResult": "metric.mean_ap",
    "MRRLoss": "ranking.losses",
    "NDCGLoss": "ranking.losses",
    "NMSLayer": "losses.layers",
    "NearestSteps": "steps.nearest",
    "PROTOCOLS": "metric.protocol",
    "PrecisionAtKLoss": "ranking.losses",
    "Protocol": "metric.protocol",
    "Pseudogradient": "steps.nearest",
    "RankingSteps": "ranking.steps",
    "Ranks": "losses.layers",
    "RecallAtKLoss": "ranking.losses",
    "Round": "losses.layers",
    "ScoreMemory": "losses.score_memory",
    "SearchIncompleteWarning": "steps.nearest",
    "Sign": "losses.layers",
    "SpearmanLoss": "ranking.losses",
    "Staircase": "losses.layers",
    "StepLayer": "steps.layer",
    "Steps": "gradient.map_steps",
    "Threshold": "losses.layers",
    "TopKMask": "losses.layers",
    "UniformQuantizer": "losses.layers",
    "find_steps": "steps.nearest",
    "get_protocol": "metric.protocol",
    "large_batch": "train.large_batch",
    "map_pseudogradient": "gradient.map_steps",
    "map_steps": "gradient.map_steps",
    "mean_average_precision": "metric.mean_ap",
    "mee": "gradient.estimators",
    "nms": "metric.mean_ap",
    "pseudogradient": "steps.nearest",
    "radius_difference": "gradient.estimators",
    "sde": "gradient.estimators",
    "step_function": "steps.torch_function",
}
_MODULES = ("errors", "reference")  # what to catch, and what to read
__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"stepgrad.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'stepgrad' has no attribute {name!r}")
    value = getattr(import_module(f"stepgrad.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
