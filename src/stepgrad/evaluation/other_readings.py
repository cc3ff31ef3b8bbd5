"""Other ways to read the boxes of detections: the usual mistakes of result files, each undone.

A file may give corners where sizes are expected, y before x, shares of the image, or pixels of the image as the network saw
it. Each order of the numbers is tried with each scale. A scale has at most one unknown factor, which detections and objects
of the same image and class vote on: if a detection is an object on another scale, its centre tells the factor, and the box
times this factor covers the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.records import Detections, Evidence

Boxes = NDArray[np.float64]  # (..., 4)
BoxOrder = Literal["xywh", "xyxy", "cxcywh", "yxhw", "yxyx"]
"""What the four numbers of a box are; cx and cy are its centre."""

_MOST_IMAGES = 300  # that are looked at, evenly spread
_MOST_DETECTIONS = 30  # of each image, the highest scores
_SAME_FACTOR = 0.05  # votes for the same factor differ by less than 5 per cent
_FITTING = 0.9  # at least this share of boxes lies in its image, once it is read as it was meant ...
_SPILL = 0.1  # ... but for a tenth of the image, since some detectors do not clip
_BETTER = 1.05  # a reading is preferred to simpler ones if it finds 5 per cent more objects

WORDS: dict[BoxOrder, str] = {
    "xywh": "[x, y, width, height]",
    "xyxy": "[x1, y1, x2, y2]",
    "cxcywh": "[centre x, centre y, width, height]",
    "yxhw": "[y, x, height, width]",
    "yxyx": "[y1, x1, y2, x2]",
}


@dataclass(frozen=True, eq=False)
class OtherReading:
    """Detections as they may have been meant."""

    how: str
    """What was done to the boxes: "read as ...", "multiplied by ..."."""
    detections: Detections
    found: int
    """Objects, of the images looked at, that a detection then covers."""


@dataclass(frozen=True, eq=False)
class _BoxScale:
    """Coordinates of a box times `times`, times one factor for all images, minus `shift`."""

    words: Callable[[float], str]
    """What this means, from the factor."""
    times: Boxes  # (images, 4)
    shift: Boxes  # (images, 4)
    factor: float | None = None
    """None: unknown."""


def best_reading(evidence: Evidence, sizes: Boxes, written: BoxOrder) -> OtherReading | None:
    """The reading under which most objects are covered by a detection of their class; simpler ones win where it is close.

    Args:
        evidence: detections and objects.
        sizes: (images, 2) width and height of each image; nan where unknown.
        written: the order of the numbers that the source was expected to have, and was read in.
    """
    rows, objects = _pairs(evidence)
    detections, there = evidence.detections, evidence.objects.boxes[objects]
    images, numbers = detections.images, _numbers(detections, written)

    def found_by(boxes: Boxes) -> int:
        return len(np.unique(objects[covers(boxes[rows], there)]))

    as_read = best = OtherReading("as they are", detections, found_by(detections.boxes))
    for scale in _scales(sizes):
        for order in sorted(WORDS, key=lambda order: order != written):  # the expected one is the simplest
            boxes = _corners(numbers, order)
            factor = scale.factor or _vote(boxes[rows], there, images[rows], scale)
            if factor is None:
                continue
            moved = boxes * scale.times[images] * factor - scale.shift[images]
            found = found_by(moved)
            if found > _BETTER * best.found and _fits(moved, sizes[images]):
                how = [scale.words(factor), "" if order == written else f"read as {WORDS[order]}"]
                best = OtherReading(" and ".join(filter(None, how)), detections.with_boxes(moved), found)
    return None if best is as_read else best


def covers(boxes: Boxes, others: Boxes) -> NDArray[np.bool_]:
    """Whether each box overlaps the one in the same row by an IoU of at least a half."""
    low, high = np.maximum(boxes[:, :2], others[:, :2]), np.minimum(boxes[:, 2:], others[:, 2:])
    shared = np.maximum(high - low, 0.0).prod(axis=1)
    areas = [np.maximum(b[:, 2:] - b[:, :2], 0.0).prod(axis=1) for b in (boxes, others)]
    enough: NDArray[np.bool_] = (shared > 0.0) & (2.0 * shared >= areas[0] + areas[1] - shared)
    return enough


def pairs_of_images(evidence: Evidence) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of detections and of objects that share an image, each with each, on images spread over the data."""
    detections, objects = evidence.detections, evidence.objects
    counted = np.flatnonzero(~(objects.crowd | objects.difficult))
    shared = np.intersect1d(detections.images, objects.images[counted])
    chosen = shared[np.linspace(0, len(shared) - 1, min(len(shared), _MOST_IMAGES)).astype(np.int64)]
    ranked = np.argsort(-detections.scores, kind="stable")
    highest = dict(_by_image(ranked, detections.images, chosen))
    pairs = [
        (np.repeat(highest[image][:_MOST_DETECTIONS], len(near)), np.tile(near, len(highest[image][:_MOST_DETECTIONS])))
        for image, near in _by_image(counted, objects.images, chosen)
    ]
    none = np.zeros(0, dtype=np.int64)
    return np.concatenate([none, *(rows for rows, _ in pairs)]), np.concatenate([none, *(near for _, near in pairs)])


