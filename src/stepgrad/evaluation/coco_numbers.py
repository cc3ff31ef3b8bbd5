"""COCO's twelve numbers, counted by faster-coco-eval."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, LikelyMistakeWarning, one_of
from stepgrad.evaluation.judge import ranked_by_class
from stepgrad.evaluation.records import Detections, Evidence, GroundTruth
from stepgrad.evaluation.tables import plain_table
from stepgrad.extras import need
from stepgrad.metric.areas import AREAS, LARGEST_OF_COCO
from stepgrad.metric.boxes import areas_of
from stepgrad.number_text import per_cent


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
        return plain_table(self.names, [[per_cent(value) for value in self.values]])


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
    """The precisions and recalls whose means are the twelve numbers; -1 where there is nothing to find."""

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
        self.evidence = evidence
        self.most = most
        self.detections: dict[tuple[int, int], NDArray[np.int64]] = {}
        for label, rows in enumerate(ranked_by_class(evidence, "image")):
            self.detections.update(_by_image(evidence.detections.images, rows, label))
        self.objects: dict[tuple[int, int], NDArray[np.int64]] = {}
        for label in np.unique(evidence.objects.labels).tolist():
            rows = np.flatnonzero(evidence.objects.labels == label)
            self.objects.update(_by_image(evidence.objects.images, rows, label))

    def __call__(self, image: int, label: int) -> NDArray[np.float64] | list[float]:
        key = int(image), int(label)
        if key not in self.detections or key not in self.objects:
            return []
        return self.evidence.overlaps(self.detections[key][: self.most], self.objects[key])


def _by_image(
    images: NDArray[np.int32], rows: NDArray[np.int64], label: int
) -> dict[tuple[int, int], NDArray[np.int64]]:
    """The rows of each image, in their order."""
    rows = rows[np.argsort(images[rows], kind="stable")]
    numbers, first = np.unique(images[rows], return_index=True)
    return {(image, label): part for image, part in zip(numbers.tolist(), np.split(rows, first[1:]), strict=False)}


def _mean(values: Any) -> float:
    """The mean, without the -1 that marks classes without objects."""
    counted = np.asarray(values)[np.asarray(values) > -1]
    return float(counted.mean()) if counted.size else math.nan


def _evaluation(evidence: Evidence) -> Any:
    need("faster_coco_eval", purpose="COCO's twelve numbers")
    from faster_coco_eval import COCO, COCOeval_faster

    truth = COCO(_ground_truth(evidence))
    results = COCO()
    results.dataset = {**truth.dataset, "annotations": _detections(evidence)}
    results.createIndex()
    return COCOeval_faster(truth, results, "bbox")


def _ground_truth(evidence: Evidence) -> dict[str, Any]:
    """Images are numbered in their order and annotations from 1: id 0 means "no match" to the counting code."""
    objects = evidence.objects
    boxes = _xywh(objects.boxes, objects.sizes)
    columns = objects.images.tolist(), objects.labels.tolist(), boxes, objects.area.tolist(), objects.crowd.tolist()
    return {
        "images": [{"id": i} for i in range(evidence.num_images)],
        "categories": [{"id": c, "name": name} for c, name in enumerate(evidence.class_names)],
        "annotations": [
            {"id": i, "image_id": image, "category_id": label, "bbox": box, "area": area, "iscrowd": int(crowd)}
            for i, (image, label, box, area, crowd) in enumerate(zip(*columns, strict=True), 1)
        ],
    }


def _detections(evidence: Evidence) -> list[dict[str, Any]]:
    detections = evidence.detections
    boxes = _xywh(detections.boxes, detections.sizes)
    rows = zip(detections.images.tolist(), detections.labels.tolist(), boxes, detections.scores.tolist(), strict=True)
    return [
        {
            "id": i,
            "image_id": image,
            "category_id": label,
            "bbox": box,
            "score": score,
            "area": box[2] * box[3],
            "iscrowd": 0,
        }
        for i, (image, label, box, score) in enumerate(rows, 1)
    ]


def _xywh(boxes: NDArray[np.float64], sizes: NDArray[np.float64]) -> list[list[float]]:
    rows: list[list[float]] = np.concatenate([boxes[:, :2], sizes], axis=1).tolist()
    return rows


def warn_of_giants(evidence: Evidence, largest: float = LARGEST_OF_COCO) -> None:
    """Warn once of objects and detections beyond the areas pycocotools looks at, which our own counting includes."""
    large_detections = areas_of(evidence.detections.sizes, 0.0) > largest
    large_objects = evidence.objects.area > largest
    if not (large_detections.any() or large_objects.any()):
        return
    boxes: Detections | GroundTruth = evidence.objects if large_objects.any() else evidence.detections
    first = int(np.argmax(large_objects if large_objects.any() else large_detections))
    warnings.warn(
        f"{np.count_nonzero(large_objects)} objects and {np.count_nonzero(large_detections)} detections have areas beyond "
        f"{largest:g} square pixels, first {boxes.boxes[first].tolist()} of image "
        f"{evidence.image_ids[boxes.images[first]]}. pycocotools leaves such boxes out, and so do the twelve numbers; mAP "
        "counts them. To compare the two, scale the boxes down, or "
        'widen the areas of the twelve numbers: areas={"all": (0, ...), "large": (9216, ...)}.',
        LikelyMistakeWarning,
        stacklevel=3,
    )
