"""Result files that give corners (x1, y1, x2, y2) where COCO's format has x, y, width, height."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import DetectionDataset
from stepgrad.data.coco import COCODataset
from stepgrad.data.voc import VOCDataset
from stepgrad.data.yolo import YOLODataset
from stepgrad.errors import LikelyMistakeWarning

_SLACK = 1.0  # pixels a box may reach over the edge of its image without leaving it
_LEAVING = 0.25  # of boxes by corners about half leave when taken for sizes: those beyond the middle of the image
_FITTING = 0.9  # of boxes by sizes few fit as corners: only where each is wider than its left edge is away


def warn_of_corners(
    path: Path, boxes: NDArray[np.float64], images: NDArray[np.int64], dataset: DetectionDataset
) -> None:
    """Warn if many of the boxes (M, 4) leave their images as x, y, width, height but nearly all fit as corners."""
    sizes = image_sizes(dataset)[images]
    has_size = np.isfinite(sizes[:, 0])
    boxes, sizes = boxes[has_size], sizes[has_size]
    if len(boxes) == 0:
        return
    leaves = (boxes[:, :2] + boxes[:, 2:] > sizes + _SLACK).any(axis=1)
    fits = ((boxes[:, 2:] >= boxes[:, :2]) & (boxes[:, 2:] <= sizes + _SLACK)).all(axis=1)
    if (leaves & fits).mean() < _LEAVING or fits.mean() < _FITTING:
        return
    first = int(np.argmax(leaves & fits))
    width, height = sizes[first].tolist()
    warnings.warn(
        f"{path}: {np.count_nonzero(leaves)} of {len(boxes)} boxes reach outside their images (such as "
        f"{boxes[first].tolist()}, in an image of {width:g} x {height:g} pixels), but fit if read as corners. COCO's bbox is "
        "[x, y, width, height]; these look like [x1, y1, x2, y2]: write the file with [x1, y1, x2 - x1, y2 - y1].",
        LikelyMistakeWarning,
        stacklevel=4,
    )


def image_sizes(dataset: DetectionDataset) -> NDArray[np.float64]:
    """(images, 2) width and height, nan where the annotations do not say."""
    if isinstance(dataset, (COCODataset, YOLODataset)):
        sizes = [image.size for image in dataset.images]
    elif isinstance(dataset, VOCDataset):
        sizes = [annotation.size for annotation in dataset.annotations]
    else:
        sizes = [None] * len(dataset)
    return np.array([size or (np.nan, np.nan) for size in sizes], dtype=np.float64).reshape(-1, 2)
