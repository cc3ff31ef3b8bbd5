"""One image as the doctor sees it, whatever the format of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import ImageId


@dataclass(frozen=True)
class ExaminedImage:
    """The readable part of an image's record; G objects."""

    image_id: ImageId
    source: str
    """The annotation file, and the image in it where it holds many."""
    image: Path | None
    """The file of the picture; None where it is missing or not asked for."""
    size: tuple[int, int] | None
    """As the annotation gives it."""
    names: tuple[str, ...]
    boxes: NDArray[np.float64]
    difficult: NDArray[np.bool_]
    crowd: NDArray[np.bool_]


@dataclass(frozen=True)
class ExaminedDataset:
    """A whole dataset as the doctor sees it."""

    kind: str
    name: str
    entries: list[ExaminedImage]
    class_names: tuple[str, ...]
