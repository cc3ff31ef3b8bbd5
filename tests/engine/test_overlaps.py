"""Order, neighbours, and overlaps of windows with objects, each against its definition."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from stepgrad.engine.classes import prepare
from stepgrad.engine.neighbours import _block_bounds, _place_key, image_rows, neighbours_of
from stepgrad.engine.order import descending_order
from stepgrad.engine.overlaps import Areas, _by_left_edge, _near_corners, _overlaps_with
from stepgrad.metric.batch import make_batch
from stepgrad.metric.protocol import COCO, VOC12, VOC12_DEVKIT, Protocol
from stepgrad.reference.boxes import coverage, iou
from stepgrad.reference.nms import by_score, neighbour_sets
from tests.scenes import Array, clustered_boxes, random_batch


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_are_ordered_by_value_and_then_by_index(dtype: type) -> None:
    rng = np.random.default_rng(1)
    tiny, large = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    special = np.array([0.0, -0.0, tiny, -tiny, large, -large, 1.0, -1.0, 0.0], dtype=dtype)
    for scores in (special, rng.normal(size=200).astype(dtype), rng.integers(-2, 3, 100).astype(dtype), special[:0]):
        assert descending_order(scores).tolist() == by_score(scores.tolist())


def neighbours(boxes: Array, offsets: list[int], threshold: float) -> list[set[int]]:
    """The sets that the bit rows stand for, by window."""
    near = neighbours_of(boxes, np.array(offsets, dtype=np.int64), threshold, 1)
    sets: list[set[int]] = [set() for _ in boxes]
    for number, index in enumerate(near.index_of.tolist()):
        assert index < 0 or near.number_of[index] == number
        for entry in range(near.ptr[number], near.ptr[number + 1]):
            word, bits = int(near.words[entry]), int(near.bits[entry])
            assert bits
            sets[index] |= {int(near.index_of[64 * word + b]) for b in range(64) if bits >> b & 1}
    return sets


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("off_grid", [False, True])
def test_neighbours_of_several_images(threshold: float, off_grid: bool) -> None:
    """Many overlaps are exactly at the threshold; the windows of the second image fill three words."""
    rng = np.random.default_rng(3)
    offsets = [0, 5, 145, 145, 150]
    boxes = clustered_boxes(rng, rng.integers(6, 60, size=(6, 2)), 150, jitter=3)
    if off_grid:
        boxes += rng.uniform(-0.4, 0.4, size=boxes.shape)
    found = neighbours(boxes, offsets, threshold)
    for start, stop in pairwise(offsets):
        expected = neighbour_sets(boxes[start:stop], threshold)
        assert found[start:stop] == [{start + b for b in near} for near in expected]


def test_neighbours_of_a_crowd_larger_than_the_room_first_made() -> None:
    rng = np.random.default_rng(4)
    boxes = np.array([0.0, 0.0, 50.0, 50.0]) + rng.uniform(0.0, 1.0, size=(513, 4))
    assert neighbours(boxes, [0, 513], 0.5) == [set(range(513)) - {b} for b in range(513)]


@pytest.mark.parametrize("side", [0.1, 0.3, 1 / 3, 0.7])
def test_overlap_of_exactly_the_threshold_is_no_neighbour(side: float) -> None:
    boxes = np.array([[0.0, 0.0, side, 1.0], [0.0, 0.0, side, 0.5], [0.0, 0.0, side, np.nextafter(0.5, 1.0)]])
    exact = float(iou(boxes[:1], boxes[1:2])[0, 0])
    assert neighbours(boxes, [0, 3], exact)[0] == {b for b in (1, 2) if iou(boxes[:1], boxes[b : b + 1])[0, 0] > exact}


def test_windows_are_numbered_in_stripes_and_images_from_multiples_of_64() -> None:
    rng = np.random.default_rng(5)
    low = rng.integers(0, 40, size=(300, 2)).astype(np.float64)
    boxes = np.concatenate([low, low + rng.integers(1, 9, size=(300, 2))], axis=1)
    keys = _place_key(boxes, 20, 300)
    middle = (boxes[20:, :2] + boxes[20:, 2:]) / 2
    share = (middle - middle.min(axis=0)) / (middle.max(axis=0) - middle.min(axis=0))
    stripes = 2.0  # the square root of 280 windows / 64, rounded down
    expected = 2 * np.minimum(np.floor(share[:, 0] * stripes), stripes - 1) + share[:, 1]
    np.testing.assert_allclose(keys, expected, rtol=1e-12)
    for flat in ([0, 2], [1, 3]):  # in one column, or in one row
        line = boxes.copy()
        line[:, flat] = [0.0, 1.0]
        assert np.isfinite(_place_key(line, 0, 300)).all()
    near = neighbours_of(boxes, np.array([0, 20, 300]), 0.5, 1)
    assert near.index_of[:20].tolist() == list(range(20))  # few windows stay in their order
    assert (near.index_of[20:64] == -1).all()
    assert near.index_of[64:344].tolist() == (20 + np.argsort(-keys, kind="stable")).tolist()
    assert near.image_of_word.tolist() == [0, 1, 1, 1, 1, 1]


def test_blocks_are_bounded_by_their_windows() -> None:
    rng = np.random.default_rng(6)
    low = rng.uniform(-50, 50, size=(70, 2))
    boxes = np.concatenate([low, low + rng.uniform(1, 9, size=(70, 2))], axis=1)
    window_of = np.full(192, -1, dtype=np.int32)
    window_of[64:134] = rng.permutation(70)
    columns, bounds = _block_bounds(boxes, window_of, 1, 3)
    for block, part in ((0, window_of[64:128]), (1, window_of[128:134])):
        own = boxes[part]
        assert bounds[block].tolist() == [*own[:, :2].min(axis=0), *own[:, 2:].max(axis=0)]
        assert np.array_equal(columns[:4, 64 * block : 64 * block + len(part)].T, own)
        areas = (own[:, 2] - own[:, 0]) * (own[:, 3] - own[:, 1])
        assert np.array_equal(columns[4, 64 * block : 64 * block + len(part)], areas)
    assert (columns[:4, 70:] == np.inf).all()  # padding overlaps nobody


@pytest.mark.parametrize("pixel_offset", [0.0, 1.0])
@pytest.mark.parametrize("crowd", [False, True])
@pytest.mark.parametrize("lowest", [0.0, 0.3, 0.7])
def test_windows_near_an_object_are_found_sorted_or_not(lowest: float, crowd: bool, pixel_offset: float) -> None:
    rng = np.random.default_rng(7)
    boxes = clustered_boxes(rng, np.array([[10, 10], [14, 10]]), 60, jitter=4)
    boxes[:, 0] -= rng.integers(0, 3, 60)  # some are wider
    by_left = np.argsort(boxes[10:50, 0], kind="stable").astype(np.int32) + 10
    all_sorted = np.concatenate([np.arange(10), by_left, np.arange(50, 60)]).astype(np.int32)
    target = np.array([8.0, 6.0, 15.0, 13.0])
    overlap = (coverage if crowd else iou)(boxes, target[None], pixel_offset)[:, 0]
    touching = overlap > 0.0
    expected = {b: overlap[b] for b in range(10, 50) if touching[b] and overlap[b] >= lowest}
    unsorted = np.zeros(0, dtype=np.int32)
    from_corners = np.zeros(0)
    for order, given in ((unsorted, boxes), (all_sorted, boxes[all_sorted])):
        windows, values = np.empty(60, dtype=np.int32), np.empty(60)
        n = _overlaps_with(
            given, from_corners, order, 10, 50, target, -1.0, crowd, pixel_offset, lowest, windows, values
        )
        assert dict(zip(windows[:n].tolist(), values[:n].tolist(), strict=True)) == expected


def test_rows_of_a_crowd_find_room_though_the_first_are_shorter() -> None:
    """Ten blocks fill the room first made with the eighth, but for the row of a window that overlaps nobody."""
    blocks = 10
    boxes = np.array([0.0, 0.0, 50.0, 50.0]) + np.random.default_rng(5).uniform(0.0, 1.0, size=(64 * blocks, 4))
    boxes[0] = [20.0, 20.0, 21.0, 21.0]
    entries, words, bits = image_rows(boxes, np.arange(64 * blocks, dtype=np.int32), 0, blocks, 0.5)
    assert entries.tolist() == [0] + [blocks] * (64 * blocks - 1)
    assert len(words) == len(bits) == entries.sum()


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
    expected = [np.arange(12), np.arange(12, 20), np.arange(20, 30)]
    for i in (0, 2):  # the second image has no objects: any order will do
        expected[i] = expected[i][np.argsort(boxes[expected[i], 0], kind="stable")]
    assert _by_left_edge(boxes, offsets, np.append(few, np.int32(2))).tolist() == np.concatenate(expected).tolist()


@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-9, 1.5])
def test_overlaps_are_those_of_the_areas_written(factor: float) -> None:
    """Sorted by their left edge or not: how far a window may lie follows from its corners only where its area does."""
    rng = np.random.default_rng(3)
    batch = random_batch(rng, windows=60, objects=60, clusters=1)
    while len(batch.targets[0]["labels"]) <= 16:
        batch = random_batch(rng, windows=60, objects=60, clusters=1)
    windows, objects = batch.boxes[0], batch.targets[0]["boxes"]
    own, other = (np.prod(b[:, 2:] - b[:, :2], axis=1) * factor for b in (windows, objects))
    one = prepare(make_batch(*batch.tensors()), VOC12, None, threads=1, areas=Areas(own, other)).one_class(0)
    low, high = np.maximum(windows[:, None, :2], objects[:, :2]), np.minimum(windows[:, None, 2:], objects[:, 2:])
    inter = np.prod(np.maximum(high - low, 0.0), axis=2)
    expected = inter / (own[:, None] + other - inter)
    told = np.zeros_like(expected)
    told[one.neighbours.index_of[one.objects.pair_window], one.objects.pair_object] = one.objects.pair_overlap
    np.testing.assert_allclose(told, np.where(expected >= 0.5 * (1.0 - 1e-9), expected, 0.0), rtol=1e-14)
    if factor == 1.0:
        np.testing.assert_allclose(expected, iou(windows, objects), rtol=1e-14)


def test_pairs_reach_down_to_the_lowest_threshold() -> None:
    batch = random_batch(np.random.default_rng(4), windows=40, objects=8)
    protocol = replace(COCO, match_thresholds=(0.7, 0.25, 0.5))
    one = prepare(make_batch(*batch.tensors()), protocol, None, threads=1).one_class(0)
    overlaps = iou(batch.boxes[0], batch.targets[0]["boxes"])
    assert sorted(one.objects.pair_overlap.tolist()) == sorted(overlaps[overlaps >= 0.25].tolist())


def test_detections_without_a_limit_all_count() -> None:
    batch = make_batch(*random_batch(np.random.default_rng(5)).tensors())
    assert prepare(batch, VOC12, None, threads=1).one_class(0).rules.max_detections >= 2**31 - 1
    assert prepare(batch, COCO, None, threads=1).one_class(0).rules.max_detections == 100
