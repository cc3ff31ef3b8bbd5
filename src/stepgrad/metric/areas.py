"""Objects of some sizes only, by COCO's rules."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError
from stepgrad.kernels.matching import EXCUSED, Objects, Pairs

LARGEST_OF_COCO = 1e5**2
"""Square pixels: the upper bound of pycocotools' "all" areas, which leaves larger boxes out without a word."""
AREAS = {
    "all": (0.0, LARGEST_OF_COCO),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, LARGEST_OF_COCO),
}
"""COCO's sizes, in square pixels; both bounds belong to the range."""


def area_range(area: object) -> tuple[float, float] | None:
    """Two bounds in square pixels, from COCO's word for them, "low:high" or a pair."""
    if area is None:
        return None
    if isinstance(area, str) and area in AREAS:
        return AREAS[area]
    pair = area.split(":") if isinstance(area, str) else area
    try:
        low, high = (float(bound) for bound in pair)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        low, high = 1.0, 0.0
    if not 0.0 <= low <= high:
        raise ConfigError(f"Expected area to be one of {list(AREAS)} or two bounds in square pixels but got {area!r}.")
    return low, high


def only_of_area(
    objects: Objects,
    pairs: Pairs,
    wrong_objects: NDArray[np.bool_],
    wrong_slots: NDArray[np.int32],
    wrong_images: NDArray[np.int64],
    images: int,
) -> tuple[Objects, Pairs]:
    """COCO's rules for objects of some sizes: those of other sizes are ignored, each forgiving one detection; and a detection
    of another size that finds nothing is no false positive.

    The second is said by one more ignored object per image, which all detections of other sizes reach, as a last resort.
    """
    G = len(objects.image)
    once = np.concatenate([wrong_objects & ~objects.ignored, np.zeros(images, dtype=np.bool_)])
    excused = Objects(
        np.concatenate([objects.image, np.arange(images, dtype=np.int32)]),
        np.concatenate([objects.ignored | wrong_objects, np.ones(images, dtype=np.bool_)]),
        once,
    )
    slot = np.concatenate([pairs.slot, wrong_slots])
    object_of = np.concatenate([pairs.object, (G + wrong_images).astype(np.int32)])
    iou = np.concatenate([pairs.iou, np.full(len(wrong_slots), EXCUSED)])
    order = np.lexsort((object_of, slot))
    return excused, Pairs(slot[order], object_of[order], iou[order])
