"""What is known of detections besides their file: checked at the door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepgrad.errors import InputError, NonFiniteError


def are_probabilities(detections: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all scores lie in [0, 1]; others are taken for logits."""
    scores = [torch.as_tensor(found["scores"]).reshape(-1).double().cpu() for found in detections]
    every = torch.cat([torch.zeros(0, dtype=torch.float64), *scores])
    return bool(((every >= 0.0) & (every <= 1.0)).all())


def columns_of(features: Sequence[Any] | None) -> int:
    """D of features (M, D) per image."""
    if features is None:
        return 0
    shapes = [torch.as_tensor(own).shape for own in features]
    found = max((shape[1] for shape in shapes if len(shape) == 2), default=0)
    if not found:
        raise InputError("Expected features (M, D) for each image but got none with a second dimension.")
    return found


def checked_features(
    detections: Sequence[Mapping[str, Any]], features: Sequence[Any] | None, wanted: int
) -> list[Tensor | None]:
    """The features of each image as (M, wanted) finite numbers; None where none are wanted."""
    if features is None:
        if wanted:
            raise InputError(f"Expected features=: the rescorer was fitted with {wanted} numbers on each detection.")
        return [None] * len(detections)
    if len(features) != len(detections):
        raise InputError(f"Expected features of {len(detections)} images but got {len(features)}.")
    return [_checked(own, image, wanted, i) for i, (own, image) in enumerate(zip(features, detections, strict=True))]


def _checked(own: Any, image: Mapping[str, Any], wanted: int, position: int) -> Tensor:
    numbers = torch.as_tensor(own).float().cpu()
    count = len(torch.as_tensor(image["scores"]).reshape(-1))
    if not count and not numbers.numel():
        return torch.zeros(0, wanted)
    if tuple(numbers.shape) != (count, wanted):
        raise InputError(
            f"image {position}: expected features of shape ({count}, {wanted}) but got {tuple(numbers.shape)}."
        )
    if not bool(torch.isfinite(numbers).all()):
        raise NonFiniteError(f"image {position}: expected finite features.")
    return numbers
