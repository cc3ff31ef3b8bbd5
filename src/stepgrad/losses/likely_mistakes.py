"""Input that runs, and trains nothing: boxes in two frames, probabilities under a radius made for logarithms.

Nothing about such a batch is wrong by itself, so it gets a warning, not an error, and only where gradients are wanted. A
loss looks at its first batches until they show that all is well, which takes one batch as a rule, or until so many windows
look the same way that chance is out of the question. It looks no further after that: later batches cost nothing.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import LikelyMistakeWarning
from stepgrad.metric.batch import Batch
from stepgrad.metric.protocol import Protocol
from stepgrad.steps.estimators import Method

LEAST_WINDOWS = 16  # fewer can be anything: a toy scene, an example
_ONLY_PIXELS = (
    4.0  # a normalised coordinate is not as large, however far out of its image, and if the image was resized since
)
_OTHER_FRAME = 8.0  # pixels are many times as large as shares: even a small image has dozens of them
_SILENCE = (
    " This is shown once. If it is what you want, silence it: "
    'warnings.filterwarnings("ignore", category=stepgrad.errors.LikelyMistakeWarning).'
)


@dataclass
class Watch:
    """What one loss has seen so far: windows that looked odd, in a row; None once it has made up its mind."""

    odd_boxes: int | None = 0
    odd_scores: int | None = 0

    @property
    def is_undecided(self) -> bool:
        return self.odd_boxes is not None or self.odd_scores is not None

    def look_at(self, batch: Batch, protocol: Protocol, method: Method) -> None:
        """Warn, once for boxes and once for scores, if all batches so far look like a mistake."""
        if self.odd_boxes is not None and _has_something_to_find(batch):
            self.odd_boxes = _counted(self.odd_boxes, len(batch.scores), odd_boxes(batch, protocol.pixel_offset))
        if self.odd_scores is not None and batch.scores.size:
            low, high = float(batch.scores.min()), float(batch.scores.max())
            if low < high:  # a new head may give zeros only, which says nothing
                self.odd_scores = _counted(self.odd_scores, len(batch.scores), odd_scores(low, high, method))


def _counted(before: int, windows: int, complaint: str) -> int | None:
    """Odd windows so far; None when there is no complaint, or it has been made."""
    if not complaint:
        return None
    if before + windows < LEAST_WINDOWS:
        return before + windows
    warnings.warn(complaint + _SILENCE, LikelyMistakeWarning, stacklevel=2)
    return None


def _has_something_to_find(batch: Batch) -> bool:
    """Whether some image has both windows and objects."""
    return bool((np.diff(batch.offsets)[batch.object_images] > 0).any())


def odd_boxes(batch: Batch, pixel_offset: float) -> str:
    """What is odd about windows and objects together, or nothing."""
    if batch.pairs is not None:
        none = "No window has anything in common with any object, so the metric has no gradient: are masks, poses or centres "
        return "" if len(batch.pairs.overlap) else none + "of windows and objects in the same image coordinates?"
    windows, objects = (float(np.abs(boxes).max()) for boxes in (batch.boxes, batch.object_boxes))
    ranges = f"windows lie between {_range(batch.boxes)}, objects between {_range(batch.object_boxes)}"
    small, large = sorted((windows, objects))
    if small < _ONLY_PIXELS and large >= max(_ONLY_PIXELS, _OTHER_FRAME * small):
        given = ("windows", "objects") if windows == small else ("objects", "windows")
        return (
            f"The {given[0]} look normalised, the {given[1]} do not: {ranges}. Give both in the same coordinates: multiply "
            "normalised boxes by the image's width and height."
        )
    if large < _ONLY_PIXELS and pixel_offset > 0.0:
        return (
            f"Boxes look normalised ({ranges}), and the protocol adds {pixel_offset:g} pixel to each side, so that all of "
            "them overlap. Multiply them by the image's width and height, or choose a protocol of continuous boxes."
        )
    if not some_overlap(batch, pixel_offset):
        return (
            f"No window overlaps any object, so mAP is 0 and has no gradient: {ranges}. Most likely they are in different "
            "coordinates (another image size, or normalised) or not corners: boxes and targets are "
            "(x1, y1, x2, y2), of the same image, in the same pixels."
        )
    return ""


def odd_scores(low: float, high: float, method: Method) -> str:
    """What is odd about scores from `low` to `high` under a radius, or nothing."""
    if method.estimator != "radius" or method.radius < 1.0 or low < 0.0 or high > 1.0:
        return ""
    return (
        f"All scores lie in [0, 1], as probabilities do, and the radius is {method.radius:g}: every score is within it of "
        "every other, which blurs the gradient. Give log-probabilities (log_softmax, logsigmoid), which rank the same; "
        "or pass a radius that fits your scores."
    )


def some_overlap(batch: Batch, pixel_offset: float) -> bool:
    """Whether any window overlaps an object of its image at all; as a rule the first object tells."""
    for target, image, label in zip(batch.object_boxes, batch.object_images, batch.object_labels, strict=True):
        rows = slice(batch.offsets[image], batch.offsets[image + 1])
        windows = batch.boxes[rows, label] if batch.boxes_by_class else batch.boxes[rows]
        shared = np.minimum(windows[:, 2:], target[2:]) - np.maximum(windows[:, :2], target[:2]) + pixel_offset
        if (shared > 0.0).all(axis=1).any():
            return True
    return False


def _range(boxes: NDArray[np.float64]) -> str:
    return f"{boxes.min():g} and {boxes.max():g}"
