"""Images as the trunk takes them, scaled as in Fast R-CNN and normalised for ImageNet weights; and what it makes of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEAST_SIDE = 80
"""Smaller inputs are padded to this: every torchvision trunk makes at least one cell of it."""


class Features(NamedTuple):
    """A trunk's output for one image; it can be passed instead of the image if the trunk does not train."""

    map: Tensor
    """(C, h, w)"""
    scale: tuple[float, float]
    """From image pixels to the trunk's input pixels, along x and y."""
    size: tuple[int, int] | None = None
    """Height and width of the image; a model that moves boxes clips them to it."""


def scaled_size(height: int, width: int, shortest_side: int | None, longest_side: int | None) -> tuple[int, int]:
    """Height and width after scaling to a shortest side, but never beyond a longest side.

    >>> scaled_size(375, 500, 600, 1000), scaled_size(300, 900, 600, 1000), scaled_size(300, 900, None, None)
    ((600, 800), (333, 1000), (300, 900))
    """
    scale = 1.0 if shortest_side is None else shortest_side / min(height, width)
    if longest_side is not None:
        scale = min(scale, longest_side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def trunk_input(image: Tensor, size: tuple[int, int]) -> Tensor:
    """(3, H, W) uint8, or float in [0, 1], as (3, *size) normalised float32, padded where it is very small.

    Shrinking averages (antialias), so that large photographs keep no moiré; enlarging is plain bilinear.
    """
    pixels = image.float() / 255 if image.dtype == torch.uint8 else image.float()
    if tuple(pixels.shape[1:]) != size:
        pixels = F.interpolate(pixels[None], size=size, mode="bilinear", antialias=True)[0]
    mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    normal = (pixels - mean) / std
    right, below = max(0, LEAST_SIDE - size[1]), max(0, LEAST_SIDE - size[0])
    return F.pad(normal, (0, right, 0, below)) if right or below else normal


def axis_scales(image: Tensor, size: tuple[int, int]) -> tuple[float, float]:
    """The exact factors along x and y by which an image of this size is scaled."""
    height, width = image.shape[1:]
    return size[1] / width, size[0] / height


def scale_windows(windows: Tensor, scale: tuple[float, float]) -> Tensor:
    """Windows in the trunk's input pixels."""
    return windows * windows.new_tensor([scale[0], scale[1], scale[0], scale[1]])
