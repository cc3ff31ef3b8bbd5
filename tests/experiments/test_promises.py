"""How often promised values hold: the truth of a set at a threshold, and runs on record as a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import promises
from experiments.promises import World, evaluated, made_set, measure, page
from experiments.records import once
from stepgrad.deploy.wish import wish_of


@pytest.fixture(scope="module")
def world() -> World:
    return World(evaluated(made_set(3, 120), "voc12"))


def test_the_truth_of_a_set_is_counted_detection_by_detection(world: World) -> None:
    wish = wish_of("cost@false_alarm=1,miss=5")
    for ranked in (*world.lists[:5], world.together):
        for cut in (None, 0.0, float(np.median(world.together.scores))):
            right = sum(
                bool(h) for s, h in zip(ranked.scores, ranked.hits, strict=True) if cut is not None and s >= cut
            )
            passed = sum(cut is not None and s >= cut for s in ranked.scores)
            P = len(ranked.object_units)
            truth = world.truth(ranked, cut, wish)
            assert truth["recall"] == pytest.approx(right / P)
            assert truth["cost"] == pytest.approx(100 * ((passed - right) + 5 * (P - right)) / world.population.images)
            assert np.isnan(truth["precision"]) == (passed == 0)


def test_every_draw_is_a_case_and_the_page_tells_them(world: World, tmp_path: Path) -> None:
    runs = tmp_path / "promises.jsonl"
    for wish in promises.WISHES:
        facts = {"set": "made", "wish": wish, "images": 60, "draws": 4, "seed": 0}
        run = once(runs, "measure", facts, lambda wish=wish: measure(world, wish, 60, 4, 0))
        assert run["found"]["all"]["f1"]["cases"] == run["found"]["mean"]["f1"]["cases"] == 4
        for numbers in run["found"].values():
            for number in numbers.values():
                assert 0 <= number["held"] <= 1
    text = page(runs)
    assert all(f"`{wish}`" in text for wish in promises.WISHES)
