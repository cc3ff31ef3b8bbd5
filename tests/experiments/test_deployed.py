"""Thresholds of the experiment on deployed metrics: the cheapest, and the lowest that is precise enough."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from experiments.deployed.heads import LABELS, RATES, START_RATE, Way, best_of, ways_on
from experiments.deployed.measure import MISS, PRECISION, ClassList, cheapest, precise
from experiments.deployed.table import render
from experiments.results import save_runs


def random_list(seed: int) -> ClassList:
    """Few different scores, so that many are equal."""
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.integers(0, 6, rng.integers(0, 15)))[::-1].astype(np.float64)
    hits = rng.random(len(scores)) < 0.7
    return ClassList(scores, hits, int(hits.sum() + rng.integers(0, 4)))


def cuts(ranked: ClassList) -> list[float]:
    return [math.inf, *np.unique(ranked.scores).tolist()]


@pytest.mark.parametrize("seed", range(100))
def test_no_threshold_costs_less_than_the_cheapest(seed: int) -> None:
    ranked = random_list(seed)
    assert ranked.cost(cheapest(ranked)) == min(ranked.cost(cut) for cut in cuts(ranked))


@pytest.mark.parametrize("seed", range(100))
def test_the_precise_threshold_is_the_lowest_that_is_precise_enough(seed: int) -> None:
    ranked = random_list(seed)
    counts = {cut: ranked.at(cut) for cut in cuts(ranked)[1:]}
    enough = [cut for cut, (found, alarms) in counts.items() if found / (found + alarms) >= PRECISION]
    assert precise(ranked) == min(enough, default=math.inf)


def test_an_empty_list_passes_nothing_and_misses_all() -> None:
    ranked = ClassList(np.zeros(0), np.zeros(0, dtype=np.bool_), 3)
    assert cheapest(ranked) == precise(ranked) == math.inf
    assert ranked.cost(math.inf) == 3 * MISS


def test_the_table_compares_what_held_out_images_chose(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    starts = [Way(labels, START_RATE, 0) for labels in LABELS]
    ways = [w for s in starts for m in ("recall", "cost") for tried in ways_on(s, m).values() for w in tried]
    for way in dict.fromkeys([*starts, *ways]):
        better = 2.0 if way.rate == max(RATES) else 1.0  # so the larger rate is chosen
        found = {
            "recall": better,
            "around": better,
            "cost": -better,
            "deployed recall": better,
            "deployed precision": 90.0,
        }
        for phase in ("choose", "final"):
            save_runs(file, phase, {"set": "voc", "seed": 0, **vars(way), "found": found})
    assert best_of({ways[0]: {"cost": 2.0}, ways[1]: {"cost": 1.0}}, "cost") == ways[1]
    (row,) = [line for line in render(file).splitlines()[:8] if "linear, hard" in line]
    assert row == "| VOC, YOLOv8n, linear, hard | 1.0 | 2.0 | 2.0 | 2.0 | +0.0 | +0.0 |"
