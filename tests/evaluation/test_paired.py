"""Two results on the same images: the difference, how sure it is, and what made it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import InputError
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.metric.protocol import get_protocol
from tests.evaluation.datasets import random_dataset
from tests.scenes import over_seeds


def evidence_of(seed: int) -> Evidence:
    evidence = random_dataset(np.random.default_rng([seed, 120]), "difficult").evaluator("voc12").evidence()
    return replace(evidence, image_ids=[f"image {i}" for i in range(evidence.num_images)])


def with_scores(evidence: Evidence, seed: int) -> Evidence:
    scores = np.random.default_rng(seed).random(len(evidence.detections))
    return replace(evidence, detections=replace(evidence.detections, scores=scores))


def judged(evidence: Evidence, protocol: str = "coco") -> EvaluationResult:
    return evaluate_under(evidence, get_protocol(protocol))


def in_another_order(evidence: Evidence, seed: int) -> Evidence:
    """The same images in another order."""
    order = np.random.default_rng(seed).permutation(evidence.num_images)
    new = np.argsort(order).astype(np.int32)
    return replace(
        evidence,
        image_ids=[evidence.image_ids[i] for i in order],
        detections=replace(evidence.detections, images=new[evidence.detections.images]),
        objects=replace(evidence.objects, images=new[evidence.objects.images]),
    )


@over_seeds(4, 40)
def test_the_order_of_images_does_not_matter_and_swapping_the_two_turns_the_sign(seed: int) -> None:
    evidence = evidence_of(seed)
    a, b = judged(with_scores(evidence, 1)), judged(with_scores(evidence, 2))
    found = sg.compare(a, b, resamples=60)
    moved = sg.compare(a, judged(in_another_order(with_scores(evidence, 2), seed)), resamples=60)
    assert tuple(moved.interval) == pytest.approx(tuple(found.interval), abs=1e-12)
    back = sg.compare(b, a, resamples=60)
    assert back.difference == -found.difference
    assert tuple(back.interval) == pytest.approx((-found.interval.high, -found.interval.low), abs=1e-12)
    assert back.ahead == pytest.approx(1 - found.ahead)
    assert found.difference == b.map - a.map
    assert found.interval.low <= found.interval.high


def test_a_result_is_level_with_itself() -> None:
    result = judged(evidence_of(1))
    found = sg.compare(result, result, resamples=20)
    assert (found.difference, tuple(found.interval), found.ahead) == (0.0, (0.0, 0.0), 0.5)
    assert "level" in found.sentence
    assert found.images_needed is None


@over_seeds(3, 20)
def test_an_image_made_what_is_missing_without_it(seed: int) -> None:
    evidence = evidence_of(seed)
    a, b = with_scores(evidence, 3), with_scores(evidence, 4)
    effects = dict(sg.compare(judged(a), judged(b), resamples=5).effects(most=100))
    whole = judged(b).map - judged(a).map
    for image, image_id in enumerate(evidence.image_ids):
        rest = []
        for one in (a, b):
            kept = [np.flatnonzero(flat.images != image) for flat in (one.detections, one.objects)]
            rest.append(
                judged(replace(one, detections=one.detections.take(kept[0]), objects=one.objects.take(kept[1]))).map
            )
        assert effects.get(image_id, 0.0) == pytest.approx(whole - (rest[1] - rest[0]), abs=1e-12)


def test_metrics_that_should_be_small_are_ahead_where_they_are_smaller() -> None:
    evidence = evidence_of(5)
    a, b = judged(with_scores(evidence, 1)), judged(with_scores(evidence, 2))
    metric = "cost@threshold=0.5,false_alarm=1,miss=2"
    found = sg.compare(a, b, metric=metric, resamples=40, names=("first", "second"))
    better = "second" if b.metric(metric).value < a.metric(metric).value else "first"
    assert found.sentence.startswith(f"{better} is ahead")


def test_clear_differences_and_those_that_are_not_are_told_apart() -> None:
    evidence = evidence_of(6)
    perfect = replace(evidence, detections=replace(evidence.detections, scores=np.ones(len(evidence.detections))))
    for other in range(20):
        found = sg.compare(judged(with_scores(evidence, 7)), judged(with_scores(perfect, 100 + other)), resamples=200)
        if found.is_clear:
            assert found.sentence.endswith("images.")
            assert "cannot tell" not in found.sentence
        elif found.images_needed:
            assert "cannot tell; about" in found.sentence
            assert found.images_needed > 0.5 * found.images
    document = found.to_dict()
    assert document["sentence"] == found.sentence
    assert len(document["classes"]) == len(found.by_class)
    assert str(found).startswith(found.sentence)


def test_results_that_cannot_be_compared_are_refused() -> None:
    evidence = evidence_of(2)
    result = judged(evidence)
    with pytest.raises(InputError, match="one protocol"):
        sg.compare(result, judged(evidence, "voc12"))
    with pytest.raises(InputError, match="same images"):
        sg.compare(result, judged(replace(evidence, image_ids=[*evidence.image_ids[1:], "another"])))
    with pytest.raises(InputError, match="same classes"):
        sg.compare(result, judged(replace(evidence, class_names=tuple(reversed(evidence.class_names)))))
    with pytest.raises(InputError, match="does not hold"):
        sg.compare(result, replace(result, evidence=None))


def test_a_single_image_cannot_tell() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [50, 0, 60, 10]])
    results = []
    for scores in ([0.1, 0.9], [0.9, 0.1]):
        evaluator = sg.Evaluator(1, "voc12")
        found = {"boxes": boxes, "scores": torch.tensor(scores), "labels": torch.tensor([0, 0])}
        evaluator.update([found], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
        results.append(evaluator.compute())
    found_out = sg.compare(*results)
    assert found_out.sentence == "B is ahead of A by 50.0: a single image cannot tell."
    assert not found_out.is_clear
