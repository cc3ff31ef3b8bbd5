"""Resampling: a re-weighted list is worth what evaluating the images again, as often as they were drawn, gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepgrad.engine.lanes import LANES
from stepgrad.errors import ConfigError, InputError
from stepgrad.evaluation.intervals import judged_lists
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.resampling import Drawn, Resamples, resample, written_values
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.metric.metrics import OwnMetric
from stepgrad.metric.options import get_metric
from stepgrad.metric.over_classes import OverClasses
from stepgrad.metric.protocol import get_protocol
from tests.evaluation.datasets import random_dataset
from tests.scenes import over_seeds

METRICS = [
    *("ap", "ap@max_recall=0.5", "f1", "f1@threshold=0.5", "recall@precision=0.5", "precision@recall=0.5"),
    *("cost@threshold=0.5,false_alarm=1,miss=3", "miss_rate"),
]


def repeated(evidence: Evidence, weights: np.ndarray) -> Evidence:
    """Images as often as they were drawn, copies side by side; a copy of a detection ranks right behind it."""
    copies = np.repeat(np.arange(evidence.num_images), weights)
    found, objects = [], []
    for new, image in enumerate(copies):
        for rows, kind in ((found, evidence.detections), (objects, evidence.objects)):
            own = np.flatnonzero(kind.images == image)
            rows.append((own, np.full(len(own), new)))
    detections, truth = (
        replace(
            kind.take(np.concatenate([own for own, _ in rows])),
            images=np.concatenate([new for _, new in rows]).astype(np.int32),
        )
        for kind, rows in ((evidence.detections, found), (evidence.objects, objects))
    )
    return replace(evidence, detections=detections, objects=truth, image_ids=[*range(len(copies))])


def evidence_of(seed: int) -> Evidence:
    """Scores that differ from image to image: a tie between images would rank otherwise among copies."""
    evidence = random_dataset(np.random.default_rng([seed, 110]), "difficult").evaluator("voc12").evidence()
    order = np.random.default_rng(seed).permutation(len(evidence.detections))
    return replace(evidence, detections=replace(evidence.detections, scores=(order + 1) / (len(order) + 1)))


@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco", "ultralytics-8.3", "voc07-devkit"])
@over_seeds(3, 30)
def test_a_resample_is_worth_what_its_images_are_worth(seed: int, protocol: str) -> None:
    evidence, rules = evidence_of(seed), get_protocol(protocol)
    rules = replace(rules, min_score=None)
    result = evaluate_under(evidence, rules)
    draws = Resamples.of(evidence.num_images, 6, seed)
    extra = ["ap@area=small"] if protocol == "coco" else []
    for name in ["ap"] if rules.tail == "line" else [*METRICS, *extra]:
        metric = get_metric(name)
        lists = judged_lists(result.classes, evidence, rules, metric)
        samples = resample(lists, metric, rules, draws.weights, draws, OverClasses(absent_classes=rules.absent_classes))
        for r, weights in enumerate(draws.weights):
            again = evaluate_under(repeated(evidence, weights), rules, [metric])
            assert samples.values[r] == pytest.approx(again.metrics[name].value, abs=1e-12), (name, r)
            for c, row in enumerate(again.classes):
                if row.objects and metric.area is None:
                    assert samples.by_class[r, c] == pytest.approx(float(again.metrics[name].by_class[c]), abs=1e-12)


@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@over_seeds(3, 20)
def test_resamples_counted_side_by_side_are_worth_what_each_is_alone_and_what_its_written_list_is(
    seed: int, protocol: str
) -> None:
    evidence, rules = evidence_of(seed), get_protocol(protocol)
    draws = Resamples.of(evidence.num_images, 2 * LANES + 3, seed)
    over = OverClasses(absent_classes=rules.absent_classes)
    for name in METRICS:
        metric = get_metric(name)
        lists = judged_lists(evaluate_under(evidence, rules).classes, evidence, rules, metric)
        together = resample(lists, metric, rules, draws.weights, draws, over).by_class
        alone = [resample(lists, metric, rules, row[None], draws, over).by_class[0] for row in draws.weights]
        assert np.array_equal(together, np.array(alone), equal_nan=True)
        for judged, values in zip(lists, together.T, strict=True):
            P = Drawn.of(draws.weights).objects(judged.object_images)
            there = slice(None) if metric.threshold is None else judged.scores >= metric.threshold
            written = judged.images[there], judged.verdicts[:, there], metric, rules, draws.weights, P
            slow = written_values(*written, evidence.num_images)
            np.testing.assert_allclose(values[P > 0], slow[P > 0], rtol=0, atol=1e-13)


@over_seeds(3, 20)
def test_a_function_of_ones_own_is_resampled_like_the_metric_it_computes(seed: int) -> None:
    evidence, rules = evidence_of(seed), get_protocol("voc12")
    result = evaluate_under(evidence, rules)
    own = OwnMetric(
        lambda hits, objects: float((2 * np.cumsum(hits) / (np.arange(1, len(hits) + 1) + objects)).max(initial=0.0))
    )
    found = [result.intervals(metric=metric, resamples=20).value for metric in (own, "f1")]
    assert tuple(found[0]) == pytest.approx(tuple(found[1]), abs=1e-12)


def result_of(seed: int) -> EvaluationResult:
    return evaluate_under(evidence_of(seed), get_protocol("coco"))


def test_an_interval_repeats_with_its_seed_widens_with_its_level_and_holds_the_middle_of_the_resamples() -> None:
    result = result_of(1)
    assert result.interval(seed=3) == result.interval(seed=3)
    assert result.interval(seed=3) != result.interval(seed=4)
    low, high = result.interval(0.5)
    wider = result.interval(0.99)
    assert wider[0] <= low <= high <= wider[1]


def test_images_of_a_group_are_drawn_together() -> None:
    result = result_of(2)
    draws = Resamples.of(result.images, 50, 0, ["a"] * result.images)
    assert draws.weights.tolist() == [[1]] * 50
    assert result.interval(groups=["a"] * result.images) == pytest.approx((result.map, result.map), abs=1e-15)
    with pytest.raises(InputError, match="a group for each"):
        result.interval(groups=["a"])


def test_nothing_is_ordinary() -> None:
    result = result_of(3)
    evidence = result.evidence
    assert evidence is not None
    for images in (0, 1):
        rows = np.zeros(0, dtype=np.int64)
        empty = replace(
            evidence,
            detections=evidence.detections.take(rows),
            objects=evidence.objects.take(rows),
            image_ids=[*range(images)],
        )
        assert evaluate_under(empty, result.protocol).interval(resamples=5) == (0.0, 0.0)


def test_a_level_that_is_none_is_refused() -> None:
    for level in (0.0, 1.0, 95):
        with pytest.raises(ConfigError, match="level"):
            result_of(0).interval(level)
    with pytest.raises(ConfigError, match="resamples"):
        result_of(0).interval(resamples=0)
