"""Gains of scores of the same windows over other scores, with intervals over images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from experiments.masks.arms import Seen, Study
from stepgrad.engine.classes import prepare
from stepgrad.engine.lists import judge_detections
from stepgrad.engine.matching import ABSENT
from stepgrad.evaluation.intervals import interval_of
from stepgrad.evaluation.resampling import JudgedList, Resamples, resample
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.over_classes import OverClasses
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.batch import Given, read_batch

LEVEL = 0.95
Lists = list[JudgedList]


def judged(scores: Sequence[Tensor], images: Sequence[Seen], study: Study, protocol: Protocol, by: str) -> Lists:
    """The list of every class, as evaluation's resampling takes it."""
    boxes, targets = [image.boxes for image in images], [image.target for image in images]
    given = Given(nms_threshold=study.nms, overlaps=[image.tables[by] for image in images])
    batch = read_batch(scores, boxes, targets, study.classes, given=given)
    prepared = prepare(batch, protocol, study.nms, 1)
    image_of = np.repeat(np.arange(len(images), dtype=np.int32), np.diff(batch.offsets))
    lists = []
    for c in range(study.classes):
        one = prepared.one_class(c)
        counted = (batch.object_labels == c) & ~batch.difficult
        roles = judge_detections(one, one.rules.cumulative)[0]
        kept = (roles != ABSENT).all(axis=0)
        order = one.by_score[kept]
        lists.append(
            JudgedList(
                images=image_of[order],
                verdicts=roles[:, kept],
                object_images=np.asarray(batch.object_images[counted], dtype=np.int32),
                scores=batch.scores[order, c],
            )
        )
    return lists


def gain(
    before: Sequence[Lists], after: Sequence[Lists], protocol: Protocol, images: int, resamples: int
) -> list[float]:
    """The lower end, the value and the upper end of the gain in mAP, in points; lists of several seeds count on average."""
    draws = Resamples.of(images, resamples, seed=0)
    once = np.ones((1, images), dtype=np.uint8)
    value, samples = (
        mean_map(after, protocol, weights, draws) - mean_map(before, protocol, weights, draws)
        for weights in (once, draws.weights)
    )
    low, high = interval_of(samples, LEVEL, float(value[0]))
    return [round(100 * end, 2) for end in (low, float(value[0]), high)]


def mean_map(
    seeds: Sequence[Lists], protocol: Protocol, weights: NDArray[np.uint8], draws: Resamples
) -> NDArray[np.float64]:
    """(R,) mAP for rows of weights, the mean over seeds."""
    over = OverClasses(absent_classes=protocol.absent_classes)
    values = [resample(lists, AVERAGE_PRECISION, protocol, weights, draws, over).values for lists in seeds]
    return np.mean(values, axis=0)
