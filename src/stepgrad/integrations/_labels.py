"""The labels of an image, as the models of others want them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepgrad.errors import InputError


def check_int64(name: str, labels: Any, image: int) -> None:
    """Raise InputError unless the labels of an image are an int64 tensor (G,): what models index with."""
    if not isinstance(labels, Tensor) or labels.ndim != 1 or labels.dtype != torch.int64:
        came = f"{labels.dtype} of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(
            f"image {image}: expected {name} to be an int64 tensor of shape (G,) but got {came}; "
            "for no objects, torch.zeros(0, dtype=torch.int64)."
        )
