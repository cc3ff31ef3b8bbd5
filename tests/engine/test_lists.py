"""Ranked lists, and their metrics after edits, against lists made anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stepgrad.engine.classes import prepare
from stepgrad.engine.exact_sum import add, add_multiple, differ
from stepgrad.engine.lists import (
    counted_above,
    judge_detections,
    new_edits,
    put_edit,
    tp_above,
    value_of,
    values_of_class,
)
from stepgrad.engine.matching import ABSENT, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE, OneClass
from stepgrad.engine.what_if import Scene, make_scene
from stepgrad.metric.batch import make_batch
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AP, F1, LogAverageMissRate, RecallAtPrecision
from stepgrad.metric.protocol import VOC12, Protocol
from tests.scenes import Array, Batch

METRICS: dict[str, ListMetric] = {
    "ap": AP(),
    "f1": F1(),
    "recall": RecallAtPrecision(0.6),
    "miss rate": LogAverageMissRate(),
}


def list_of(
    roles: Sequence[int], protocol: Protocol = VOC12, metric: ListMetric = METRICS["ap"], more: int = 0
) -> OneClass:
    """A class whose windows, by decreasing score, have these roles; `more` objects are found by none.

    Every window has its own place; one that is absent lies on the window of lower index, which suppresses it. Of false
    positives every second reaches an object that is found already, so that it is a contender too.
    """
    boxes, objects, difficult = [], [], []
    for p, role in enumerate(roles):
        box = [30.0 * p, 0.0, 30.0 * p + 20.0, 20.0]
        if role == ABSENT or (role == FALSE_POSITIVE and p % 2 and roles[p - 1] == TRUE_POSITIVE):
            box = [*boxes[-1][:2], boxes[-1][2], boxes[-1][3] - (1.0 if role == ABSENT else 10.0)]
        boxes.append(box)
        if role in (TRUE_POSITIVE, IGNORED):
            objects.append(box)
            difficult.append(role == IGNORED)
    for g in range(more):
        objects.append([30.0 * g, 50.0, 30.0 * g + 20.0, 70.0])
        difficult.append(False)
    target = {
        "boxes": np.array(objects).reshape(-1, 4),
        "labels": np.zeros(len(objects), dtype=np.int64),
        "difficult": np.array(difficult, dtype=np.bool_),
    }
    scores = -np.arange(len(roles), dtype=np.float64)[:, None]
    batch = Batch([scores], [np.array(boxes).reshape(-1, 4)], [target])
    return prepare(make_batch(*batch.tensors()), protocol, 0.6, threads=1, metric=metric).one_class(0)


def random_roles(rng: np.random.Generator, T: int) -> np.ndarray:
    roles = rng.choice([FALSE_POSITIVE, TRUE_POSITIVE, IGNORED, ABSENT], 2 * T, p=[0.4, 0.4, 0.1, 0.1]).astype(np.int8)
    roles[0] = TRUE_POSITIVE
    return roles


def edited(roles: Array, moves: dict[int, tuple[int, int]]) -> np.ndarray:
    """Hits of the list after edits: key 2 p inserts above position p, key 2 p + 1 changes what is there."""
    hits: list[bool] = []
    for p in range(len(roles) + 1):
        tp, fp = moves.get(2 * p, (0, 0))
        hits += [True] * tp + [False] * fp
        if p < len(roles):
            tp, fp = moves.get(2 * p + 1, (0, 0))
            hits += [True] * ((roles[p] == TRUE_POSITIVE) + tp) + [False] * ((roles[p] == FALSE_POSITIVE) + fp)
    return np.array(hits, dtype=np.bool_)


def random_edits(rng: np.random.Generator, roles: np.ndarray, trial: int) -> dict[int, tuple[int, int]]:
    """Some detections leave, some come; of those at one place a true positive stands above false ones."""
    hits, misses = (np.flatnonzero(roles == role) for role in (TRUE_POSITIVE, FALSE_POSITIVE))
    out = rng.choice(hits, min(1 + trial % 2, len(hits)), replace=False).tolist()
    away = rng.choice(misses, min(trial % 5 + (trial % 7 == 0) * len(misses) // 3, len(misses)), replace=False).tolist()
    moves = {2 * b + 1: (-1, 0) for b in out} | {2 * b + 1: (0, -1) for b in away}
    return moves | {2 * int(rng.integers(len(roles) + 1)): (trial % 2, trial % 4)}


def value_after(scene: Scene, moves: dict[int, tuple[int, int]], order: Sequence[int]) -> float:
    edits = new_edits(len(moves) + 1)
    for key in order:
        put_edit(edits, key, *moves[key])
    return float(value_of(scene.lists, scene.rules, 0, edits)[0]) / scene.rules.norm


@pytest.mark.parametrize("T", [8, 130])
@pytest.mark.parametrize("name", [*METRICS, "ap at 11 levels"])
def test_the_value_after_edits_is_that_of_the_edited_list(name: str, T: int) -> None:
    rng = np.random.default_rng([T, 8])
    protocol = replace(VOC12, recall_levels=11) if "11" in name else VOC12
    metric = METRICS[name.split(" at ")[0]]
    roles = random_roles(rng, T)
    scene = make_scene(list_of(roles, protocol, metric, more=9))
    P = int((roles == TRUE_POSITIVE).sum()) + 9
    for trial in range(40):
        moves = random_edits(rng, roles, trial) if trial else {}
        found = value_after(scene, moves, rng.permutation(list(moves)).tolist())
        assert found == pytest.approx(metric.of_list(edited(roles, moves), P, 1, protocol), rel=1e-14), moves
        if name.startswith("ap"):  # sums of precisions are exact, so a step can be told from rounding
            assert found == metric.of_list(edited(roles, moves), P, 1, protocol)


def test_edits_of_one_place_add_up_and_what_is_nothing_goes() -> None:
    edits = new_edits(8)
    for key, tp, fp in ((7, 1, 0), (3, 0, 1), (5, 0, 0), (9, -1, 1), (3, 0, 1), (7, -1, 0)):
        put_edit(edits, key, tp, fp)
    assert (edits.size[0], edits.key[:2].tolist()) == (2, [3, 9])
    assert (edits.tp[:2].tolist(), edits.fp[:2].tolist()) == ([0, -1], [2, 1])


def test_a_list_numbers_what_is_counted() -> None:
    roles = [FALSE_POSITIVE, TRUE_POSITIVE, ABSENT, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE, FALSE_POSITIVE]
    one = list_of(roles)
    assert judge_detections(one, one.rules.cumulative)[0].tolist() == [roles]
    lists = make_scene(one).lists
    assert (lists.T.tolist(), lists.rank[0, :3].tolist(), lists.tp_position[0, :3].tolist()) == (
        [2],
        [0, 2, 4],
        [-1, 1, 5],
    )
    assert [tp_above(lists, 0, p) for p in range(8)] == [0, 0, 1, 1, 1, 1, 2, 2]
    assert [counted_above(lists, 0, p) for p in range(8)] == [0, 1, 2, 2, 3, 3, 4, 5]


def test_thresholds_with_the_same_list_are_known() -> None:
    batch = make_batch(
        *Batch(
            [np.array([[3.0], [2.0]])],
            [np.array([[0.0, 0, 10, 10], [0, 30, 10, 40]])],
            [{"boxes": np.array([[0.0, 0, 10, 10], [0, 30, 10, 37]]), "labels": np.zeros(2, dtype=np.int64)}],
        ).tensors()
    )
    protocol = replace(VOC12, match_thresholds=(0.5, 0.6, 0.75, 0.9))
    scene = make_scene(prepare(batch, protocol, None, threads=1).one_class(0))
    assert scene.lists.same_as.tolist() == [0, 0, 2, 2]
    assert scene.judged.fresh[:, 0].tolist() == [True, False, True, False]


def test_values_need_no_search() -> None:
    roles = random_roles(np.random.default_rng(3), 20)
    one = list_of(roles, more=4)
    P = int((roles == TRUE_POSITIVE).sum()) + 4
    assert values_of_class(one)[0] / one.rules.norm == AP().of_list(edited(roles, {}), P, 1, VOC12)
    levels = np.cumsum(replace(VOC12, recall_levels=11).level_counts(P)[0])
    *_, sums, other_sums = judge_detections(one, levels)
    assert sums.tolist() == values_of_class(one).tolist()
    assert other_sums[0] / 11 == AP().of_list(edited(roles, {}), P, 1, replace(VOC12, recall_levels=11))


def test_pairs_of_doubles_hold_sums_of_precisions_exactly() -> None:
    rng = np.random.default_rng(2)
    precisions = [float(a) / float(b) for a, b in zip(rng.integers(1, 99, 60), rng.integers(99, 999, 60), strict=True)]
    hi, lo, exact = 0.0, 0.0, Fraction(0)
    for count, x in zip(rng.integers(0, 5, 60).tolist(), precisions, strict=True):
        hi, lo = add_multiple(hi, lo, count, x)
        exact += count * Fraction(x)
        assert Fraction(hi) + Fraction(lo) == exact
        assert hi == float(exact)
    both = add(hi, lo, precisions[0])
    assert Fraction(both[0]) + Fraction(both[1]) == exact + Fraction(precisions[0])
    assert add_multiple(hi, lo, 0, 0.3) == (hi, lo)
    large = add_multiple(0.0, 0.0, 2**26 - 1, precisions[2])
    assert Fraction(large[0]) + Fraction(large[1]) == (2**26 - 1) * Fraction(precisions[2])


@pytest.mark.parametrize(
    ("pair", "other", "expected"),
    [
        ((1.0, 0.0), (1.0, 0.0), False),
        ((1.0, 0.0), (1.0 + 2 * 2.0**-52, 0.0), False),  # a rounding of both
        ((1.0, 0.0), (1.0 + 4 * 2.0**-52, 0.0), True),
        ((1.0 + 4 * 2.0**-52, 0.0), (1.0, 0.0), True),
        ((1.0, 4 * 2.0**-52), (1.0, -4 * 2.0**-52), True),
    ],
)
def test_sums_differ_when_rounding_cannot_explain_it(pair: Any, other: Any, expected: bool) -> None:
    assert differ(*pair, *other) == expected
