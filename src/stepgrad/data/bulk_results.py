"""COCO's result files read as columns: a loop over 100,000 detections takes longer than judging them.

A file in which anything is unusual or wrong is left to the reader that looks at each detection, whose messages name the place.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.shape_fields import FIELDS
from stepgrad.evaluation.records import Detections
from stepgrad.metric.boxes import unmeasurable

_NUMBERS = {int, float}
_COLUMNS = itemgetter("image_id", "category_id", "score", "bbox")


def load_json(content: bytes) -> Any:
    """json.loads, in half its time for large files."""
    with without_collection():
        return json.loads(content)


@contextmanager
def without_collection() -> Iterator[None]:
    """Many small objects are made, and none of them is garbage: looking for it takes as long as making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def boxes_at_once(
    entries: list[Any], positions: Mapping[Any, int], labels: Mapping[Any, int], empty_boxes: str
) -> Detections | None:
    """The detections of {image_id, category_id, score, bbox [x, y, width, height]}; None if any of them needs a closer look.

    `positions` and `labels` are by the very ids of the data; an id that is only spelled alike needs a closer look, too.
    """
    try:
        with without_collection(), np.errstate(over="ignore"):
            images, categories, scores, boxes = zip(*map(_COLUMNS, entries), strict=True)
            numbers = list(chain.from_iterable(boxes))
            usual = (
                set(map(type, images)) | set(map(type, categories)) <= {int, str}
                and set(map(type, boxes)) == {list}
                and set(map(len, boxes)) == {4}
                and set(map(type, numbers)) | set(map(type, scores)) <= _NUMBERS
            )
            if not usual:
                return None
            xywh = np.array(numbers, dtype=np.float64).reshape(-1, 4)
            found = Detections(
                np.array([positions[image] for image in images], dtype=np.int32),
                np.array([labels[category] for category in categories], dtype=np.int64),
                np.array(scores, dtype=np.float64),
                np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1),
                xywh[:, 2:].copy(),
            )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return found if _can_be_judged(found, empty_boxes) else None


def _can_be_judged(found: Detections, empty_boxes: str) -> bool:
    """Whether every number passes the checks of `DetectionChecks`."""
    smallest: NDArray[np.float64] = found.sizes.min(axis=1)
    positive = (smallest > 0.0).all() if empty_boxes == "error" else (smallest >= 0.0).all()
    finite = np.isfinite(found.scores).all() and np.isfinite(found.boxes).all()
    return bool(positive and finite and not unmeasurable(found.sizes).any())


def shapes_besides(entries: list[Any]) -> tuple[str, ...]:
    """Which of masks and keypoints some entries have."""
    keys = set().union(*entries)
    tasks = [task for task in ("masks", "keypoints") if FIELDS[task] in keys]
    return tuple(task for task in tasks if any(entry.get(FIELDS[task]) for entry in entries))
