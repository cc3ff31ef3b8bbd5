"""Boxes larger than COCO's largest: pycocotools leaves them out without a word."""

from __future__ import annotations

import warnings

import numpy as np

from stepgrad.errors import LikelyMistakeWarning
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.boxes import areas_of

LARGEST_OF_COCO = 1e5**2
"""Square pixels: the upper bound of pycocotools' "all" areas."""


def warn_of_giants(evidence: Evidence, largest: float = LARGEST_OF_COCO) -> None:
    """Warn once of objects and detections beyond the areas pycocotools looks at, which our own counting includes."""
    found = areas_of(evidence.detections.sizes, 0.0) > largest
    there = evidence.objects.area > largest
    if not (found.any() or there.any()):
        return
    rows, wrong = (evidence.objects, there) if there.any() else (evidence.detections, found)
    first = int(np.argmax(wrong))
    warnings.warn(
        f"{np.count_nonzero(there)} objects and {np.count_nonzero(found)} detections have areas beyond {largest:g} square "
        f"pixels, first {rows.boxes[first].tolist()} of image {evidence.image_ids[rows.images[first]]}. pycocotools leaves "
        "such boxes out, and so do the twelve numbers; mAP counts them. To compare the two, scale the boxes down, or "
        'widen the areas of the twelve numbers: areas={"all": (0, ...), "large": (9216, ...)}.',
        LikelyMistakeWarning,
        stacklevel=3,
    )
