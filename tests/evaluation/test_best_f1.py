"""The score of the best F1, which the run's thresholds and the report's pictures both go by."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.class_result import best_cut
from stepgrad.evaluation.result import best_thresholds
from tests.evaluation.datasets import boxes_at, pred, target


def test_equal_scores_pass_together_wherever_a_threshold_is_chosen() -> None:
    """Of .9 right, then .8 right and .8 wrong three times, a threshold of .8 lets all pass: F1 4/7, less than 2/3 at .9."""
    evaluator = Evaluator(1, "voc12", ["dog"])
    boxes = torch.cat([boxes_at(0), boxes_at(30), boxes_at(60, 80, 100)])
    evaluator.update([pred(boxes, [0.9, 0.8, 0.8, 0.8, 0.8])], [target(boxes_at(0, 30))])
    assert best_thresholds(evaluator.compute()) == {"dog": 0.9}
    (row,) = evaluator.compute().classes
    cut = best_cut(row.scores, row.verdicts[0], row.objects)
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


def test_no_other_threshold_has_a_larger_f1() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        M, P = int(rng.integers(1, 12)), 6
        scores = np.sort(rng.integers(0, 5, M) / 4)[::-1]
        verdicts = rng.choice([0, 1, 2], M).astype(np.int8)
        verdicts[np.cumsum(verdicts == 1) > P] = 0
        cut = best_cut(scores, verdicts, P)
        f1 = [2 * (v == 1).sum() / ((v != 2).sum() + P) for v in (verdicts[scores >= s] for s in scores)]
        assert cut.f1 == max(f1)
        assert cut.passing == (0 if cut.threshold is None else np.count_nonzero(scores >= cut.threshold))
