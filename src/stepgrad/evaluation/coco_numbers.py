"""COCO's twelve numbers, counted by faster-coco-eval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepgrad.errors import ConfigError, MissingDependencyError, one_of
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.tables import plain_table, shown

AREAS = {"all": (0.0, 1e5**2), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e5**2)}
"""COCO's sizes, in square pixels; both bounds belong to the range."""


@dataclass(frozen=True)
class CocoNumbers:
    """Average precision and recall over IoU 0.50:0.05:0.95; nan where there is nothing to find.

    >>> numbers = CocoNumbers((0.5,) * 12)
    >>> list(numbers.to_dict())[6:9], numbers["AP75"]
    (['AR1', 'AR10', 'AR100'], 0.5)
    """

    values: tuple[float, ...]
    """The twelve in COCO's order."""
    max_detections: tuple[int, int, int] = (1, 10, 100)

    @property
    def names(self) -> list[str]:
        """COCO's names."""
        recalls = [f"AR{count}" for count in self.max_detections]
        return ["AP", "AP50", "AP75", "APs", "APm", "APl", *recalls, "ARs", "ARm", "ARl"]

    def __getitem__(self, name: str) -> float:
        one_of("the number", name, self.names)
        return self.values[self.names.index(name)]

    def to_dict(self) -> dict[str, float | None]:
        """By name; None for nan."""
        return {name: None if math.isnan(v) else v for name, v in zip(self.names, self.values, strict=True)}

    def __str__(self) -> str:
        return plain_table(self.names, [[shown(value) for value in self.values]])


def coco_numbers(
    evidence: Evidence,
    max_detections: tuple[int, int, int] = (1, 10, 100),
    areas: Mapping[str, tuple[float, float]] | None = None,
) -> CocoNumbers:
    """The twelve numbers of the detections.

    Args:
        evidence: detections and objects; boxes of a known convention are turned into continuous ones first.
        max_detections: per image and class; average precision uses the last.
        areas: bounds of "small", "medium" and "large" in square pixels, if not COCO's.
    """
    if len(max_detections) != 3 or sorted(set(max_detections)) != list(max_detections) or max_detections[0] < 1:
        raise ConfigError(f"Expected three increasing max_detections such as (1, 10, 100) but got {max_detections!r}.")
    evidence = evidence.seen_with(0.0)
    ranges = {**AREAS, **(areas or {})}
    if list(ranges) != list(AREAS):
        raise ConfigError(f"Expected areas among {list(AREAS)} but got {list(areas or {})}.")
    evaluation = _evaluation(evidence)
    if len(evidence.objects) == 0 or evidence.num_images == 0:
        return CocoNumbers((math.nan,) * 12, max_detections)
    parameters = evaluation.params
    parameters.maxDets = list(max_detections)
    parameters.areaRng = [list(bounds) for bounds in ranges.values()]
    parameters.areaRngLbl = list(ranges)
    evaluation.evaluate()
    evaluation.accumulate()
    precision, recall = evaluation.eval["precision"], evaluation.eval["recall"]  # (T, R, K, A, M), (T, K, A, M)
    thresholds = parameters.iouThrs
    at = lambda t: np.isclose(thresholds, t)  # noqa: E731
    values = [
        *(_mean(precision[..., 0, 2]), _mean(precision[at(0.5), ..., 0, 2]), _mean(precision[at(0.75), ..., 0, 2])),
        *(_mean(precision[..., a, 2]) for a in (1, 2, 3)),
        *(_mean(recall[..., 0, m]) for m in (0, 1, 2)),
        *(_mean(recall[..., a, 2]) for a in (1, 2, 3)),
    ]
    return CocoNumbers(tuple(values), max_detections)


def _mean(values: Any) -> float:
    """Mean of what is there; -1 marks classes without objects."""
    there = np.asarray(values)[np.asarray(values) > -1]
    return float(there.mean()) if there.size else math.nan


def _evaluation(evidence: Evidence) -> Any:
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError as error:
        raise MissingDependencyError(
            'COCO\'s twelve numbers need faster-coco-eval: pip install "stepgrad[detector]"'
        ) from error
    truth, found = COCO(_ground_truth(evidence)), COCO()
    found.dataset = {**truth.dataset, "annotations": _detections(evidence)}
    found.createIndex()
    return COCOeval_faster(truth, found, "bbox")


def _ground_truth(evidence: Evidence) -> dict[str, Any]:
    """Images are numbered in their order and annotations from 1: id 0 means "no match" to the counting code."""
    objects = evidence.objects
    rows = zip(
        *(objects.images.tolist(), objects.labels.tolist(), _xywh(objects.boxes)),
        *(objects.area.tolist(), objects.crowd.tolist()),
        strict=True,
    )
    return {
        "images": [{"id": i} for i in range(evidence.num_images)],
        "categories": [{"id": c, "name": name} for c, name in enumerate(evidence.class_names)],
        "annotations": [
            {"id": i, "image_id": image, "category_id": label, "bbox": box, "area": area, "iscrowd": int(crowd)}
            for i, (image, label, box, area, crowd) in enumerate(rows, 1)
        ],
    }


def _detections(evidence: Evidence) -> list[dict[str, Any]]:
    found = evidence.detections
    rows = zip(found.images.tolist(), found.labels.tolist(), _xywh(found.boxes), found.scores.tolist(), strict=True)
    return [
        {
            **{"id": i, "image_id": image, "category_id": label, "bbox": box, "score": score},
            **{"area": box[2] * box[3], "iscrowd": 0},
        }
        for i, (image, label, box, score) in enumerate(rows, 1)
    ]


def _xywh(boxes: Any) -> list[list[float]]:
    sized: list[list[float]] = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).tolist()
    return sized
