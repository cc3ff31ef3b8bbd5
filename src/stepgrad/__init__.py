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
    from stepgrad.layers.base import ElementwiseLayer as ElementwiseLayer
    from stepgrad.layers.base import StepLayer as StepLayer
    from stepgrad.layers.modules import ArgmaxOneHot as ArgmaxOneHot
    from stepgrad.layers.modules import NMSLayer as NMSLayer
    from stepgrad.layers.modules import Ranks as Ranks
    from stepgrad.layers.modules import Round as Round
    from stepgrad.layers.modules import Sign as Sign
    from stepgrad.layers.modules import Staircase as Staircase
    from stepgrad.layers.modules import Threshold as Threshold
    from stepgrad.layers.modules import TopKMask as TopKMask
    from stepgrad.layers.modules import UniformQuantizer as UniformQuantizer
    from stepgrad.losses.distributed import DistributedMAPLoss as DistributedMAPLoss
    from stepgrad.losses.large_batch import large_batch as large_batch
    from stepgrad.losses.map_loss import MAPLoss as MAPLoss
    from stepgrad.losses.ranking.losses import APLoss as APLoss
    from stepgrad.losses.ranking.losses import AUCLoss as AUCLoss
    from stepgrad.losses.ranking.losses import MRRLoss as MRRLoss
    from stepgrad.losses.ranking.losses import NDCGLoss as NDCGLoss
    from stepgrad.losses.ranking.losses import PrecisionAtKLoss as PrecisionAtKLoss
    from stepgrad.losses.ranking.losses import RecallAtKLoss as RecallAtKLoss
    from stepgrad.losses.ranking.losses import SpearmanLoss as SpearmanLoss
    from stepgrad.losses.ranking.steps import RankingSteps as RankingSteps
    from stepgrad.losses.score_memory import ScoreMemory as ScoreMemory
    from stepgrad.metric.mean_ap import MAPResult as MAPResult
    from stepgrad.metric.mean_ap import mean_average_precision as mean_average_precision
    from stepgrad.metric.mean_ap import nms as nms
    from stepgrad.metric.protocol import PROTOCOLS as PROTOCOLS
    from stepgrad.metric.protocol import Protocol as Protocol
    from stepgrad.metric.protocol import get_protocol as get_protocol
    from stepgrad.steps.estimators import mee as mee
    from stepgrad.steps.estimators import radius_difference as radius_difference
    from stepgrad.steps.estimators import sde as sde
    from stepgrad.steps.map_steps import Steps as Steps
    from stepgrad.steps.map_steps import map_pseudogradient as map_pseudogradient
    from stepgrad.steps.map_steps import map_steps as map_steps
    from stepgrad.steps.nearest import NearestSteps as NearestSteps
    from stepgrad.steps.nearest import Pseudogradient as Pseudogradient
    from stepgrad.steps.nearest import SearchIncompleteWarning as SearchIncompleteWarning
    from stepgrad.steps.nearest import find_steps as find_steps
    from stepgrad.steps.nearest import pseudogradient as pseudogradient
    from stepgrad.steps.torch_function import step_function as step_function

_HOME = {
    "APLoss": "losses.ranking.losses",
    "AUCLoss": "losses.ranking.losses",
    "ArgmaxOneHot": "layers.modules",
    "BoxMethod": "gradient.box_steps",
    "DistributedMAPLoss": "losses.distributed",
    "ElementwiseLayer": "layers.base",
    "Evaluator": "evaluation",
    "FastRCNN": "detector",
    "MAPLoss": "losses.map_loss",
    "MAPResult": "metric.mean_ap",
    "MRRLoss": "losses.ranking.losses",
    "NDCGLoss": "losses.ranking.losses",
    "NMSLayer": "layers.modules",
    "NearestSteps": "steps.nearest",
    "PROTOCOLS": "metric.protocol",
    "PrecisionAtKLoss": "losses.ranking.losses",
    "Protocol": "metric.protocol",
    "Pseudogradient": "steps.nearest",
    "RankingSteps": "losses.ranking.steps",
    "Ranks": "layers.modules",
    "RecallAtKLoss": "losses.ranking.losses",
    "Round": "layers.modules",
    "ScoreMemory": "losses.score_memory",
    "SearchIncompleteWarning": "steps.nearest",
    "Sign": "layers.modules",
    "SpearmanLoss": "losses.ranking.losses",
    "Staircase": "layers.modules",
    "StepLayer": "layers.base",
    "Steps": "steps.map_steps",
    "Threshold": "layers.modules",
    "TopKMask": "layers.modules",
    "UniformQuantizer": "layers.modules",
    "find_steps": "steps.nearest",
    "get_protocol": "metric.protocol",
    "large_batch": "losses.large_batch",
    "map_pseudogradient": "steps.map_steps",
    "map_steps": "steps.map_steps",
    "mean_average_precision": "metric.mean_ap",
    "mee": "steps.estimators",
    "nms": "metric.mean_ap",
    "pseudogradient": "steps.nearest",
    "radius_difference": "steps.estimators",
    "sde": "steps.estimators",
    "step_function": "steps.torch_function",
}
_MODULES = ("errors", "reference")  # what to catch, and what to read
__all__ = [name for name in (*_HOME, *_MODULES) if name != "FastRCNN"]  # it needs an extra, and `import *` must not


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"stepgrad.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'stepgrad' has no attribute {name!r}")
    value = getattr(import_module(f"stepgrad.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
