"""Calibrated scores: the order of a class stays to the bit, probabilities are right, and every form of a map gives the same."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.deploy import read_calibration
from stepgrad.deploy.calibration import MANY, SOME, Calibration, maps_of
from stepgrad.deploy.monotone import SLOPE, RisingMap, isotonic, pool_violators, squashed, strictly, two_parameters
from stepgrad.deploy.ranked import RankedList
from stepgrad.deploy.reliability import BINS, LEAST, reliability_of
from stepgrad.errors import DataError, InputError
from stepgrad.evaluation.result import EvaluationResult
from tests.deploy.test_thresholds import judged, scenes
from tests.scenes import over_seeds


def listed(seed: int, count: int, bend: float = 2.0) -> RankedList:
    """Detections whose probability of being right is their score to a power."""
    rng = np.random.default_rng([seed, 3])
    scores = np.sort(rng.random(count).astype(np.float32).astype(np.float64))[::-1]
    return RankedList(
        scores, rng.random(count) < scores**bend, np.arange(count, dtype=np.int32), np.arange(9, dtype=np.int32)
    )


def calibrated(seed: int, ties: bool = True) -> tuple[list[Any], EvaluationResult, Calibration]:
    made = scenes(seed, images=120, ties=ties)
    made = [({**p, "scores": p["scores"].clamp(0, 1)}, t) for p, t in made]
    result = judged(made)
    return made, result, sg.calibrate(result, resamples=5, seed=seed)


@over_seeds(8, 60)
def test_pooled_blocks_are_those_of_the_minimax_formula(seed: int) -> None:
    """The value at i is the largest, over starts up to i, of the least mean of runs from there to i or beyond."""
    rng = np.random.default_rng(seed)
    values, weights = rng.integers(0, 5, 12).astype(np.float64), rng.integers(1, 4, 12).astype(np.float64)
    blocks = pool_violators(values, weights)
    fitted = (np.bincount(blocks, weights * values) / np.bincount(blocks, weights))[blocks]
    means = {(a, b): np.average(values[a:b], weights=weights[a:b]) for a in range(12) for b in range(a + 1, 13)}
    slow = [max(min(means[a, b] for b in range(i + 1, 13)) for a in range(i + 1)) for i in range(12)]
    assert fitted == pytest.approx(slow)


@pytest.mark.parametrize("fit", [isotonic, two_parameters])
@over_seeds(4, 30)
def test_maps_rise_strictly_between_0_and_1(seed: int, fit: Any) -> None:
    one = listed(seed, 3 + 40 * seed)
    made = fit(one.scores, one.hits)
    assert (made.x[0], made.x[-1]) == (0.0, 1.0)
    assert (made.slopes >= SLOPE * (1 - 1e-9)).all()
    assert made.y[0] >= 0.0
    assert made.y[-1] <= 1.0


@pytest.mark.parametrize("fit", [isotonic, two_parameters])
def test_all_right_and_all_wrong_have_maps(fit: Any) -> None:
    scores = np.array([0.1, 0.5, 0.5, 0.9])
    for hits in (np.ones(4, dtype=bool), np.zeros(4, dtype=bool)):
        found = fit(scores, hits)(scores)
        assert np.array_equal(np.argsort(found, kind="stable"), np.argsort(scores, kind="stable"))
        assert (found.mean() > 0.5) == hits.all()


@over_seeds(4, 30)
def test_scores_that_differ_by_more_than_rounding_stay_apart_and_equal_ones_equal(seed: int) -> None:
    """Rounding of the line is a few units in the last place of y <= 1; the least slope keeps apart what differs by more."""
    rng = np.random.default_rng(seed)
    one = listed(seed, 500)
    apart = 16 * np.finfo(np.float64).eps / SLOPE
    scores = np.cumsum(rng.random(2000) * 4e-4 + apart)
    scores = np.sort(np.concatenate([scores, one.scores, [0.0, 1.0]]))
    scores = scores[scores <= 1.0]
    for made in (isotonic(one.scores, one.hits), two_parameters(one.scores, one.hits)):
        found = made(scores)
        assert (np.diff(found) >= 0).all()
        assert (np.diff(found)[np.diff(scores) > apart] > 0).all()
        assert (np.diff(found)[np.diff(scores) == 0] == 0).all()


@over_seeds(6, 40)
def test_the_ap_of_every_class_stays_to_the_bit_ties_included(seed: int) -> None:
    made, before, calibration = calibrated(seed, ties=seed % 2 == 0)
    after = judged([(calibration.apply(p), t) for p, t in made])
    assert after.map == before.map
    for one, other in zip(before.classes, after.classes, strict=True):
        assert np.array_equal(one.verdicts, other.verdicts)
        assert np.array_equal(one.rows, other.rows)


@over_seeds(3, 20)
def test_any_real_scores_can_be_calibrated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = [({**p, "scores": 8 * p["scores"] - 4}, t) for p, t in scenes(seed, images=80)]
    calibration = sg.calibrate(judged(made), resamples=5)
    assert calibration.squash
    assert calibration.before is None
    scores = np.sort(rng.normal(0, 30, 500))
    found = calibration.probabilities(scores, np.zeros(500, dtype=np.int64))
    assert (np.diff(found) > 0).all()
    assert found.min() >= 0.0
    assert found.max() <= 1.0


def test_the_kind_of_map_follows_the_number_of_detections() -> None:
    lists = [listed(0, 4 * MANY + 200), listed(0, 8 * SOME), listed(0, 3)]
    kinds = [kind for kind, _ in maps_of(lists)]
    assert kinds == ["isotonic", "two parameters", "of all classes"]


@pytest.mark.parametrize(("count", "bound"), [(20_000, 0.03), (300, 0.15)])
def test_probabilities_come_near_to_the_truth(count: int, bound: float) -> None:
    """Shares of hundreds of detections are off by some per cent: the bounds are many standard errors wide."""
    one = listed(1, count)
    ((_, made),) = maps_of([one])
    grid = np.linspace(0.05, 0.95, 50)
    assert np.abs(made(grid) - grid**2).mean() < bound


@over_seeds(3, 20)
def test_calibration_error_equals_the_slow_way(seed: int) -> None:
    one = listed(seed, 200)
    found = reliability_of(one, np.ones((1, 200), dtype=np.uint8), 0.95)
    bins: dict[int, list[tuple[float, bool]]] = {}
    for score, hit in zip(one.scores.tolist(), one.hits.tolist(), strict=True):
        if score >= LEAST:
            bins.setdefault(min(int(score * BINS), BINS - 1), []).append((score, hit))
    total = sum(map(len, bins.values()))
    slow = sum(abs(sum(s for s, _ in rows) - sum(h for _, h in rows)) for rows in bins.values()) / total
    assert found.error == pytest.approx(slow)
    for at in found.at:
        passing = [(s, h) for s, h in zip(one.scores.tolist(), one.hits.tolist(), strict=True) if s >= at.threshold]
        assert at.passing == len(passing)
        assert at.precision == pytest.approx(np.mean([h for _, h in passing]))
        assert at.said == pytest.approx(np.mean([s for s, _ in passing]))


def test_over_confident_scores_become_honest_on_images_not_seen() -> None:
    made = [({**p, "scores": p["scores"].clamp(0, 1) ** 0.25}, t) for p, t in scenes(3, images=600)]
    calibration = sg.calibrate(judged(made))
    assert calibration.before is not None
    assert calibration.after is not None
    assert calibration.after.error < 0.5 * calibration.before.error
    assert "calibration error (ECE)" in str(calibration)


def test_every_form_of_a_map_gives_the_same_bits(tmp_path: Path) -> None:
    for squash in (False, True):
        made = [
            ({**p, "scores": 9 * p["scores"] - 4 if squash else p["scores"].clamp(0, 1)}, t)
            for p, t in scenes(2, images=400)
        ]
        calibration = sg.calibrate(judged(made), resamples=5)
        rng = np.random.default_rng(0)
        scores = rng.normal(0, 9, 300).astype(np.float32) if squash else rng.random(300).astype(np.float32)
        if not squash:
            scores[:2] = 0.0, 1.0
        labels = rng.integers(0, 2, 300)
        expected = calibration.probabilities(scores, labels)
        calibration.save(tmp_path / "c.json")
        assert np.array_equal(read_calibration(tmp_path / "c.json").probabilities(scores, labels), expected)
        module = calibration.module()(torch.from_numpy(scores), torch.from_numpy(labels))
        assert np.array_equal(module.numpy(), expected)


@pytest.mark.parametrize("squash", [False, True])
def test_onnx_gives_the_same_bits(squash: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    made = [
        ({**p, "scores": 9 * p["scores"] - 4 if squash else p["scores"].clamp(0, 1)}, t)
        for p, t in scenes(2, images=400)
    ]
    calibration = sg.calibrate(judged(made), resamples=5)
    calibration.save(tmp_path / "c.onnx")
    session = runtime.InferenceSession(str(tmp_path / "c.onnx"), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for count in (300, 1, 0):
        scores = (rng.normal(0, 9, count) if squash else rng.random(count)).astype(np.float32)
        labels = rng.integers(0, 2, count)
        (found,) = session.run(None, {"scores": scores, "labels": labels})
        assert np.array_equal(found, calibration.probabilities(scores, labels))


def test_detections_of_every_form_are_calibrated_alike() -> None:
    _, _, calibration = calibrated(0)
    scores, labels = [0.2, 0.9], [0, 1]
    expected = calibration.probabilities(scores, labels).tolist()
    given = {"boxes": torch.zeros(2, 4), "scores": torch.tensor(scores, dtype=torch.float64), "labels": labels}
    assert calibration.apply([given])[0]["scores"].tolist() == expected
    record = SimpleNamespace(confidence=np.array(scores), class_id=np.array(labels))
    assert calibration.apply(record).confidence.tolist() == expected
    assert record.confidence.tolist() == scores
    rows = [{"category_id": c + 5, "score": s} for c, s in zip(labels, scores, strict=True)]
    with pytest.raises(InputError, match="category ids"):
        calibration.apply(rows)
    known = Calibration(**{**vars(calibration), "category_ids": (5, 6)})
    assert [row["score"] for row in known.apply(rows)] == expected
    with pytest.raises(InputError, match="but got 9"):
        known.apply([{"category_id": 9, "score": 0.1}])


@pytest.mark.parametrize("images", [0, 1, 2])
def test_next_to_nothing_is_calibrated_without_a_claim(images: int) -> None:
    made = [(p, t) for p, t in scenes(1, images=40) if len(p["scores"])][:images]
    made = [({**p, "scores": p["scores"].clamp(0, 1)}, t) for p, t in made]
    calibration = sg.calibrate(judged(made), resamples=5)
    assert {row.kind for row in calibration.classes} == {"of all classes"}
    assert calibration.probabilities([], []).tolist() == []
    assert 0 < calibration.probabilities([0.5], [0])[0] < 1
    assert isinstance(str(calibration), str)


def test_scores_and_labels_that_do_not_fit_are_refused() -> None:
    _, _, calibration = calibrated(0)
    with pytest.raises(InputError, match=r"scores in \[0, 1\].*but got 2 to 2"):
        calibration.probabilities([2.0], [0])
    with pytest.raises(InputError, match=r"labels in \[0, 2\)"):
        calibration.probabilities([0.2], [2])
    with pytest.raises(InputError, match="but got int"):
        calibration.apply(3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": 3}, "is not what"),
        ({"classes": [{"name": "a", "kind": "k", "objects": 1, "scores": [0, 1], "probabilities": [1, 0]}]}, "rising"),
        ({"classes": [{"name": "a", "kind": "k", "objects": 1, "scores": [0], "probabilities": [1]}]}, "two or more"),
    ],
)
def test_files_that_hold_no_calibration_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    _, _, calibration = calibrated(0)
    place = tmp_path / "c.json"
    calibration.save(place)
    place.write_text(json.dumps(json.loads(place.read_text()) | change))
    with pytest.raises(DataError, match=said):
        read_calibration(place)
    with pytest.raises(DataError, match="no such file"):
        read_calibration(tmp_path / "none.json")


def test_the_chart_shows_before_and_after(tmp_path: Path) -> None:
    _, _, calibration = calibrated(0)
    calibration.plot(tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text().rstrip().endswith("</svg>")
    calibration.save(tmp_path / "c.json")
    with pytest.raises(InputError, match="no detections to draw"):
        read_calibration(tmp_path / "c.json").plot()


def test_a_plateau_of_isotonic_regression_still_rises() -> None:
    made = strictly(np.array([0.0, 0.5, 1.0]), np.array([0.3, 0.3, 0.3]))
    assert isinstance(made, RisingMap)
    assert (np.diff(made(np.linspace(0, 1, 100))) > 0).all()


@over_seeds(5, 40)
def test_the_rule_of_a_cost_is_the_cheapest_choice_for_every_detection(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alarm, miss = rng.integers(1, 10, 2).tolist()
    _, _, calibration = calibrated(seed)
    (cut,) = set(calibration.rule(f"cost@false_alarm={alarm},miss={miss}").values())
    assert cut is not None
    for p in rng.random(50):
        shown, hidden = alarm * (1 - p), miss * p
        assert (p >= cut) == (shown <= hidden) or shown == pytest.approx(hidden)


@pytest.mark.parametrize("wish", ["f1", "precision=0.7", "recall=0.5"])
@over_seeds(4, 30)
def test_no_other_cut_is_expected_to_serve_the_wish_better(seed: int, wish: str) -> None:
    _, _, calibration = calibrated(seed)
    for found, cut in zip(calibration.found, calibration.rule(wish).values(), strict=True):
        p, P = found.probabilities, found.objects

        def value(c: float | None, p: Any = p, P: int = P) -> float:
            passing = p[p >= c] if c is not None else p[:0]
            right, n = passing.sum(), len(passing)
            if wish == "f1":
                return float(2 * right / (n + P))
            if wish.startswith("precision"):
                return float(right) if n and right / n >= 0.7 else 0.0
            return float(right / n) if n and right / P >= 0.5 else -1.0

        assert value(cut) == pytest.approx(max(value(c) for c in [None, *p.tolist()]))


def test_calibrations_from_files_know_the_rule_of_costs_only(tmp_path: Path) -> None:
    _, _, calibration = calibrated(0)
    calibration.save(tmp_path / "c.json")
    again = read_calibration(tmp_path / "c.json")
    wish = "cost@false_alarm=1,miss=3"
    assert again.rule(wish) == calibration.rule(wish) == {"0": 0.25, "1": 0.25}
    with pytest.raises(InputError, match="rule of costs only"):
        again.rule("f1")


@over_seeds(3, 20)
def test_log_odds_and_shares_have_nearly_the_same_two_parameters(seed: int) -> None:
    """Platt's line is in log odds, whether scores come as these or as shares; the two grids differ a little."""
    one = listed(seed, 400)
    odds = np.log(one.scores.clip(1e-6, 1 - 1e-6) / (1 - one.scores.clip(1e-6, 1 - 1e-6)))
    by_share = two_parameters(one.scores, one.hits)(one.scores)
    by_odds = two_parameters(squashed(odds), one.hits, squash=True)(squashed(odds))
    assert np.abs(by_share - by_odds).max() < 0.02
