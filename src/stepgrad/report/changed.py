"""The images on which one training differs most from another, for the better and for the worse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepgrad.evaluation.records import Evidence
from stepgrad.report.examples import Mark, describe_boxes, tally

CHANGED_RULE = (
    "For each detector, each class has the score threshold with the best F1 over all images; only detections that reach it are "
    "shown. The count of an image is right minus wrong minus missed. Better and worse: the images where the count of the second "
    "detector is the furthest above and below that of the reference. Objects that the protocol ignores (difficult ones, COCO's "
    "crowds), and detections of them, are neither counted nor shown."
)
Marks = Sequence[Sequence[Mark]]


def changes(before: Marks, after: Marks) -> list[int]:
    """Per image, by how much its count (right minus wrong minus missed) grew."""
    return [_count(new) - _count(old) for old, new in zip(before, after, strict=True)]


def _count(marks: Sequence[Mark]) -> int:
    right, wrong, missed = tally(marks)
    return right - wrong - missed


def better_and_worse(grown: Sequence[int], shown: int) -> tuple[list[int], list[int]]:
    """Positions of the images that changed most, up to half of `shown` (rounded up) of each kind.

    >>> better_and_worse([0, 2, -1, 1, 2], shown=4)
    ([1, 4], [2])
    """
    half = (shown + 1) // 2
    better = sorted((i for i, by in enumerate(grown) if by > 0), key=lambda i: (-grown[i], i))
    worse = sorted((i for i, by in enumerate(grown) if by < 0), key=lambda i: (grown[i], i))
    return better[:half], worse[:half]


def change_in_words(before: Sequence[Mark], after: Sequence[Mark]) -> str:
    """What is different on an image. An object more found is one less missed, so that is not said twice."""
    (found_before, wrong_before, _), (found_after, wrong_after, _) = tally(before), tally(after)
    return ", ".join(filter(None, [_found(found_after - found_before), _false_alarms(wrong_after - wrong_before)]))


def _found(by: int) -> str:
    return f"{abs(by)} {'more' if by > 0 else 'fewer'} found" if by else ""


def _false_alarms(by: int) -> str:
    """
    >>> _false_alarms(-1), _false_alarms(2)
    ('1 fewer false alarm', '2 more false alarms')
    """
    return f"{abs(by)} {'more' if by > 0 else 'fewer'} false alarm{'s' * (abs(by) != 1)}" if by else ""


def describe_change(evidence: Evidence, position: int, before: Sequence[Mark], after: Sequence[Mark]) -> dict[str, Any]:
    """One image for the JSON; both arms have the objects and names of `evidence`."""
    return {
        "image": str(evidence.image_ids[position]),
        "words": change_in_words(before, after),
        "change": _count(after) - _count(before),
        "reference": _side(evidence, before),
        "chosen": _side(evidence, after),
    }


def _side(evidence: Evidence, marks: Sequence[Mark]) -> dict[str, Any]:
    right, wrong, missed = tally(marks)
    return {"right": right, "wrong": wrong, "missed": missed, "boxes": describe_boxes(evidence, marks)}
