"""COCO's twelve numbers, from the verdicts of our own `coco`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.matching import TRUE_POSITIVE
from stepgrad.errors import ConfigError, LikelyMistakeWarning, one_of
from stepgrad.evaluation.judge import judge
from stepgrad.evaluation.records import Detections, Evidence, GroundTruth
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.list_metric import AREAS, LARGEST_OF_COCO
from stepgrad.metric.metrics import AP
from stepgrad.metric.protocol import COCO
from stepgrad.number_text import per_cent
from stepgrad.overlaps.keypoints import Keypoints


@dataclass(frozen=True)
class CocoNumbers:
    """Average precision and recall over IoU (or OKS) 0.50:0.05:0.95; nan where there is nothing to find.

    >>> numbers = CocoNumbers((0.5,) * 12)
    >>> list(numbers.to_dict())[6:9], numbers["AP75"]
    (['AR1', 'AR10', 'AR100'], 0.5)
    """

    values: tuple[float, ...]
    """The twelve in COCO's order; of poses the ten."""
    max_detections: tuple[int, ...] = (1, 10, 100)

    @property
    def names(self) -> list[str]:
        """COCO's names."""
        if len(self.values) == 10:
            return [f"{kind}{which}" for kind in ("AP", "AR") for which in ("", "50", "75", "m", "l")]
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
    max_detections: tuple[int, ...] | None = None,
    areas: Mapping[str, tuple[float, float]] | None = None,
) -> CocoNumbers:
    """The twelve numbers of the detections; of poses the ten, which leave small objects out.

    Args:
        evidence: detections and objects; boxes of a known convention are turned into continuous ones first.
        max_detections: per image and class; average precision uses the last. None: COCO's, (1, 10, 100), of poses (20,).
        areas: bounds of "small", "medium" and "large" in square pixels, if not COCO's.
    """
    poses = isinstance(evidence.overlap, Keypoints)
    most = max_detections or ((20,) if poses else (1, 10, 100))
    if len(most) != (1 if poses else 3) or sorted(set(most)) != list(most) or most[0] < 1:
        expected = "one number such as (20,)" if poses else "three increasing max_detections such as (1, 10, 100)"
        raise ConfigError(f"Expected {expected} but got {max_detections!r}.")
    ranges = {**AREAS, **(areas or {})}
    if list(ranges) != list(AREAS):
        raise ConfigError(f"Expected areas among {list(AREAS)} but got {list(areas or {})}.")
    warn_of_giants(evidence.seen_with(0.0), ranges["all"][1])
    chosen = [name for name in ranges if not (poses and name == "small")]
    every, *sizes = (count_area(evidence, ranges[name], most) for name in chosen)
    half, three_quarters = (np.isclose(COCO.match_thresholds, threshold) for threshold in (0.5, 0.75))
    precisions = [every.ap, every.ap[:, half], every.ap[:, three_quarters], *(size.ap for size in sizes)]
    recalls = [*every.recall, *(size.recall[-1] for size in sizes)]
    if poses:
        recall = every.recall[-1]
        recalls = [recall, recall[:, half], recall[:, three_quarters], *(size.recall[-1] for size in sizes)]
    return CocoNumbers(tuple(_mean(values) for values in (*precisions, *recalls)), most)


@dataclass(frozen=True)
class AreaCounts:
    """AP and recall of objects of some sizes, by class and match threshold; nan for classes without such objects."""

    ap: NDArray[np.float64]  # (K, T)
    recall: NDArray[np.float64]  # (M, K, T) of the best 1, 10, 100 detections per image and class


def count_area(
    evidence: Evidence, bounds: tuple[float, float], max_detections: tuple[int, ...] = (1, 10, 100)
) -> AreaCounts:
    """AP and recall of the objects whose area lies within bounds, both of them included.

    Detections take objects in the order of their scores, so the verdicts on the best 1 or 10 are those among the best 100.
    """
    protocol = replace(COCO, max_detections=max_detections[-1])
    ap = np.full((evidence.num_classes, len(protocol.match_thresholds)), np.nan)
    recall = np.full((len(max_detections), *ap.shape), np.nan)
    for judged in judge(evidence, protocol, metric=AP(area=bounds)):
        if judged.P == 0:
            continue
        ap[judged.label] = judged.ap
        places = _places(evidence.detections.images[judged.detections])
        for m, most in enumerate(max_detections):
            found = (judged.verdicts == TRUE_POSITIVE) & (places < most)
            recall[m, judged.label] = found.sum(axis=1) / judged.P
    return AreaCounts(ap, recall)


def _places(images: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many detections of the same image come before each.

    >>> _places(np.array([5, 7, 5, 5], dtype=np.int32)).tolist()
    [0, 0, 1, 2]
    """
    by_image = np.argsort(images, kind="stable")
    _, first, count = np.unique(images[by_image], return_index=True, return_counts=True)
    places = np.empty(len(images), dtype=np.int64)
    places[by_image] = np.arange(len(images)) - np.repeat(first, count)
    return places


def _mean(values: NDArray[np.float64]) -> float:
    """The mean over classes and thresholds; nan where there is nothing to find."""
    counted = values[~np.isnan(values)]
    return float(counted.mean()) if counted.size else math.nan


def warn_of_giants(evidence: Evidence, largest: float = LARGEST_OF_COCO) -> None:
    """Warn once of objects and detections beyond the areas pycocotools looks at, which our own counting includes."""
    large_detections = evidence.detection_areas(0.0) > largest
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
