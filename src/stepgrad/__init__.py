"""Train directly for the metric you report, by exact pseudogradients of step functions.

Names are imported when first used: the kernels' compiler takes as long to import as a small library. What each name is,
for editors and type checkers, stands in __init__.pyi.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"  # the one place: pyproject.toml reads it from here

_HOME = {  # the first names: what most people need
    "APLoss": "losses.ranking",
    "DetectionLoss": "losses.detection_loss",
    "DistributedDetectionLoss": "losses.distributed",
    "DistributedMAPLoss": "losses.distributed",
    "Evaluator": "evaluation",
    "MAPLoss": "losses.map_loss",
    "MAPResult": "metric.mean_ap",
    "NDCGLoss": "losses.ranking",
    "Protocol": "metric.protocol",
    "ScoreMemory": "losses.score_memory",
    "Steps": "steps.method",
    "find_steps": "steps.nearest",
    "finetune": "fine_tuning",
    "large_batch": "losses.large_batch",
    "map_pseudogradient": "steps.map_steps",
    "map_steps": "steps.map_steps",
    "mean_average_precision": "metric.mean_ap",
    "mee": "steps.estimators",
    "nms": "metric.mean_ap",
    "pseudogradient": "steps.nearest",
    "sde": "steps.estimators",
    "step_function": "steps.torch_function",
    "train_new_head": "new_head",
}
_MODULES = {  # the others, by what they are about
    "baselines": "losses.baselines",
    "detector": "detector",
    "errors": "errors",
    "layers": "layers",
    "metrics": "metric.metrics",
    "ranking": "losses.ranking",
    "reference": "reference",
}
_ALSO = {  # names that stood here before there were namespaces
    **dict.fromkeys(("AUCLoss", "MRRLoss", "PrecisionAtKLoss", "RecallAtKLoss", "SpearmanLoss"), "losses.ranking"),
    **dict.fromkeys(("ElementwiseLayer", "NMSLayer", "StepLayer", "ArgmaxOneHot", "Ranks", "TopKMask"), "layers"),
    **dict.fromkeys(("Round", "Sign", "Staircase", "Threshold", "UniformQuantizer"), "layers"),
    **dict.fromkeys(("NearestSteps", "Pseudogradient", "SearchIncompleteWarning"), "steps.nearest"),
    **dict.fromkeys(("PROTOCOLS", "get_protocol"), "metric.protocol"),
    "FastRCNN": "detector",
    "radius_difference": "steps.estimators",
}
__all__ = [*_HOME, *(name for name in _MODULES if name != "detector")]  # which needs an extra, and `import *` must not


def __getattr__(name: str) -> Any:
    home = _HOME.get(name) or _ALSO.get(name)
    if name in _MODULES:
        value: Any = import_module(f"stepgrad.{_MODULES[name]}")
    elif home is None:
        raise AttributeError(f"module 'stepgrad' has no attribute {name!r}")
    else:
        value = getattr(import_module(f"stepgrad.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
