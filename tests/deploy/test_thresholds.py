"""Thresholds by a wish: equal to brute force over all cuts, and what they promise equal to the slow, obvious way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.deploy.wish import Wish, wish_of
from stepgrad.errors import ConfigError
from stepgrad.evaluation.result import EvaluationResult
from tests.evaluation.datasets import boxes_at, pred, random_dataset, target
from tests.scenes import over_seeds

WISHES = ("f1", "precision=0.6", "recall=0.5", "cost@false_alarm=1,miss=2")
PLACE = 400.0  # from here on nothing is found


def scenes(seed: int, images: int = 30, K: int = 2, ties: bool = False) -> list[tuple[Any, Any]]:
    """Per image detections and objects on a line: detection i of an image finds object i if it is right."""
    rng = np.random.default_rng([seed, 34])
    made = []
    for _ in range(images):
        n = int(rng.integers(0, 4))
        right = rng.random(n) < 0.6
        lefts = np.arange(n) * 20.0 + np.where(right, 0.0, PLACE)
        scores = rng.random(n) + 0.4 * right
        labels = rng.integers(K, size=n)
        objects = boxes_at(*(np.arange(n) * 20.0).tolist())
        scores = np.round(scores, 1) if ties else scores
        made.append(
            (pred(boxes_at(*lefts.tolist()), scores.tolist(), labels.tolist()), target(objects, labels.tolist()))
        )
    return made


def judged(made: list[tuple[Any, Any]], K: int = 2, protocol: str = "voc12") -> EvaluationResult:
    evaluator = sg.Evaluator(K, protocol)
    evaluator.update([p for p, _ in made], [t for _, t in made])
    return evaluator.compute()


def rows_of(made: list[tuple[Any, Any]], label: int) -> Iterator[tuple[int, float, bool]]:
    """(image, score, right) of every detection of a class, without any evaluator."""
    for i, (found, _) in enumerate(made):
        for left, score, own in zip(
            found["boxes"][:, 0].tolist(), found["scores"].tolist(), found["labels"], strict=True
        ):
            if own == label:
                yield i, score, left < PLACE


def counts_at(rows: list[tuple[int, float, bool]], threshold: float | None) -> tuple[int, int]:
    passing = [right for _, score, right in rows if threshold is not None and score >= threshold]
    return sum(passing), len(passing)


def brute_force(rows: list[tuple[int, float, bool]], objects: int, wish: Wish) -> float | None:
    """The best of all thresholds, each tried: of equally good ones the highest, at a wanted recall the lowest."""
    if objects == 0 and wish.aim != "cost":
        return None
    candidates: list[float | None] = [None, *sorted({score for _, score, _ in rows}, reverse=True)]
    of_each = {cut: counts_at(rows, cut) for cut in candidates}
    if wish.aim == "f1":
        return max(candidates, key=lambda cut: 2 * of_each[cut][0] / (of_each[cut][1] + objects))
    if wish.aim == "cost":
        return min(candidates, key=lambda cut: (of_each[cut][1] - of_each[cut][0]) + 2 * (objects - of_each[cut][0]))
    if wish.aim == "recall":
        kept = [cut for cut in candidates if cut is None or of_each[cut][0] / of_each[cut][1] >= 0.6]
        return max(kept, key=lambda cut: of_each[cut][0])
    kept = [cut for cut in candidates if of_each[cut][0] / objects >= 0.5]
    if not kept:
        return candidates[-1]
    return max(kept[::-1], key=lambda cut: of_each[cut][0] / of_each[cut][1])


@pytest.mark.parametrize("wish", WISHES)
@over_seeds(6, 60)
def test_no_other_threshold_serves_the_wish_better(seed: int, wish: str) -> None:
    made = scenes(seed, images=1 + seed % 9, ties=seed % 2 == 0)
    chosen = sg.thresholds(judged(made), wish)
    for label, cut in enumerate(chosen.by_class.values()):
        objects = sum(int((t["labels"] == label).sum()) for _, t in made)
        if objects:
            assert cut == brute_force(list(rows_of(made, label)), objects, wish_of(wish))
        else:
            assert cut == chosen.overall.threshold
    everything = [row for label in range(2) for row in rows_of(made, label)]
    objects = sum(len(t["labels"]) for _, t in made)
    assert chosen.overall.threshold == brute_force(everything, objects, wish_of(wish))


def slow_counts(
    made: list[tuple[Any, Any]], label: int, fold: np.ndarray, wish: Wish
) -> tuple[list[float], list[float], list[int]]:
    """Right and all detections of a class that pass, and its objects: a third of those at the threshold of all images, two thirds
    of those where every image is counted at the threshold that the images of the other folds lead to."""
    rows = list(rows_of(made, label))
    per_image = [int((t["labels"] == label).sum()) for _, t in made]
    own = counts_at(rows, brute_force(rows, sum(per_image), wish))
    out = [0, 0]
    for f in sorted(set(fold.tolist())):
        objects = sum(n for n, part in zip(per_image, fold, strict=True) if part != f)
        cut = brute_force([r for r in rows if fold[r[0]] != f], objects, wish)
        found = counts_at([r for r in rows if fold[r[0]] == f], cut)
        out = [out[0] + found[0], out[1] + found[1]]
    mixed = [a / 3 + 2 * b / 3 for a, b in zip(own, out, strict=True)]
    return mixed, [*own], per_image


@pytest.mark.parametrize("wish", WISHES)
@over_seeds(3, 20)
def test_what_is_expected_equals_the_slow_way_fold_by_fold(seed: int, wish: str) -> None:
    made, folds, wished = scenes(seed, images=23), 5, wish_of(wish)
    chosen = sg.thresholds(judged(made), wish, folds=folds, seed=seed)
    fold = np.random.default_rng(seed).permutation(len(made)) % folds
    means: dict[str, list[float]] = {name: [] for name in wished.numbers}
    for label, row in enumerate(chosen.classes):
        (right, passed), own, per_image = slow_counts(made, label, fold, wished)
        if row.threshold is None:  # nothing passes, here or anywhere
            right, passed = own
        P = sum(per_image)
        slow = {
            "precision": right / passed if passed else math.nan,
            "recall": right / P,
            "f1": 2 * right / (passed + P),
        }
        slow["cost"] = 100 * ((passed - right) + 2 * (P - right)) / len(made)
        for name in wished.numbers:
            assert row.expected[name].value == pytest.approx(slow[name], nan_ok=True)
            means[name].append(slow[name])
    for name, values in means.items():
        joined = np.nansum(values) if name == "cost" else np.nanmean(values)
        assert chosen.expected[name].value == pytest.approx(joined)


@over_seeds(3, 20)
def test_f1_and_recall_at_the_threshold_are_those_of_the_metric(seed: int) -> None:
    """Where no scores are equal, a cut reaches what `sg.metrics` says is reached at best."""
    result = judged(scenes(seed, ties=False))
    for metric in (sg.metrics.F1(), sg.metrics.RecallAtPrecision(0.6)):
        chosen = sg.thresholds(result, metric)
        for row, value in zip(result.classes, result.metric(metric).by_class.tolist(), strict=True):
            cut = chosen.by_class[row.name]
            verdicts = row.verdicts[0][: 0 if cut is None else int(np.count_nonzero(row.scores >= cut))]
            hits = verdicts == 1
            reached = 2 * hits.sum() / (len(hits) + row.objects) if metric.name == "f1" else hits.sum() / row.objects
            assert reached == pytest.approx(value)


@over_seeds(4, 30)
def test_intervals_hold_their_values_and_repeat(seed: int) -> None:
    result = random_dataset(np.random.default_rng(seed), "difficult").evaluator("coco").compute()
    for wish in WISHES:
        first, second = (sg.thresholds(result, wish, seed=3) for _ in range(2))
        assert str(first) == str(second)
        for row in (*first.classes, first.overall):
            for number in row.expected.numbers.values():
                low, high = number.interval
                assert math.isnan(low) or low <= number.value <= high


def test_equal_scores_pass_together() -> None:
    """One right and one wrong at .8: F1 of both is 4/5, of the first detection alone 2/3."""
    found = pred(boxes_at(0, 20, 500), [0.9, 0.8, 0.8])
    result = judged([(found, target(boxes_at(0, 20)))], K=1)
    assert sg.thresholds(result, "f1").by_class == {"0": 0.8}
    assert sg.thresholds(result, "precision=0.9").by_class == {"0": 0.9}


def test_a_precision_that_is_never_kept_lets_nothing_pass_and_a_recall_everything() -> None:
    found = pred(boxes_at(500, 0), [0.9, 0.8])
    result = judged([(found, target(boxes_at(0, 20)))], K=1)
    strict = sg.thresholds(result, "precision=0.9")
    assert strict.by_class == {"0": None}
    assert any("nothing passes" in line for line in strict.warnings)
    everything = sg.thresholds(result, "recall=0.9")
    assert everything.by_class == {"0": 0.8}
    assert any("all detections pass" in line for line in everything.warnings)


def test_a_class_without_objects_gets_the_threshold_of_all_and_is_named() -> None:
    made = [(pred(boxes_at(0, 500), [0.9, 0.3], [0, 1]), target(boxes_at(0), [0])) for _ in range(30)]
    chosen = sg.thresholds(judged(made), "f1")
    assert chosen.by_class == {"0": 0.9, "1": 0.9}
    assert chosen.warnings == ["no objects, so that these classes got the threshold for all classes: 1"]
    assert chosen.expected.value == 1.0


def test_few_images_with_objects_are_named() -> None:
    made = [(pred(boxes_at(0), [0.9], [i % 10 == 0]), target(boxes_at(0), [i % 10 == 0])) for i in range(40)]
    warnings = sg.thresholds(judged(made), "f1").warnings
    assert warnings == ["objects in fewer than 20 images, too few to promise anything: 1"]


def test_classes_of_which_hardly_anything_passes_are_named() -> None:
    """Of 40 right detections, 31 share their score with wrong ones: only nine pass at precision 0.9."""
    made = [(pred(boxes_at(0, 500), [0.9 if i < 9 else 0.5, 0.5], [0, 0]), target(boxes_at(0), [0])) for i in range(40)]
    chosen = sg.thresholds(judged(made, K=1), "precision=0.9")
    assert chosen.classes[0].passing == 9
    assert chosen.warnings == ["fewer than 10 detections pass, too few to promise a precision: 0"]


@pytest.mark.parametrize("wish", WISHES)
def test_empty_sets_have_no_thresholds_and_promise_nothing(wish: str) -> None:
    empty = pred(boxes_at(), []), target(boxes_at())
    for made in ([], [empty], [(pred(boxes_at(), []), target(boxes_at(0)))]):
        chosen = sg.thresholds(judged(made), wish)
        assert set(chosen.by_class.values()) == {None}
        assert math.isnan(chosen.expected["precision"].value)
        assert "too few images" in chosen.warnings[0]
        assert chosen.warnings[0] in str(chosen)


def test_one_image_promises_next_to_nothing() -> None:
    chosen = sg.thresholds(judged([(pred(boxes_at(0), [0.9]), target(boxes_at(0)))], K=1), "f1")
    assert chosen.by_class == {"0": 0.9}
    assert chosen.expected["recall"].value == pytest.approx(1 / 3)  # no other image says where to cut
    low, high = chosen.expected["recall"].interval
    assert low < 0.01
    assert high > 0.99
    assert chosen.warnings == ["too few images (1) to promise anything"]


def test_frames_of_a_clip_are_never_parted() -> None:
    made = scenes(5, images=24)
    result = judged(made)
    clips = [i // 3 for i in range(24)]
    grouped = sg.thresholds(result, "f1", groups=clips, folds=4)
    assert grouped.by_class == sg.thresholds(result, "f1").by_class
    assert grouped.images == 8


def test_each_overlap_threshold_of_the_protocol_can_decide() -> None:
    boxes = torch.cat([boxes_at(0), boxes_at(2.0)])
    result = judged([(pred(boxes[1:], [0.9]), target(boxes[:1]))], K=1, protocol="coco")
    assert sg.thresholds(result, "f1").by_class == {"0": 0.9}
    assert sg.thresholds(result, "f1", match_threshold=0.75).by_class == {"0": None}
    with pytest.raises(ConfigError, match="protocol's thresholds"):
        sg.thresholds(result, "f1", match_threshold=0.3)


@pytest.mark.parametrize(
    "wish", ["ap", "miss_rate", "f1@threshold=0.5", "cost", "precision=2", "cost@miss=-1", "precision", "f2"]
)
def test_a_wish_that_chooses_no_threshold_is_refused(wish: str) -> None:
    made = scenes(0)
    if wish == "cost":  # a false alarm and a miss cost 1 each
        assert sg.thresholds(judged(made), wish).wish == "cost@false_alarm=1,miss=1"
        return
    with pytest.raises(ConfigError, match=r"Expected|expected"):
        sg.thresholds(judged(made), wish)


def test_wishes_have_short_and_whole_names() -> None:
    assert wish_of("precision=0.9") == wish_of("recall@precision=0.9") == wish_of(sg.metrics.RecallAtPrecision(0.9))
    assert wish_of("recall=0.8").name == "precision@recall=0.8"
    assert wish_of(wish_of("cost@false_alarm=1,miss=10").name).numbers == ("precision", "recall", "f1", "cost")