def _by_image(
    rows: NDArray[np.int64], images: NDArray[np.int32], chosen: NDArray[np.int32]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The rows of each chosen image, in their order."""
    rows = rows[np.argsort(images[rows], kind="stable")]
    starts, ends = (np.searchsorted(images[rows], chosen, side) for side in ("left", "right"))
    for image, start, end in zip(chosen.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield image, rows[start:end]


def _pairs(evidence: Evidence) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Those of the same class."""
    rows, objects = pairs_of_images(evidence)
    same = evidence.detections.labels[rows] == evidence.objects.labels[objects]
    return rows[same], objects[same]


def _numbers(detections: Detections, written: BoxOrder) -> Boxes:
    """(M, 4) the numbers of the source, in pixels."""
    first, size = detections.boxes[:, :2], detections.sizes
    if written == "xywh":
        return np.concatenate([first, size], axis=1)
    return np.concatenate([first + size / 2, size], axis=1) if written == "cxcywh" else detections.boxes


def _corners(numbers: Boxes, order: BoxOrder) -> Boxes:
    """Numbers in some order as x1, y1, x2, y2."""
    if order in ("yxhw", "yxyx"):
        return _corners(numbers[:, [1, 0, 3, 2]], "xywh" if order == "yxhw" else "xyxy")
    first, second = numbers[:, :2], numbers[:, 2:]
    if order == "xyxy":
        return np.concatenate([first, np.maximum(first, second)], axis=1)
    low = first - second / 2 if order == "cxcywh" else first
    return np.concatenate([low, low + second], axis=1)


def _scales(sizes: Boxes) -> Iterator[_BoxScale]:
    """The scales that boxes come in by mistake, simple ones first; those of the image only where its size is known."""
    ones, zeros = np.ones((len(sizes), 4)), np.zeros((len(sizes), 4))
    yield _BoxScale(lambda _: "", ones, zeros, 1.0)
    sides = np.tile(sizes, 2)  # width, height, width, height
    longer, shorter = (np.repeat(side(axis=1)[:, None], 4, axis=1) for side in (sizes.max, sizes.min))
    whole = np.isfinite(sizes).all()
    if whole:
        yield _BoxScale(lambda _: "multiplied by the width and height of their images", sides, zeros, 1.0)
    yield _BoxScale(lambda factor: f"multiplied by {factor:.4g}", ones, zeros)
    if whole:
        yield _BoxScale(_stretched, sides, zeros)
        yield _BoxScale(lambda factor: f"multiplied by (longer side of the image) / {1 / factor:.0f}", longer, zeros)
        yield _BoxScale(lambda factor: f"multiplied by (shorter side of the image) / {1 / factor:.0f}", shorter, zeros)
        yield _BoxScale(_letterboxed, longer, (longer - sides) / 2)


def _stretched(factor: float) -> str:
    side = f"{1 / factor:.0f}"
    return f"scaled back from {side} x {side} pixels (x times width / {side}, y times height / {side})"


def _letterboxed(factor: float) -> str:
    side = f"{1 / factor:.0f}"
    return f"scaled back from a letterbox of {side} x {side} pixels (minus its border, times longer side / {side})"


def _vote(boxes: Boxes, there: Boxes, images: NDArray[np.int32], scale: _BoxScale) -> float | None:
    """The factor that most pairs of a box and an object agree on; None without any."""
    boxes, there = boxes * scale.times[images], there + scale.shift[images]
    centres, wanted = (b[:, :2] + b[:, 2:] for b in (boxes, there))
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = (centres * wanted).sum(axis=1) / (centres**2).sum(axis=1)
    usable = np.isfinite(factors) & (factors > 0.0)
    boxes, there, factors = boxes[usable], there[usable], factors[usable]
    votes = np.sort(np.log(factors[covers(boxes * factors[:, None], there)]))
    if len(votes) == 0:
        return None
    ends = np.searchsorted(votes, votes + _SAME_FACTOR, "right")
    first = int(np.argmax(ends - np.arange(len(votes))))
    return float(np.exp(np.median(votes[first : ends[first]])))


def _fits(boxes: Boxes, sizes: Boxes) -> bool:
    """Whether nearly all boxes lie in their images; those of unknown size hold everything."""
    spill = _SPILL * sizes
    outside = (boxes[:, :2] < -spill) | (boxes[:, 2:] > sizes + spill)  # nan compares as False
    return bool((~outside.any(axis=1)).mean() >= _FITTING)
