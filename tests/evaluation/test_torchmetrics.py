"""The protocol `torchmetrics`: equal to the package, which is pycocotools with numbers in single precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from stepgrad.evaluation import Evaluator
from stepgrad.metric.protocol import COCO, SINGLE_THRESHOLDS, TORCHMETRICS
from tests.evaluation.datasets import Entries, boxes_at, evaluate, pred, target
from tests.evaluation.ultralytics_numbers import CLASSES, random_set
from tests.scenes import over_seeds


def their_map(preds: Entries, targets: Entries, **options: object) -> float:
    detection = pytest.importorskip("torchmetrics.detection", reason="a reference of the tests only")
    metric = detection.MeanAveragePrecision(**options)
    metric.warn_on_many_detections = False
    metric.update(preds, targets)
    return float(metric.compute()["map"])


def levels() -> list[float]:
    """torch makes them differently on CPUs without instructions that multiply and add at once: hand in ours."""
    return TORCHMETRICS._float_levels(101).tolist()


def test_thresholds_and_recall_levels_are_those_that_torch_makes() -> None:
    assert torch.linspace(0.5, 0.95, 10).tolist() == list(SINGLE_THRESHOLDS)
    step = np.float32(1.0) / np.float32(100.0)
    q = np.arange(101, dtype=np.float32)
    twice_rounded = np.where(q < 50, q * step, np.float32(1.0) - (np.float32(100.0) - q) * step)
    assert torch.linspace(0.0, 1.0, 101).tolist() in (levels(), twice_rounded.astype(np.float64).tolist())


@over_seeds(10, 300)
def test_map_equals_that_of_torchmetrics(seed: int) -> None:
    data = random_set(seed)
    if sum(len(t["labels"]) for t in data.targets) == 0:
        return
    evaluator = Evaluator(CLASSES, "torchmetrics")
    evaluator.update(data.preds, data.targets)
    theirs = their_map(data.preds, data.targets, rec_thresholds=levels())
    assert evaluator.compute().map == pytest.approx(theirs, abs=1e-6)  # it answers in float32


@pytest.mark.parametrize("height", [11.0, 12.0, 16.0])  # IoU 0.55, 0.60, 0.80
def test_an_overlap_on_a_threshold_falls_on_its_side(height: float) -> None:
    found, there = pred(boxes_at(0, height=height), [0.9]), target(boxes_at(0, height=20.0))
    theirs = their_map([found], [there], rec_thresholds=levels())
    assert evaluate("torchmetrics", [found], [there]) == pytest.approx(theirs, abs=1e-6)
    assert evaluate(COCO, [found], [there]) == pytest.approx(theirs + 0.1, abs=1e-6)


def test_widths_are_those_of_single_precision() -> None:
    """0.1 to 0.6 in float32 is 0.50000001 wide, half of what 0.1 to 1.1 is; a corner in float64 is elsewhere."""
    wide, half = (torch.tensor([[0.1, 0.0, right, 1.0]]) for right in (1.1, 0.6))
    scores: Tensor = torch.tensor([0.9])
    found = {"boxes": half, "scores": scores, "labels": torch.tensor([0])}
    there = {"boxes": wide, "labels": torch.tensor([0])}
    theirs = their_map([found], [there], rec_thresholds=levels())
    assert evaluate("torchmetrics", [found], [there]) == pytest.approx(theirs, abs=1e-6)
