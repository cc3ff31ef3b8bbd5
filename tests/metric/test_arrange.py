"""How a batch is arranged for the kernels: when windows are sorted by their left edge, and which areas count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepgrad.metric.arrange import Areas, _by_left_edge, _near_corners, arrange
from stepgrad.metric.batch import make_batch
from stepgrad.metric.protocol import COCO, VOC12, VOC12_DEVKIT, Protocol
from stepgrad.reference.boxes import iou
from tests.scenes import random_batch


@pytest.mark.parametrize("protocol", [VOC12, VOC12_DEVKIT], ids=lambda p: p.name)
def test_written_areas_are_near_those_of_the_corners_within_a_ten_millionth(protocol: Protocol) -> None:
    boxes = np.array([[1.0, 2.0, 4.0, 9.0], [0.0, 0.0, 50.0, 20.0]])
    sizes = boxes[:, 2:] - boxes[:, :2] + protocol.pixel_offset
    areas = sizes[:, 0] * sizes[:, 1]
    assert _near_corners(areas, boxes, protocol)
    assert _near_corners(np.zeros(0), boxes, protocol)  # nothing was written
    for i in range(2):
        off = np.array([1.0, 1.0])
        off[i] += 0.9e-7
        assert _near_corners(areas * off, boxes, protocol)
        off[i] += 0.3e-7
        assert not _near_corners(areas * off, boxes, protocol)
        assert not _near_corners(areas / off, boxes, protocol)


def test_windows_are_sorted_by_their_left_edge_where_an_image_has_many_objects() -> None:
    rng = np.random.default_rng(2)
    boxes = rng.integers(-20, 20, size=(30, 4)).astype(np.float64)
    offsets = np.array([0, 12, 20, 30])
    few = np.repeat([0, 2], 16).astype(np.int32)
    assert len(_by_left_edge(boxes, offsets, few)) == 0
    assert len(_by_left_edge(boxes, offsets, few[:0])) == 0
    found = _by_left_edge(boxes, offsets, np.append(few, np.int32(2)))
    expected = [np.arange(12), np.arange(12, 20), np.arange(20, 30)]
    for i in (0, 2):  # the second image has no objects: any order will do
        expected[i] = expected[i][np.argsort(boxes[expected[i], 0], kind="stable")]
    assert found.tolist() == np.concatenate(expected).tolist()


@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-9, 1.5])
def test_overlaps_are_those_of_the_areas_written(factor: float) -> None:
    """Sorted by their left edge or not: how far a window may lie follows from its corners only where its area does."""
    rng = np.random.default_rng(3)
    batch = random_batch(rng, windows=60, objects=60, clusters=1)
    while len(batch.targets[0]["labels"]) <= 16:
        batch = random_batch(rng, windows=60, objects=60, clusters=1)
    windows, objects = batch.boxes[0], batch.targets[0]["boxes"]
    own, other = (np.prod(b[:, 2:] - b[:, :2], axis=1) * factor for b in (windows, objects))
    arrangement = replace(arrange(make_batch(*batch.tensors()), VOC12, None), areas=Areas(own, other))
    view = arrangement.view(0)
    low, high = np.maximum(windows[:, None, :2], objects[:, :2]), np.minimum(windows[:, None, 2:], objects[:, 2:])
    inter = np.prod(np.maximum(high - low, 0.0), axis=2)
    expected = inter / (own[:, None] + other - inter)
    told = np.zeros_like(expected)
    told[view.slots.window_of[view.pairs.slot], view.pairs.object] = view.pairs.iou
    near = 0.5 * (1.0 - 1e-9)
    np.testing.assert_allclose(told, np.where(expected >= near, expected, 0.0), rtol=1e-14)
    if factor == 1.0:
        np.testing.assert_allclose(expected, iou(windows, objects), rtol=1e-14)


def test_pairs_reach_down_to_the_lowest_threshold() -> None:
    batch = random_batch(np.random.default_rng(4), windows=40, objects=8)
    protocol = replace(COCO, match_thresholds=(0.7, 0.25, 0.5))
    view = arrange(make_batch(*batch.tensors()), protocol, None).view(0)
    overlaps = iou(batch.boxes[0], batch.targets[0]["boxes"])
    assert sorted(view.pairs.iou.tolist()) == sorted(overlaps[overlaps >= 0.25].tolist())


def test_detections_without_a_limit_all_count() -> None:
    batch = make_batch(*random_batch(np.random.default_rng(5)).tensors())
    assert arrange(batch, VOC12, None).max_detections >= 2**31 - 1
    assert arrange(batch, COCO, None).max_detections == 100
