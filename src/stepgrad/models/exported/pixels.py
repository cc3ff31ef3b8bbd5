"""Pictures as the network wants them, and the way of its boxes back into the picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

from stepgrad.models.exported.recipe import Recipe

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STRIDE = 32
_LONGEST = 5 / 3  # of the shorter side: DETR's 800 and 1333
_OF_TORCH = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
_OF_PILLOW = {
    "pillow-linear": Image.Resampling.BILINEAR,
    "pillow-cubic": Image.Resampling.BICUBIC,
    "pillow-lanczos": Image.Resampling.LANCZOS,
    "pillow-box": Image.Resampling.BOX,
}


@dataclass(frozen=True)
class Placement:
    """Where the picture lies in the input: pixels times `factors` (x, y), then moved by `corner` (x, y)."""

    factors: tuple[float, float]
    corner: tuple[float, float]
    picture: tuple[int, int]
    """Width and height of the picture ..."""
    input: tuple[int, int]
    """... and of the input."""

    def back(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes (N, 4) of the input in pixels of the picture."""
        return (boxes - np.tile(self.corner, 2)) / np.tile(self.factors, 2)

    def inside(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes (N, 4) of the picture, cut at its border."""
        return np.clip(boxes, 0.0, np.tile(np.array(self.picture, dtype=np.float64), 2))


def prepare(picture: Image.Image, recipe: Recipe) -> tuple[NDArray[np.float32], Placement]:
    """The input (3, H, W) for one picture."""
    placed, inner = _place(picture.size, recipe)
    pixels = _resized(picture, inner, recipe.kernel)
    canvas = np.full((placed.input[1], placed.input[0], 3), recipe.pad, dtype=np.uint8)
    left, top = (int(c) for c in placed.corner)
    canvas[top : top + inner[1], left : left + inner[0]] = pixels
    if recipe.colour == "bgr":
        canvas = canvas[:, :, ::-1]
    numbers = canvas.astype(np.float32) / np.float32(recipe.scale)
    if recipe.normalise == "imagenet":
        numbers = (numbers - np.array(MEAN, dtype=np.float32)) / np.array(DEVIATION, dtype=np.float32)
    return np.ascontiguousarray(numbers.transpose(2, 0, 1)), placed


def _place(picture: tuple[int, int], recipe: Recipe) -> tuple[Placement, tuple[int, int]]:
    """Where the picture goes, and width and height of the resized picture without padding."""
    width, height = picture
    high, wide = recipe.size
    if recipe.resize == "none":
        return Placement((1.0, 1.0), (0.0, 0.0), picture, picture), picture
    if recipe.resize == "stretch":
        return Placement((wide / width, high / height), (0.0, 0.0), picture, (wide, high)), (wide, high)
    if recipe.resize == "short":
        factor = min(min(high, wide) / min(picture), _LONGEST * min(high, wide) / max(picture))
        inner = max(round(width * factor), 1), max(round(height * factor), 1)
        return Placement((inner[0] / width, inner[1] / height), (0.0, 0.0), picture, inner), inner
    factor = min(wide / width, high / height)
    inner = max(round(width * factor), 1), max(round(height * factor), 1)
    if recipe.resize == "rect":  # only what is missing to the next multiple
        wide, high = (side + (full - side) % STRIDE for side, full in zip(inner, (wide, high), strict=True))
    # an odd pixel goes to the right and to the bottom
    corner = float(round((wide - inner[0]) / 2 - 0.1)), float(round((high - inner[1]) / 2 - 0.1))
    return Placement((factor, factor), corner, picture, (wide, high)), inner


def _resized(picture: Image.Image, size: tuple[int, int], kernel: str) -> NDArray[np.uint8]:
    """Pixels (H, W, 3) of the picture at another width and height."""
    if picture.size == size:
        return np.asarray(picture)
    if kernel in _OF_PILLOW:
        return np.asarray(picture.resize(size, _OF_PILLOW[kernel]))
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float()
    corners: dict[str, Any] = {} if kernel == "nearest" else {"align_corners": False}
    made = interpolate(pixels, (size[1], size[0]), mode=_OF_TORCH[kernel], **corners)
    found: NDArray[np.uint8] = made[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy()
    return found
