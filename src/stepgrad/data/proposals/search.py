"""Selective search of one image (Uijlings et al. 2013), through OpenCV."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stepgrad.errors import ConfigError, one_of
from stepgrad.extras import need

Mode = Literal["fast", "quality"]


@dataclass(frozen=True)
class SearchSettings:
    """Settings of selective search, stored in every cache file.

    >>> SearchSettings("fast", min_side=20).to_json()
    '{"method": "selective search", "min_side": 20, "mode": "fast"}'
    """

    mode: Mode = "fast"
    """"fast" finds some hundreds of windows in a small photograph; "quality" three times as many in three times the time."""
    min_side: int = 12
    """Windows narrower or lower than this many pixels are left out."""

    def __post_init__(self) -> None:
        one_of("mode", self.mode, ["fast", "quality"])
        if not isinstance(self.min_side, int) or self.min_side < 1:
            raise ConfigError(f"Expected min_side to be a whole number of at least 1 but got {self.min_side!r}.")

    def to_json(self) -> str:
        """One line, the same for equal settings."""
        return json.dumps({"method": "selective search", **asdict(self)}, sort_keys=True)


def selective_search(image: Image.Image, settings: SearchSettings | None = None) -> NDArray[np.int32]:
    """(N, 4) windows of an RGB image, continuous x1 y1 x2 y2, sorted, each once.

    OpenCV finds the same windows every time but not in the same order, so they are sorted.
    """
    settings = settings or SearchSettings()
    search = check_installed().createSelectiveSearchSegmentation()
    search.setBaseImage(np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1]))  # OpenCV takes BGR
    if settings.mode == "fast":
        search.switchToSelectiveSearchFast()
    else:
        search.switchToSelectiveSearchQuality()
    return tidy_windows(search.process(), settings.min_side)


def tidy_windows(xywh: NDArray[Any], min_side: int) -> NDArray[np.int32]:
    """Corners of the windows that are large enough, sorted, each once.

    >>> tidy_windows(np.array([[5, 0, 20, 20], [0, 0, 20, 20], [5, 0, 20, 20], [0, 0, 3, 20]]), min_side=12)
    array([[ 0,  0, 20, 20],
           [ 5,  0, 25, 20]], dtype=int32)
    """
    windows = np.asarray(xywh, dtype=np.int32).reshape(-1, 4)
    windows = windows[(windows[:, 2:] >= min_side).all(axis=1)]
    return np.unique(np.concatenate([windows[:, :2], windows[:, :2] + windows[:, 2:]], axis=1), axis=0)


def check_installed() -> Any:
    """OpenCV's module of the search; MissingDependencyError if it is not installed."""
    need(
        "cv2.ximgproc", purpose="selective search (plain opencv-python lacks the module, and must be uninstalled first)"
    )
    from cv2.ximgproc import segmentation

    return segmentation
