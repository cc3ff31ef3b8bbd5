"""What the trunk makes of an image."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Features(NamedTuple):
    """A trunk's output for one image; takes the place of the image wherever the trunk does not train."""

    map: Tensor
    """(C, h, w)"""
    scale: tuple[float, float]
    """From image pixels to the trunk's input pixels, along x and y."""
