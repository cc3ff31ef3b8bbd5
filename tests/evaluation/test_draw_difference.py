"""The picture of a difference shows the detection, the objects and what either protocol says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepgrad.errors import ConfigError
from stepgrad.evaluation import Comparison, Evaluator
from stepgrad.metric.protocol import COCO

pytest.importorskip("matplotlib", reason="plots need it: pip install .[train]")

from stepgrad.evaluation.draw_difference import draw_difference, first_pair
from tests.evaluation.datasets import boxes_at, pred, target
from tests.report.tasks import task_evaluator


def compared(height: float) -> Comparison:
    evaluator = Evaluator(1, ["coco", "torchmetrics"], class_names=["dog"])
    evaluator.update([pred(boxes_at(0, height=height), [0.9])], [target(boxes_at(0, 50, height=20.0))])
    return evaluator.compare()


@pytest.mark.parametrize("with_picture", [False, True])
def test_the_detection_and_its_objects_are_drawn_with_both_verdicts(tmp_path: Path, with_picture: bool) -> None:
    pair = first_pair(compared(11.0))  # IoU 0.55 exactly
    picture = np.zeros((60, 80, 3), dtype=np.uint8) if with_picture else None
    figure = draw_difference(pair, tmp_path / "first.png", picture)
    (axes,) = figure.axes
    drawn = [patch.get_bbox().extents.tolist() for patch in axes.patches]
    assert drawn == [[0, 0, 10, 20], [50, 0, 60, 20], [0, 0, 10, 11]]
    title = axes.get_title(loc="left")
    assert "coco: true positive" in title
    assert "torchmetrics: false positive" in title
    assert "IoU thresholds" in title
    assert len(axes.images) == with_picture
    assert (tmp_path / "first.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("task", ["masks", "keypoints", "oriented"])
def test_shapes_are_drawn_where_they_were_compared(task: str) -> None:
    pytest.importorskip("contourpy")
    evaluator = task_evaluator(task, protocols=[COCO, replace(COCO, name="high", min_score=0.7)])[1]
    pair = first_pair(evaluator.compare())
    (axes,) = draw_difference(pair, evidence=evaluator.evidence()).axes
    assert evaluator.overlap.word in axes.get_title(loc="left")
    drawn = [type(patch).__name__ for patch in axes.patches]
    assert drawn == [{"keypoints": "Rectangle"}.get(task, "PathPatch")] * (1 + len(pair.first[0].objects))
    assert len(axes.lines) == (len(drawn) if task == "keypoints" else 0)  # points, without lines: they are not COCO's


def test_nothing_to_draw_is_said() -> None:
    comparison = compared(13.0)
    with pytest.raises(ConfigError, match="nothing to draw"):
        first_pair(comparison)
    with pytest.raises(ConfigError, match="coco and torchmetrics judge every detection alike"):
        draw_difference(comparison.pairs[0])
