"""Train directly for the metric you report, by exact pseudogradients of step functions.

Names are imported when first used: the kernels' compiler takes as long to import as a small library. What each name is,
for editors and type checkers, stands in __init__.pyi.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0"  # the one place: pyproject.toml reads it from here

_HOME = {  # the first names: what most people need
    "APLoss": "losses.ranking",
    "DetectionLoss": "losses.detection",
    "DistributedDetectionLoss": "losses.distributed",
    "DistributedMAPLoss": "losses.distributed",
    "Evaluator": "evaluation",
    "MAPLoss": "losses.detection",
    "MAPResult": "metric.over_classes",
    "NDCGLoss": "losses.ranking",
    "Protocol": "metric.protocol",
    "Rescorer": "models.rescore",
    "Steps": "steps.estimators",
    "apply_thresholds": "deploy",
    "calibrate": "deploy",
    "compare": "evaluation.paired",
    "find_steps": "steps.nearest",
    "finetune": "models.fine_tuning",
    "large_batch": "losses.large_batch",
    "map_pseudogradient": "losses.functional",
    "map_steps": "losses.functional",
    "mean_average_precision": "losses.functional",
    "mee": "steps.estimators",
    "nms": "losses.functional",
    "pseudogradient": "steps.nearest",
    "sde": "steps.estimators",
    "step_function": "steps.torch_function",
    "thresholds": "deploy",
    "train_new_head": "models.new_head",
}
_MODULES = {  # the others, by what they are about
    "detector": "detector",
    "errors": "errors",
    "layers": "steps.layers",
    "metrics": "metric.metrics",
    "overlaps": "overlaps",
    "ranking": "losses.ranking",
    "reference": "reference",
}
__all__ = [*_HOME, *(name for name in _MODULES if name != "detector")]  # which needs an extra, and `import *` must not


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if name in _MODULES:
        value: Any = import_module(f"stepgrad.{_MODULES[name]}")
    elif home is None:
        raise AttributeError(f"module 'stepgrad' has no attribute {name!r}")
    else:
        value = getattr(import_module(f"stepgrad.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_HOME, *_MODULES, *(name for name in globals() if name.startswith("__"))})
