"""The parts of the metric one by one, each against its definition: sorting, sums, neighbours, lists and levels."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from stepgrad.errors import ConfigError
from stepgrad.kernels.edited_ap import edited_sum, new_lift
from stepgrad.kernels.exact_sum import add, add_multiple, add_pair, differ
from stepgrad.kernels.matching import ABSENT, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE, Rule, overlap_pairs, reaches
from stepgrad.kernels.overlaps import _block_bounds, _spatial_key, spatial_slots
from stepgrad.kernels.ranked_list import counted_above, new_edits, put_edit, take_edit, tp_above
from stepgrad.kernels.sorting import descending_order
from stepgrad.metric.arrange import layout_of
from stepgrad.metric.mean_ap import check_nms_threshold, mean_over_classes, resolve_protocol, result_of
from stepgrad.metric.protocol import COCO, PROTOCOLS, VOC07, VOC12, Protocol
from stepgrad.reference.boxes import coverage, iou
from stepgrad.reference.nms import by_score, neighbour_sets
from tests.kernels.lists import lists_of
from tests.scenes import Array, clustered_boxes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_are_ordered_by_value_and_then_by_index(dtype: type) -> None:
    rng = np.random.default_rng(1)
    tiny, large = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    special = np.array([0.0, -0.0, tiny, -tiny, large, -large, 1.0, -1.0, 0.0], dtype=dtype)
    for scores in (special, rng.normal(size=200).astype(dtype), rng.integers(-2, 3, 100).astype(dtype), special[:0]):
        assert descending_order(scores).tolist() == by_score(scores.tolist())


def test_pairs_of_doubles_hold_sums_of_precisions_exactly() -> None:
    rng = np.random.default_rng(2)
    precisions = [float(a) / float(b) for a, b in zip(rng.integers(1, 99, 60), rng.integers(99, 999, 60), strict=True)]
    hi, lo, exact = 0.0, 0.0, Fraction(0)
    for count, x in zip(rng.integers(0, 5, 60).tolist(), precisions, strict=True):
        hi, lo = add_multiple(hi, lo, count, x)
        exact += count * Fraction(x)
        assert Fraction(hi) + Fraction(lo) == exact
        assert hi == float(exact)
    other_hi, other_lo = add(0.0, 0.0, precisions[0])
    other_hi, other_lo = add(other_hi, other_lo, precisions[1])
    both = add_pair(hi, lo, other_hi, other_lo)
    assert Fraction(both[0]) + Fraction(both[1]) == exact + Fraction(precisions[0]) + Fraction(precisions[1])
    assert add_multiple(hi, lo, 0, 0.3) == (hi, lo)
    large = add_multiple(0.0, 0.0, 2**26 - 1, precisions[2])
    assert Fraction(large[0]) + Fraction(large[1]) == (2**26 - 1) * Fraction(precisions[2])


def test_sums_differ_when_rounding_cannot_explain_it() -> None:
    ulp = 2.0**-52
    assert not differ(1.0, 0.0, 1.0, 0.0)
    assert not differ(1.0, 0.0, 1.0 + 2 * ulp, 0.0)  # a rounding of both
    assert differ(1.0, 0.0, 1.0 + 4 * ulp, 0.0)
    assert differ(1.0 + 4 * ulp, 0.0, 1.0, 0.0)
    assert differ(1.0, 4 * ulp, 1.0, -4 * ulp)


def neighbours(boxes: Array, offsets: list[int], threshold: float) -> list[set[int]]:
    """The sets that the bit rows stand for, by window."""
    layout = layout_of(boxes, np.array(offsets, dtype=np.int64), threshold, 1)
    slots, rows = layout.slots, layout.rows
    found: list[set[int]] = [set() for _ in boxes]
    for slot, window in enumerate(slots.window_of.tolist()):
        assert window < 0 or slots.slot_of[window] == slot
        for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
            word, bits = int(rows.words[entry]), int(rows.bits[entry])
            assert bits
            found[window] |= {int(slots.window_of[64 * word + b]) for b in range(64) if bits >> b & 1}
    return found


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


def test_windows_are_laid_out_in_stripes() -> None:
    rng = np.random.default_rng(5)
    low = rng.integers(0, 40, size=(300, 2)).astype(np.float64)
    boxes = np.concatenate([low, low + rng.integers(1, 9, size=(300, 2))], axis=1)
    keys = _spatial_key(boxes, 20, 300)
    middle = (boxes[20:, :2] + boxes[20:, 2:]) / 2
    share = (middle - middle.min(axis=0)) / (middle.max(axis=0) - middle.min(axis=0))
    stripes = 2.0  # the square root of 280 windows / 64, rounded down
    expected = 2 * np.minimum(np.floor(share[:, 0] * stripes), stripes - 1) + share[:, 1]
    np.testing.assert_allclose(keys, expected, rtol=1e-12)
    for flat in ([0, 2], [1, 3]):  # in one column, or in one row
        line = boxes.copy()
        line[:, flat] = [0.0, 1.0]
        assert np.isfinite(_spatial_key(line, 0, 300)).all()
    order = np.argsort(-keys, kind="stable")  # any order will do
    slots = spatial_slots(boxes, np.array([0, 20, 300]), lambda k: np.argsort(-k, kind="stable").astype(np.int32))
    assert slots.window_of[:20].tolist() == list(range(20))
    assert (slots.window_of[20:64] == -1).all()
    assert slots.window_of[64:344].tolist() == (20 + order).tolist()
    assert slots.image_of_word.tolist() == [0, 1, 1, 1, 1, 1]


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
        n = overlap_pairs(
            given, from_corners, order, 10, 50, target, -1.0, crowd, pixel_offset, lowest, windows, values
        )
        assert dict(zip(windows[:n].tolist(), values[:n].tolist(), strict=True)) == expected


def test_threshold_is_reached_by_the_rule_of_the_protocol() -> None:
    half, more = 0.5, np.nextafter(0.5, 1.0)
    assert reaches(half, Rule(0.5, True, 0))
    assert not reaches(half, Rule(0.5, False, 0))
    assert reaches(more, Rule(0.5, False, 0))
    assert not reaches(half, Rule(more, True, 0))
    assert reaches(half, Rule(0.5, False, 1))  # COCO's rule takes equality whatever is said
    assert reaches(1.0 - 1e-10, Rule(1.0, True, 1))  # and never asks for more than this
    assert not reaches(1.0 - 1e-10, Rule(1.0, True, 0))
    assert not reaches(1.0 - 2e-10, Rule(1.0, True, 1))


def summed(hits: list[bool], cumulative: Array) -> float:
    """sum_k count_k p_k of a list of true (True) and false positives, from the definition."""
    ranks = [r for r, hit in enumerate(hits, 1) if hit]
    total, largest = Fraction(0), 0.0
    for k in range(len(ranks), 0, -1):
        largest = max(largest, k / ranks[k - 1])
        total += Fraction(largest) * int(cumulative[k] - cumulative[k - 1])
    return float(total)


def edited(roles: Array, moves: dict[int, tuple[int, int]]) -> list[bool]:
    """The list after edits: key 2 p inserts above position p, key 2 p + 1 changes what is there."""
    hits: list[bool] = []
    for p in range(len(roles) + 1):
        tp, fp = moves.get(2 * p, (0, 0))
        hits += [True] * tp + [False] * fp
        if p < len(roles):
            tp, fp = moves.get(2 * p + 1, (0, 0))
            hits += [True] * ((roles[p] == TRUE_POSITIVE) + tp) + [False] * ((roles[p] == FALSE_POSITIVE) + fp)
    return hits


@pytest.mark.parametrize("T", [8, 130])
@pytest.mark.parametrize("levels", [None, 11])
def test_sum_after_edits_is_that_of_the_edited_list(T: int, levels: int | None) -> None:
    """Long lists are summed from tables, short ones term by term; both are a fresh sum to the last bit."""
    rng = np.random.default_rng([T, 8])
    roles = np.full(2 * T, FALSE_POSITIVE, dtype=np.int8)
    roles[rng.permutation(2 * T)[:T]] = TRUE_POSITIVE
    roles[rng.permutation(2 * T)[: T // 4]] = IGNORED
    roles[rng.permutation(2 * T)[: T // 4]] = ABSENT
    cumulative = np.cumsum(replace(VOC12, recall_levels=levels).level_counts(T + 9)[0])
    ranked = lists_of(roles, cumulative)
    assert edited_sum(ranked, new_lift(ranked), 0, new_edits(4))[0] == summed(edited(roles, {}), cumulative)
    lift, edits = new_lift(ranked), new_edits(8)
    hits, misses = (np.flatnonzero(roles == role) for role in (TRUE_POSITIVE, FALSE_POSITIVE))
    for trial in range(40):
        out = [int(b) for b in rng.choice(hits, 1 + trial % 2, replace=False)]
        away = [int(b) for b in rng.choice(misses, trial % 5 + (trial % 7 == 0) * len(misses) // 3, replace=False)]
        moves = {2 * b + 1: (-1, 0) for b in out} | {2 * b + 1: (0, -1) for b in away}
        target = 2 * int(rng.integers(2 * T + 1))
        moves[target] = (trial % 2, trial % 4)  # a true positive goes in above false ones
        changes = new_edits(len(moves) + 1)
        for key in rng.permutation(list(moves)).tolist():
            put_edit(changes, key, *moves[key])
        assert edited_sum(ranked, lift, 0, changes)[0] == summed(edited(roles, moves), cumulative), moves
    put_edit(edits, 7, 1, 0)
    put_edit(edits, 3, 0, 1)
    put_edit(edits, 5, 0, 0)  # nothing
    put_edit(edits, 9, -1, 1)
    assert (edits.size[0], edits.key[:3].tolist()) == (3, [3, 7, 9])
    take_edit(edits, 7)
    assert (edits.size[0], edits.key[:2].tolist(), edits.tp[:2].tolist(), edits.fp[:2].tolist()) == (
        *(2, [3, 9]),
        *([0, -1], [1, 1]),
    )


def test_list_numbers_what_is_counted() -> None:
    first = np.array([FALSE_POSITIVE, TRUE_POSITIVE, ABSENT, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE], dtype=np.int8)
    second = np.where(first == TRUE_POSITIVE, [FALSE_POSITIVE] * 5 + [TRUE_POSITIVE], first)
    ranked = lists_of(np.stack([first, second, first]), np.arange(4))
    assert ranked.T.tolist() == [2, 1, 2]
    assert [row[: T + 1] for row, T in zip(ranked.rank.tolist(), [2, 1], strict=False)] == [[0, 2, 4], [0, 4]]
    assert [row[: T + 1] for row, T in zip(ranked.tp_position.tolist(), [2, 1], strict=False)] == [[-1, 1, 5], [-1, 5]]
    assert [tp_above(ranked, 0, p) for p in range(7)] == [0, 0, 1, 1, 1, 1, 2]
    assert [tp_above(ranked, 1, p) for p in range(7)] == [0, 0, 0, 0, 0, 0, 1]
    assert [counted_above(ranked, 1, p) for p in range(7)] == [0, 1, 2, 2, 3, 3, 4]
    assert ranked.same_as.tolist() == [0, 1, 0]


@pytest.mark.parametrize("levels", [2, 11, 101])
@pytest.mark.parametrize("P", [0, 1, 2, 3, 7, 10, 30])
def test_levels_are_served_by_the_first_true_positive_that_reaches_them(P: int, levels: int) -> None:
    for grid in ("exact", "float"):
        counts, norm = replace(VOC07, recall_levels=levels, recall_grid=grid).level_counts(P)
        assert norm == levels
        expected = [0] * (P + 1)
        for q in range(levels):
            step = 1.0 / (levels - 1)
            level = Fraction(q, levels - 1) if grid == "exact" else (q * step if q < levels - 1 else 1.0)
            reached = [k for k in range(1, P + 1) if (Fraction(k, P) if grid == "exact" else k / P) >= level]
            if reached:
                expected[reached[0]] += 1
        assert counts.tolist() == expected
    counts, norm = VOC12.level_counts(P)
    assert (counts.tolist(), norm) == ([0] + [1] * P, max(P, 1))


@pytest.mark.parametrize(
    ("name", "other", "differences"),
    [
        ("voc12", "voc07", {"recall_levels": None}),
        ("voc07-devkit", "voc07", {"pixel_offset": 1.0}),
        ("voc12-devkit", "voc12", {"pixel_offset": 1.0}),
        ("voc07-python", "voc07-devkit", {"recall_grid": "float", "equality": False}),
    ],
)
def test_protocols_of_voc_differ_in_what_their_names_say_alone(
    name: str, other: str, differences: dict[str, Any]
) -> None:
    assert PROTOCOLS[name] == replace(PROTOCOLS[other], name=name, **differences)


def test_coco_has_the_thresholds_levels_and_limit_of_pycocotools() -> None:
    theirs = pytest.importorskip("pycocotools.cocoeval").Params("bbox")
    assert COCO.match_thresholds == tuple(theirs.iouThrs)
    assert COCO.recall_levels == len(theirs.recThrs)
    assert COCO.max_detections == theirs.maxDets[-1]


BAD = [
    *({"recall_levels": 1}, {"match_thresholds": ()}, {"match_thresholds": (0.0,)}, {"match_thresholds": (0.5, 1.1)}),
    *({"max_detections": 0}, {"recall_grid": "fine"}, {"duplicates": "all"}, {"difficult": "skip"}),
    {"absent_classes": "ignore"},
]


@pytest.mark.parametrize("fields", BAD, ids=str)
def test_protocols_that_make_no_sense_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(VOC12, **fields)  # type: ignore[arg-type]


def test_protocols_at_the_edge_of_sense_are_allowed() -> None:
    edge = Protocol("edge", recall_levels=2, match_thresholds=(1.0, 1e-9), max_detections=1)
    assert edge.level_counts(3)[0].tolist() == [0, 1, 0, 1]


def test_mean_over_classes_counts_or_leaves_out_absent_ones() -> None:
    ap, present = np.array([0.1, 0.7, 0.0]), np.array([True, True, False])
    assert mean_over_classes(ap, present, "zero") == (0.1 + 0.7) / 3
    assert mean_over_classes(ap, present, "skip") == (0.1 + 0.7) / 2
    assert mean_over_classes(ap, ~present & False, "skip") == 0.0
    assert np.isnan(result_of(ap, present, "skip").ap.numpy()).tolist() == [False, False, True]
    assert result_of(ap, present, "zero").ap.tolist() == ap.tolist()
    assert float(result_of(ap, present, "zero")) == result_of(ap, present, "zero").map


def test_thresholds_given_replace_those_of_the_protocol() -> None:
    assert resolve_protocol("coco", 0.5, None).match_thresholds == (0.5,)
    assert resolve_protocol("voc12", [0.5, 0.75], "skip").match_thresholds == (0.5, 0.75)
    assert resolve_protocol("voc12", None, "skip").absent_classes == "skip"
    assert resolve_protocol("coco", None, None) is COCO
    for fine in (None, 0.0, 1.0, 0.3):
        check_nms_threshold(fine)
    for bad in (-1e-9, 1.0 + 1e-9, float("nan")):
        with pytest.raises(ConfigError, match="nms_threshold"):
            check_nms_threshold(bad)
