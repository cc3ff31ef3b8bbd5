"""Nearest steps within one ranked list, against moving every detection past every other."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from stepgrad.kernels.edited_ap import new_lift
from stepgrad.kernels.matching import ABSENT, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE
from stepgrad.kernels.rank_steps import (
    NONE,
    GapSteps,
    Ties,
    envelope_of,
    false_positive_steps,
    new_gap_steps,
    tie_groups,
    true_positive_steps,
)
from stepgrad.kernels.ranked_list import Ranked, new_edits, tp_above
from stepgrad.metric.protocol import VOC12
from tests.kernels.lists import lists_of
from tests.kernels.test_small_parts import summed
from tests.scenes import Array

LEVELS = [None, 3, 11]


class List:
    """A random ranked list of hits, misses and windows that do not count, with ties."""

    def __init__(self, seed: int, levels: int | None, n: int = 14) -> None:
        rng = np.random.default_rng([seed, 91])
        weights = [0.35, 0.35, 0.15, 0.15]
        self.roles = rng.choice([FALSE_POSITIVE, TRUE_POSITIVE, IGNORED, ABSENT], n, p=weights).astype(np.int8)
        self.scores = np.sort(rng.integers(0, n if seed % 2 else 2 * n, n))[::-1].astype(np.float64)
        found = int((self.roles == TRUE_POSITIVE).sum())
        self.cumulative = np.cumsum(replace(VOC12, recall_levels=levels).level_counts(found + seed % 3)[0])
        self.order = np.arange(n, dtype=np.int32)
        self.ties = tie_groups(self.scores, self.order)
        self.ranked = lists_of(self.roles, self.cumulative)

    def steps(self) -> tuple[GapSteps, GapSteps]:
        """Of false and of true positives."""
        lift, edits = new_lift(self.ranked), new_edits(8)
        fp, tp = new_gap_steps(self.ranked), new_gap_steps(self.ranked)
        false_positive_steps(self.ranked, lift, 0, edits, self.ties, fp)
        true_positive_steps(self.ranked, lift, 0, edits, self.ties, tp)
        return fp, tp

    def moved(self, p: int, gap: int) -> float:
        """The sum with the detection at position p just above what is at `gap`."""
        hits = [(q, self.roles[q]) for q in range(len(self.roles)) if q != p]
        hits.insert(sum(q < gap for q, _ in hits), (p, self.roles[p]))
        return summed(
            [role == TRUE_POSITIVE for _, role in hits if role in (TRUE_POSITIVE, FALSE_POSITIVE)], self.cumulative
        )

    def nearest(self, p: int, rising: bool) -> tuple[int, float]:
        """The first group of equal scores beyond which the sum is another, by its first position; -1 if there is none."""
        start, end = self.ties
        here = self.moved(p, p)
        groups = sorted(set(start.tolist()), reverse=rising)
        own = start[p]
        for g in groups:
            if (g > own) if rising else (g < own):
                continue
            beyond = self.moved(p, g if rising else int(end[g]) + 1)
            if abs(beyond - here) > 2.0**-50 * here:
                return g, beyond
        return NONE, here


def group_of(ties: Ties, position: int) -> int:
    return NONE if position == NONE else int(ties.start[position])


@pytest.mark.parametrize("levels", LEVELS)
def test_steps_of_false_positives_are_the_first_moves_that_change_the_sum(levels: int | None) -> None:
    for seed in range(40):
        case = List(seed, levels)
        steps, _ = case.steps()
        for p in np.flatnonzero(case.roles == FALSE_POSITIVE).tolist():
            compare(case, steps, int(tp_above(case.ranked, 0, p)), p)


@pytest.mark.parametrize("levels", LEVELS)
def test_steps_of_true_positives_are_the_first_moves_that_change_the_sum(levels: int | None) -> None:
    for seed in range(40):
        case = List(seed, levels)
        _, steps = case.steps()
        for p in np.flatnonzero(case.roles == TRUE_POSITIVE).tolist():
            compare(case, steps, int(tp_above(case.ranked, 0, p)) + 1, p)


def compare(case: List, steps: GapSteps, i: int, p: int) -> None:
    for position, value, rising in (
        (steps.up[0, i], steps.up_sum[0, i], True),
        (steps.down[0, i], steps.down_sum[0, i], False),
    ):
        group, beyond = case.nearest(p, rising)
        assert group_of(case.ties, int(position)) == group
        if group != NONE:
            assert value == beyond


@pytest.mark.parametrize("scores", [[], [1.0], [3.0, 3.0, 2.0, 1.0, 1.0, 1.0], [2.0, 2.0], [3.0, 2.0, 1.0]], ids=str)
def test_groups_of_equal_scores_begin_and_end_where_they_do(scores: list[float]) -> None:
    order = np.arange(len(scores), dtype=np.int32)[::-1].copy()  # the scores of the order, not of the slots
    ties = tie_groups(np.array(scores[::-1]), order)
    equal = [[q for q in range(len(scores)) if scores[q] == s] for s in scores]
    assert ties.start.tolist() == [min(group) for group in equal]
    assert ties.end.tolist() == [max(group) for group in equal]


def envelope(ranked: Ranked, cumulative: Array) -> list[tuple[float, int, int, int]]:
    """Value, first and last maximiser and nearest weighted level of each j, from the definition."""
    T = int(ranked.T[0])
    precision = [Fraction(0), *(Fraction(k, int(ranked.rank[0, k])) for k in range(1, T + 1))]
    found = []
    for j in range(1, T + 1):
        value = max(precision[j:])
        best = [k for k in range(j, T + 1) if precision[k] == value]
        weighted = [k for k in range(1, j + 1) if cumulative[k] > cumulative[k - 1]]
        found.append((float(value), best[0], best[-1], max(weighted, default=0)))
    return found


@pytest.mark.parametrize("levels", LEVELS)
def test_the_envelope_is_the_largest_precision_from_here_on(levels: int | None) -> None:
    for seed in range(20):
        case = List(seed, levels)
        env = envelope_of(case.ranked, 0)
        told = list(zip(*(a[1 : case.ranked.T[0] + 1].tolist() for a in env), strict=True))
        assert told == envelope(case.ranked, case.cumulative)
