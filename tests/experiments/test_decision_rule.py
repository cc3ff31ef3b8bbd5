"""The control of deployed-metric losses: its counts, and runs on record as a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.coverage import evaluated, made_set
from experiments.deployed import rule
from experiments.records import save_run


def test_costs_and_recall_of_drawn_images_are_those_of_copies() -> None:
    rng = np.random.default_rng(0)
    objects = rng.integers(0, 4, (3, 6)).astype(float)
    found = np.minimum(rng.integers(0, 4, (3, 6)), objects)
    counts = np.stack([found, found + rng.integers(0, 3, (3, 6)), objects], axis=1)
    drawn = np.array([0, 0, 3, 5, 5, 5])
    weights = np.bincount(drawn, minlength=6)[None].astype(float)
    right, passed, there = counts[:, :, drawn].sum(axis=2).T
    cost = 100 * sum((passed - right) + 10 * (there - right)) / 6
    assert rule.value(counts, "cost", weights)[0] == pytest.approx(cost)
    rates = [r / n for r, n in zip(right, there, strict=True) if n]
    assert rule.value(counts, "recall", weights)[0] == pytest.approx(100 * np.mean(rates))


@pytest.mark.parametrize("by_rule", [False, True])
def test_cuts_come_from_the_images_that_choose_and_count_on_the_others(by_rule: bool) -> None:
    choosing, judged = (evaluated(made_set(seed, 150), "voc12") for seed in (3, 4))
    counts = rule.Judged(choosing, judged).counts(rule.WISHES["cost"], by_rule)
    assert counts.shape == (20, 3, 150)
    assert counts[:, 2].sum() == sum(row.objects for row in judged.classes)
    assert (counts[:, 0] <= np.minimum(counts[:, 1], counts[:, 2])).all()


def test_the_page_has_the_control_in_bold(tmp_path: Path) -> None:
    arms = {f"{arm}, {cut}": {"value": 1.0, "precision": 2.0, "over control": 0.5, "interval": [0.1, 0.9]}
            for arm in rule.ARMS for cut in rule.CUTS}  # fmt: skip
    run = {"set": "voc", "judged": "held_out", "seed": 0, "units": 0, "labels": "hard", "commit": "abc"}
    save_run(tmp_path / "r.jsonl", "rule", {**run, "found": {"cost": {"images": 9, "arms": arms}}})
    text = rule.page(tmp_path / "r.jsonl")
    assert "| **more cross-entropy** | **the rule** | **1.0** |" in text
    assert "+0.5 (+0.1 to +0.9)" in text
