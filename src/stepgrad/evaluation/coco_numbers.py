"""COCO's twelve numbers, counted by faster-coco-eval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, one_of
from stepgrad.evaluation.giants import LARGEST_OF_COCO, warn_of_giants
from stepgrad.evaluation.judge import ranked_by_class
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.tables import four_decimals, plain_table
from stepgrad.extras import need
from stepgrad.metric.boxes import areas_of, overlap_table

AREAS = {
    **{"all": (0.0, LARGEST_OF_COCO), "small": (0.0, 32.0**2)},
    **{"medium": (32.0**2, 96.0**2), "large": (96.0**2, LARGEST_OF_COCO)},
}
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
        return plain_table(self.names, [[four_decimals(value) for value in self.values]])


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
    warn_of_giants(evidence, ranges["all"][1])
    counts = coco_counts(evidence, max_detections, ranges)
    if counts is None:
        return CocoNumbers((math.nan,) * 12, max_detections)
    precision, recall = counts.precision, counts.recall
    at = lambda t: np.isclose(counts.thresholds, t)  # noqa: E731
    values = [
        *(_mean(precision[..., 0, 2]), _mean(precision[at(0.5), ..., 0, 2]), _mean(precision[at(0.75), ..., 0, 2])),
        *(_mean(precision[..., a, 2]) for a in (1, 2, 3)),
        *(_mean(recall[..., 0, m]) for m in (0, 1, 2)),
        *(_mean(recall[..., a, 2]) for a in (1, 2, 3)),
    ]
    return CocoNumbers(tuple(values), max_detections)


@dataclass(frozen=True)
class CocoCounts:
    """What the twelve numbers are means of; -1 where there is nothing to find."""

    precision: NDArray[np.float64]  # (T, R, K, A, M): threshold, recall level, class, area, most detections
    recall: NDArray[np.float64]  # (T, K, A, M)
    thresholds: NDArray[np.float64]  # (T,)


def coco_counts(
    evidence: Evidence, max_detections: tuple[int, int, int], areas: Mapping[str, tuple[float, float]]
) -> CocoCounts | None:
    """Let faster-coco-eval count, by the overlaps our own protocols go by; None if there is nothing to find."""
    evaluation = _evaluation(evidence)
    if len(evidence.objects) == 0 or evidence.num_images == 0:
        return None
    parameters = evaluation.params
    parameters.maxDets = list(max_detections)
    parameters.areaRng = [list(bounds) for bounds in areas.values()]
    parameters.areaRngLbl = list(areas)
    # One rule for all numbers: a box given by corners would be turned into sizes and back here, which moves its edges.
    evaluation.computeIoU = _Overlaps(evidence, max_detections[-1])
    evaluation.evaluate()
    evaluation.accumulate()
    return CocoCounts(evaluation.eval["precision"], evaluation.eval["recall"], parameters.iouThrs)


class _Overlaps:
    """(detections, objects) IoU of an image and class: detections by decreasing score, objects in their order."""

    def __init__(self, evidence: Evidence, most: int) -> None:
        self.detections, self.objects, self.most = evidence.detections, evidence.objects, most
        self.found: dict[tuple[int, int], NDArray[np.int64]] = {}
        for label, rows in enumerate(ranked_by_class(evidence, "image")):
            self.found.update(_by_image(self.detections.images, rows, label))
        self.there: dict[tuple[int, int], NDArray[np.int64]] = {}
        for label in np.unique(self.objects.labels).tolist():
            rows = np.flatnonzero(self.objects.labels == label)
            self.there.update(_by_image(self.objects.images, rows, label))

    def __call__(self, image: int, label: int) -> NDArray[np.float64] | list[float]:
        key = int(image), int(label)
        if key not in self.found or key not in self.there:
            return []
        d, g = self.found[key][: self.most], self.there[key]
        areas, object_areas = areas_of(self.detections.sizes[d], 0.0), areas_of(self.objects.sizes[g], 0.0)
        return overlap_table(
            self.detections.boxes[d], areas, self.objects.boxes[g], object_areas, self.objects.crowd[g]
        )


def _by_image(
    images: NDArray[np.int32], rows: NDArray[np.int64], label: int
) -> dict[tuple[int, int], NDArray[np.int64]]:
    """The rows of each image, in their order."""
    rows = rows[np.argsort(images[rows], kind="stable")]
    there, first = np.unique(images[rows], return_index=True)
    return {(image, label): part for image, part in zip(there.tolist(), np.split(rows, first[1:]), strict=False)}


def _mean(values: Any) -> float:
    """Mean of what is there; -1 marks classes without objects."""
    there = np.asarray(values)[np.asarray(values) > -1]
    return float(there.mean()) if there.size else math.nan


def _evaluation(evidence: Evidence) -> Any:
    need("faster_coco_eval", purpose="COCO's twelve numbers")
    from faster_coco_eval import COCO, COCOeval_faster

    truth, found = COCO(_ground_truth(evidence)), COCO()
    found.dataset = {**truth.dataset, "annotations": _detections(evidence)}
    found.createIndex()
    return COCOeval_faster(truth, found, "bbox")


def _ground_truth(evidence: Evidence) -> dict[str, Any]:
    """Images are numbered in their order and annotations from 1: id 0 means "no match" to the counting code."""
    objects = evidence.objects
    rows = zip(
        *(objects.images.tolist(), objects.labels.tolist(), _xywh(objects.boxes, objects.sizes)),
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
    rows = zip(
        *(found.images.tolist(), found.labels.tolist(), _xywh(found.boxes, found.sizes), found.scores.tolist()),
        strict=True,
    )
    return [
        {
            **{"id": i, "image_id": image, "category_id": label, "bbox": box, "score": score},
            **{"area": box[2] * box[3], "iscrowd": 0},
        }
        for i, (image, label, box, score) in enumerate(rows, 1)
    ]


def _xywh(boxes: NDArray[np.float64], sizes: NDArray[np.float64]) -> list[list[float]]:
    rows: list[list[float]] = np.concatenate([boxes[:, :2], sizes], axis=1).tolist()
    return rows
