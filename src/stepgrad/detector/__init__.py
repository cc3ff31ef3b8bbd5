"""The paper's Fast R-CNN: windows are scored, NMS is part of the model, and the loss is what you report.

Names are imported when first used: the commands read configs long before they need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepgrad.extras import need

if TYPE_CHECKING:
    from stepgrad.detector.compress import compressed
    from stepgrad.detector.fast_rcnn import FastRCNN
    from stepgrad.detector.pooling import Features
    from stepgrad.detector.sampling import Sampling
    from stepgrad.detector.weights import WeightsReport

_HOME = {
    "FastRCNN": "fast_rcnn",
    "Features": "pooling",
    "Sampling": "sampling",
    "WeightsReport": "weights",
    "compressed": "compress",
}
__all__ = ["FastRCNN", "Features", "Sampling", "WeightsReport", "compressed"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need("torchvision", "safetensors", purpose="stepgrad.detector")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
