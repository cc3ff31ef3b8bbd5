"""Which family a model belongs to."""

from __future__ import annotations

from typing import Any

from torch import nn

from stepgrad.errors import ConfigError
from stepgrad.models.new_head.frozen import FrozenDetector


def frozen_detector(
    model: Any, centre_only: bool = False, processor: Any = None, image_size: int = 640
) -> FrozenDetector:
    """The model as a new last class layer sees it; ConfigError for models that are not known."""
    origin = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    if "torchvision" in origin:
        from stepgrad.models.torchvision.frozen import torchvision_detector

        return torchvision_detector(model, centre_only)
    if "transformers" in origin:
        from stepgrad.models.detr.frozen import QueryDetector

        return QueryDetector(model, processor)
    if "ultralytics" in origin:
        from stepgrad.models.yolo.frozen import YOLODetector

        return YOLODetector(model, image_size)
    hint = "; pass the model inside it" if isinstance(model, nn.Module) and hasattr(model, "module") else ""
    raise ConfigError(
        f"Expected a detector of torchvision, transformers or ultralytics but got {type(model).__name__}{hint}."
    )
