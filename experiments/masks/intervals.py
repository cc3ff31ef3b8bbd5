"""Intervals of mAP over images: every image gets a random weight (the bootstrap)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from experiments.masks.arms import CLASSES, METRICS, NMS, Seen
from stepgrad.engine.classes import prepare
from stepgrad.engine.lists import judge_detections
from stepgrad.engine.matching import TRUE_POSITIVE
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.batch import Given, read_batch

Floats = NDArray[np.float64]


def draw_weights(images: int, resamples: int, seed: int = 0) -> Floats:
    """(images, 1 + resamples) how often each image is drawn; at first each once."""
    drawn = np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), size=resamples)
    return np.concatenate([np.ones((1, images)), drawn]).T


def resampled_map(scores: Sequence[Tensor], images: Sequence[Seen], metric: str, weights: Floats) -> Floats:
    """(resamples,) mAP where each image counts as often as its weight says; with weights of 1 the usual mAP.

    An image keeps its matches whatever its weight, so everything is matched once.
    """
    protocol, by = METRICS[metric]
    tables = [image.tables[by] for image in images]
    boxes, targets = [image.boxes for image in images], [image.target for image in images]
    batch = read_batch(scores, boxes, targets, CLASSES, given=Given(nms_threshold=NMS, overlaps=tables))
    prepared = prepare(batch, protocol, NMS, 1)
    image_of = np.repeat(np.arange(len(images)), np.diff(batch.offsets))
    values = np.full((CLASSES, weights.shape[1]), np.nan)
    for c in range(CLASSES):
        counted = (batch.object_labels == c) & ~batch.difficult
        objects = np.bincount(batch.object_images[counted], minlength=len(images)) @ weights
        one = prepared.one_class(c)
        roles = judge_detections(one, one.rules.cumulative)[0]
        of_threshold = [_class_ap(row, image_of[one.by_score], weights, objects, protocol) for row in roles]
        values[c] = np.where(objects > 0, np.mean(of_threshold, axis=0), np.nan)
    return np.nanmean(values, axis=0)


def _class_ap(
    roles: NDArray[np.int8], image_of: NDArray[np.int64], weights: Floats, objects: Floats, protocol: Protocol
) -> Floats:
    """(resamples,) AP of one class at one threshold, from the roles of its detections by decreasing score."""
    counts = roles <= TRUE_POSITIVE
    hit, image_of = roles[counts] == TRUE_POSITIVE, image_of[counts]
    true = weights[image_of[hit]].cumsum(axis=0)
    # Detections between two hits are added up by image first: there are few hits and many detections.
    between = np.zeros((len(true) + 1, len(weights)), dtype=np.float32)
    np.add.at(between, (hit.cumsum() - hit, image_of), 1)
    all_above = (between[:-1] @ weights.astype(np.float32)).astype(np.float64).cumsum(axis=0)
    precision = np.divide(true, all_above, out=np.zeros_like(true), where=all_above > 0)
    best = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    recall = true / np.maximum(objects, 1)
    if protocol.recall_levels is None:
        return (best * np.diff(recall, axis=0, prepend=0)).sum(axis=0)
    levels = np.arange(protocol.recall_levels) * (1 / (protocol.recall_levels - 1))
    best = np.concatenate([best, np.zeros((1, len(objects)))])
    reached = (np.searchsorted(column, levels) for column in recall.T)
    return np.array([column[places].mean() for column, places in zip(best.T, reached, strict=True)])


def interval(found: Floats, other: Floats) -> list[float]:
    """The difference of two mAPs, in points, between the 2.5 % and the 97.5 % quantile of those that were drawn."""
    gain = 100 * (found - other)
    low, high = np.quantile(gain[1:], [0.025, 0.975]).tolist()
    return [round(value, 2) for value in (low, float(gain[0]), high)]
