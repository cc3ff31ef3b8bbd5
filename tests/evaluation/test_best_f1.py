"""The score of the best F1, which the run's thresholds and the report's pictures both go by."""

from __future__ import annotations

import pytest
import torch

from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.judge import judge
from stepgrad.evaluation.result import best_thresholds
from stepgrad.metric.protocol import get_protocol
from stepgrad.report.examples import cuts_of
from tests.evaluation.datasets import boxes_at, pred, target


def test_equal_scores_pass_together_wherever_a_threshold_is_chosen() -> None:
    """Of .9 right, then .8 right and .8 wrong three times, a threshold of .8 lets all pass: F1 4/7, less than 2/3 at .9."""
    evaluator = Evaluator(1, "voc12", ["dog"])
    boxes = torch.cat([boxes_at(0), boxes_at(30), boxes_at(60, 80, 100)])
    evaluator.update([pred(boxes, [0.9, 0.8, 0.8, 0.8, 0.8])], [target(boxes_at(0, 30))])
    assert best_thresholds(evaluator.compute()) == {"dog": 0.9}
    evidence = evaluator.evidence()
    (cut,) = cuts_of(evidence, judge(evidence, get_protocol("voc12")))
    assert (cut.threshold, cut.passing) == (0.9, 1)
    assert cut.f1 == pytest.approx(2 / 3)


def test_class_never_found_has_no_threshold() -> None:
    evaluator = Evaluator(2, "voc12", ["dog", "cat"])
    evaluator.update([pred(boxes_at(50), [0.9])], [target(boxes_at(0))])
    assert best_thresholds(evaluator.compute()) == {}


def test_the_lowest_score_can_be_the_best_threshold() -> None:
    evaluator = Evaluator(1, "voc12", ["dog"])
    evaluator.update([pred(boxes_at(0, 30), [0.9, 0.8])], [target(boxes_at(0, 30))])
    assert best_thresholds(evaluator.compute()) == {"dog": 0.8}
