"""The numbers that say what is wrong, against plain counting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepgrad.engine.matching import FALSE_POSITIVE, TRUE_POSITIVE
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.class_result import best_cut
from stepgrad.evaluation.counted import countable
from stepgrad.evaluation.errors_by_type import LEFT_OUT, RIGHT, find_mistakes
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.options import get_metric
from stepgrad.metric.protocol import VOC12, get_protocol
from stepgrad.report.changed import boxes_on
from stepgrad.report.confusion import confused_classes, confusion
from stepgrad.report.findings import Findings, score_levels
from stepgrad.report.objects import found_by_size
from stepgrad.report.scores import ENOUGH, calibration, describe_scores
from tests.evaluation.datasets import random_dataset

PROTOCOLS = ["voc12", "voc07-devkit", "coco", "ultralytics"]
BOX = torch.tensor([[0.0, 0.0, 10.0, 10.0]])


def evidence_of(seed: int, flag: str = "difficult") -> Evidence:
    return random_dataset(np.random.default_rng(seed), flag).evaluator("voc12").evidence()


def findings_of(seed: int, name: str) -> Findings:
    return Findings.of(evidence_of(seed), get_protocol(name))


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("flag", ["difficult", "iscrowd"])
def test_every_object_and_every_detection_is_in_one_cell_of_the_confusion(name: str, flag: str) -> None:
    for seed in range(3):
        evidence, protocol = evidence_of(seed, flag), get_protocol(name)
        mistakes = find_mistakes(evidence, protocol)
        cells = confusion(mistakes)["cells"]
        objects = np.bincount(evidence.objects.labels[countable(evidence, protocol)], minlength=evidence.num_classes)
        counted = evidence.detections.labels[mistakes.of_detections != LEFT_OUT]
        detections = np.bincount(counted, minlength=evidence.num_classes)
        for label in range(evidence.num_classes):
            assert sum(cell["count"] for cell in cells if cell["object"] == label) == objects[label]
            assert sum(cell["count"] for cell in cells if cell["detection"] == label) == detections[label]


def test_an_object_found_under_another_name_is_confused_and_one_found_under_both_is_not() -> None:
    evaluator = Evaluator(2, "voc12", ["cat", "dog"], boxes="continuous")
    both = {"boxes": BOX.repeat(2, 1), "scores": torch.tensor([0.9, 0.8]), "labels": torch.tensor([1, 0])}
    other = {"boxes": BOX, "scores": torch.tensor([0.9]), "labels": torch.tensor([1])}
    cat = {"boxes": BOX, "labels": torch.tensor([0])}
    evaluator.update([other, both], [cat, cat])
    cells = confusion(find_mistakes(evaluator.evidence(), VOC12))["cells"]
    counts = {(cell["object"], cell["detection"]): cell["count"] for cell in cells}
    assert counts == {(0, 1): 1, (0, 0): 1, (None, 1): 1}


def test_classes_with_the_most_mistakes_are_shown_in_their_own_order() -> None:
    cells = [
        {"object": 0, "detection": 0, "count": 99},
        {"object": 3, "detection": 1, "count": 5},
        {"object": None, "detection": 2, "count": 1},
    ]
    assert confused_classes({"cells": cells}, 4, most=2) == [1, 3]
    assert confused_classes({"cells": cells}, 4, most=9) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_counts_by_score_are_those_of_the_verdicts_with_scores_that_reach_it(name: str) -> None:
    findings = findings_of(4, name)
    rows = evaluate_under(findings.evidence, get_protocol(name)).classes
    described = describe_scores(findings)
    by_score, bars = described["by_score"], described["scores"]
    for level in range(0, 101, 7):
        value = findings.values[level]
        right, wrong = (
            sum(int(np.count_nonzero((row.scores >= value) & (row.verdicts[0] == verdict))) for row in rows)
            for verdict in (TRUE_POSITIVE, FALSE_POSITIVE)
        )
        found = findings.rates(findings.levels >= level)
        assert (found["right"], found["wrong"]) == (right, wrong)
        assert found["missed"] == sum(row.objects for row in rows) - right
        assert tuple(sum(of[level] for of in by_score[side]) for side in ("right", "wrong")) == (right, wrong)
        if level == 0:  # which all reach
            assert (sum(bars["hits"]), sum(bars["alarms"])) == (right, wrong)


def test_no_other_level_has_a_larger_f1_and_no_higher_one_has_the_same() -> None:
    for seed in range(4):
        findings = findings_of(seed, "voc12")
        every = [findings.rates(findings.levels >= level)["f1"] or 0.0 for level in range(101)]
        assert findings.common_level() == max(range(101), key=lambda level: (every[level], level))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_cut_of_each_class_is_that_of_the_evaluator_and_rates_are_those_of_detections_that_reach_it(
    name: str,
) -> None:
    findings = findings_of(8, name)
    rows = evaluate_under(findings.evidence, get_protocol(name)).classes
    cuts = [best_cut(row.scores, row.verdicts[0], row.objects) for row in rows]
    right, wrong = (
        sum(
            int(np.count_nonzero(row.verdicts[0, : cut.passing] == verdict))
            for row, cut in zip(rows, cuts, strict=True)
        )
        for verdict in (TRUE_POSITIVE, FALSE_POSITIVE)
    )
    found = describe_scores(findings)["working"]
    assert found["thresholds"] == [cut.threshold for cut in cuts]
    assert (found["right"], found["wrong"]) == (right, wrong)
    assert found["f1"] == 2 * right / (right + wrong + sum(row.objects for row in rows))


def test_a_score_reaches_a_level_exactly_if_it_is_no_smaller() -> None:
    rng = np.random.default_rng(0)
    evidence = evidence_of(0)
    for scores in (rng.integers(0, 101, 500) / 100, rng.random(500), rng.normal(0, 9, 500)):
        detections = replace(evidence.detections, scores=np.resize(scores, len(evidence.detections)))
        findings = Findings.of(replace(evidence, detections=detections), VOC12)
        reached = detections.scores[:, None] >= findings.values[None]
        np.testing.assert_array_equal(reached, np.arange(101)[None] <= findings.levels[:, None])
        assert list(findings.values) == sorted(set(score_levels(detections.scores)))


def test_calibration_error_is_the_mean_distance_of_score_and_share_that_is_right() -> None:
    far = BOX + 100
    evaluator = Evaluator(1, "voc12", boxes="continuous")
    found = {"boxes": torch.cat([BOX, far]), "scores": torch.tensor([0.75, 0.75]), "labels": torch.tensor([0, 0])}
    lower = {"boxes": far, "scores": torch.tensor([0.25]), "labels": torch.tensor([0])}
    there = {"boxes": BOX, "labels": torch.tensor([0])}
    evaluator.update([found, lower], [there, there])
    evidence = evaluator.evidence()
    assert calibration(Findings.of(evidence, VOC12)) == {
        "points": [{"count": 1, "score": 0.25, "right": 0.0}, {"count": 2, "score": 0.75, "right": 0.5}],
        "count": 3,
        "error": (1 * 0.25 + 2 * 0.25) / 3,
        "worst": None,
    }
    logits = replace(evidence, detections=replace(evidence.detections, scores=evidence.detections.scores * 9))
    assert calibration(Findings.of(logits, VOC12)) is None


def test_the_worst_point_of_the_calibration_is_the_furthest_off_that_has_enough_detections() -> None:
    """A thousand boxes near 0 hide in the mean that high scores are far off; a bin of few boxes shows nothing."""
    scores = torch.cat([torch.full((1000,), 0.01), torch.full((ENOUGH,), 0.85), torch.full((ENOUGH - 1,), 0.95)])
    found = {"boxes": (BOX + 100).repeat(len(scores), 1), "scores": scores, "labels": torch.zeros(len(scores)).long()}
    evaluator = Evaluator(1, "voc12", boxes="continuous")
    evaluator.update([found], [{"boxes": BOX, "labels": torch.tensor([0])}])
    result = calibration(Findings.of(evaluator.evidence(), VOC12))
    assert result is not None
    assert result["points"][result["worst"]] == {"count": ENOUGH, "score": pytest.approx(0.85), "right": 0.0}
    assert result["error"] < 0.1


@pytest.mark.parametrize("name", PROTOCOLS)
def test_sizes_share_out_the_objects_and_have_the_ap_of_the_evaluator(name: str) -> None:
    findings = findings_of(6, name)
    evidence, protocol, sizes = findings.evidence, get_protocol(name), found_by_size(findings)
    assert sum(row["objects"] for row in sizes) == np.count_nonzero(countable(evidence, protocol))
    assert sum(row["found"] for row in sizes) == findings.rates(findings.passing)["right"]
    if name == "coco":
        small = get_metric("ap@area=small")
        expected = evaluate_under(evidence, protocol, [small]).metrics[small.name].value
        assert sizes[0]["ap"] == expected


@pytest.mark.parametrize("name", PROTOCOLS)
def test_boxes_drawn_are_the_true_and_false_positives_that_reach_the_cut_and_the_objects_left(name: str) -> None:
    findings = findings_of(5, name)
    evidence, protocol = findings.evidence, get_protocol(name)
    drawn = [boxes_on(findings, image) for image in range(evidence.num_images)]
    counts = [
        [sum(box["verdict"] == kind for box in boxes) for boxes in drawn] for kind in ("right", "wrong", "missed")
    ]
    np.testing.assert_array_equal(counts, findings.by_image())
    there = np.bincount(evidence.objects.images[countable(evidence, protocol)], minlength=evidence.num_images)
    np.testing.assert_array_equal(np.array(counts[0]) + counts[2], there)
    for row, cut in zip(evaluate_under(evidence, protocol).classes, findings.cuts, strict=True):
        passing = row.scores >= (np.inf if cut.threshold is None else cut.threshold)
        for kind, verdict in (("right", TRUE_POSITIVE), ("wrong", FALSE_POSITIVE)):
            scores = [b["score"] for boxes in drawn for b in boxes if (b["verdict"], b["class"]) == (kind, row.name)]
            assert sorted(scores) == sorted(row.scores[passing & (row.verdicts[0] == verdict)].tolist())


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_right_detection_touches_the_object_it_found_and_a_class_mistake_one_of_another_class(name: str) -> None:
    evidence = evidence_of(7)
    mistakes = find_mistakes(evidence, get_protocol(name))
    labels, objects = evidence.detections.labels, evidence.objects
    for kind, same in ((RIGHT, True), (0, True), (1, False), (2, True), (4, False)):
        rows = np.flatnonzero(mistakes.of_detections == kind)
        touched = mistakes.touched[rows]
        assert (touched >= 0).all()
        assert ((objects.labels[touched] == labels[rows]) == same).all()
        np.testing.assert_array_equal(objects.images[touched], evidence.detections.images[rows])
    assert (mistakes.touched[mistakes.of_detections == 3] == -1).all()
