"""The ladder of bounds: each rung by hand on small scenes, and the laws that hold on all."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.cli import main
from stepgrad.errors import ConfigError
from stepgrad.evaluation import Explanation, explain
from stepgrad.metric.protocol import COCO, PROTOCOLS, VOC12, Protocol
from tests.data.builders import coco_content, write_coco
from tests.evaluation.datasets import CLASSES, random_dataset
from tests.scenes import over_seeds

FAR = (500.0, 500.0, 510.0, 510.0)


def at(x: float, height: float = 10.0) -> tuple[float, float, float, float]:
    """A box that overlaps the object at x by height / 10."""
    return (x, 0.0, x + 10.0, height)


def explained(
    detections: list[tuple[Any, int, float]],
    objects: list[tuple[Any, int]],
    protocol: Protocol = VOC12,
    nms: float | None = None,
) -> Explanation:
    """One image; detections are (box, label, score), objects (box, label)."""
    boxes, labels, scores = zip(*detections, strict=True) if detections else ([], [], [])
    evaluator = sg.Evaluator(2, replace(protocol, absent_classes="skip"))
    preds = {
        "boxes": torch.tensor(boxes).reshape(-1, 4),
        "labels": torch.tensor(labels),
        "scores": torch.tensor(scores),
    }
    where, what = zip(*objects, strict=True)
    evaluator.update([preds], [{"boxes": torch.tensor(where), "labels": torch.tensor(what)}])
    return explain(evaluator.evidence(), evaluator.protocols[0], nms)


def ladder(found: Explanation) -> dict[str, float]:
    return {rung.name: pytest.approx(rung.map) for rung in found.rungs}


def test_every_rung_undoes_its_mistake() -> None:
    """Objects at 0, 20 and 40 (class 0). By decreasing score: background, the object at 0, a duplicate of it, one that fits
    too loosely, the object at 20; the one at 40 has a window of class 1 only."""
    detections = [
        (FAR, 0, 0.9),
        (at(0), 0, 0.8),
        (at(0, 9.0), 0, 0.7),
        (at(20, 4.0), 0, 0.6),
        (at(20, 8.0), 0, 0.5),
        (at(40), 1, 0.4),
    ]
    found = explained(detections, [(at(0), 0), (at(20), 0), (at(40), 0)])
    assert ladder(found) == {
        "now": (1 / 2 + 2 / 5) / 3,
        "without duplicates": (1 / 2 + 2 / 4) / 3,
        "without background": (1 + 2 / 3) / 3,
        "perfect order": 2 / 3,
        "every window": 1.0,
        "recall ceiling": 1.0,
    }
    assert found.losses["ranking"] == pytest.approx(2 / 3 - 0.3)
    assert found.advice.startswith("ranking: 36.7 points are lost by order within classes: train the head for mAP")


def test_the_better_box_that_nms_suppresses_has_a_rung() -> None:
    windows = [(at(0, 6.0), 0, 0.9), (at(0, 10.0), 0, 0.5)]
    found = explained(windows, [(at(0), 0)], COCO, nms=0.5)
    assert ladder(found) == {
        "now": 0.3,  # thresholds 0.5, 0.55 and 0.6
        "without duplicates": 0.3,
        "without background": 0.3,
        "perfect order": 0.3,
        "perfect NMS": 1.0,
        "every window": 1.0,
        "recall ceiling": 1.0,
    }
    assert found.detections == 1
    assert found.advice.startswith("NMS: 70.0 points")


def test_a_duplicate_that_fits_better_is_none() -> None:
    """At 0.5 the first detection takes the object, at 0.75 only the second reaches it: it stays."""
    found = explained([(at(0, 6.0), 0, 0.9), (at(0, 10.0), 0, 0.5)], [(at(0), 0)], COCO)
    assert found["without duplicates"] == found["now"] == pytest.approx((3 * 1 + 7 / 2) / 10)
    assert found["perfect order"] == 1.0


@pytest.mark.parametrize(
    ("detections", "objects", "cause"),
    [
        ([(at(0, 6.0), 0, 0.9)], [(at(0), 0)], "boxes"),
        ([(at(0), 1, 0.9)], [(at(0), 0)], "labels"),
        ([(FAR, 0, 0.9)], [(at(0), 0)], "objects"),
        ([], [(at(0), 0)], "objects"),
        ([(at(0), 0, 0.9)], [(at(0), 0)], "nothing"),
    ],
)
def test_the_advice_is_about_the_largest_loss(detections: Any, objects: Any, cause: str) -> None:
    found = explained(detections, objects, COCO)
    assert found.advice.startswith(f"{cause}: ")
    assert sum(found.losses.values()) + found["now"] == pytest.approx(1.0)


def test_a_confidence_threshold_is_told_first() -> None:
    scores = np.linspace(0.25, 0.9, 100).tolist()
    detections = [(at(20.0 * i), 0, score) for i, score in enumerate(scores)]
    found = explained(detections, [(at(0), 0)])
    assert found.advice.startswith("threshold first: scores begin at 0.25")
    assert explained([*detections[:99], (FAR, 0, 0.01)], [(at(0), 0)]).cut == ""


@over_seeds(40, 1000)
def test_no_rung_is_below_the_one_before(seed: int) -> None:
    rng = np.random.default_rng([seed, 77])
    data = random_dataset(rng, str(rng.choice(["difficult", "iscrowd"])))
    name = str(rng.choice(["voc07", "voc12", "coco", "voc07-python", "ultralytics", "lvis"]))
    evaluator = sg.Evaluator(CLASSES, PROTOCOLS[name])
    evaluator.update(data.preds, data.targets)
    nms = [None, 0.5][rng.integers(2)]
    found = explain(evaluator.evidence(), evaluator.protocols[0], nms)
    values = [rung.map for rung in found.rungs]
    assert all(b >= a - 1e-12 for a, b in pairwise(values)), found
    assert values[-1] <= 1.0 + 1e-12
    if nms is None:
        assert found["now"] == pytest.approx(evaluator.compute().map, abs=1e-12)


def test_masks_poses_and_oriented_boxes_have_a_ladder() -> None:
    mask = torch.zeros(3, 20, 20, dtype=torch.bool)
    mask[0, :10, :10] = mask[1, :10, :8] = mask[2, 12:, 12:] = True
    points = torch.tensor(
        [[[5.0, 5.0, 2.0], [8.0, 8.0, 2.0]], [[5.0, 5.5, 2.0], [8.0, 8.0, 2.0]], [[90.0, 90.0, 2.0]] * 2]
    )
    turned = torch.tensor([[5.0, 5.0, 10.0, 4.0, 0.3], [5.0, 5.0, 10.0, 3.0, 0.3], [50.0, 50.0, 10.0, 4.0, 0.0]])
    around = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    for task, key, shapes, objects in (
        ("masks", "masks", mask, {"masks": mask[:1]}),
        (sg.overlaps.Keypoints([0.1, 0.1]), "keypoints", points, {"keypoints": points[:1], "boxes": around}),
        ("oriented", "boxes", turned, {"boxes": turned[:1]}),
    ):
        evaluator = sg.Evaluator(1, "coco", task=task)
        order = [2, 1, 0]  # background first, then the looser one
        evaluator.update(
            [{key: shapes[order], "scores": torch.tensor([0.9, 0.8, 0.7]), "labels": torch.zeros(3).long()}],
            [{**objects, "labels": torch.zeros(1).long()}],
        )
        for nms in (None, 0.6):
            found = explain(evaluator.evidence(), evaluator.protocols[0], nms)
            assert found["now"] < found["without background"] <= found["perfect order"], task
            assert found["every window"] == found["recall ceiling"] == 1.0, task


def test_distances_are_refused() -> None:
    protocol = replace(VOC12, nearness="distance", match_thresholds=(2.0,))
    with pytest.raises(ConfigError, match="overlaps but got one of distances"):
        explained([], [(at(0), 0)], protocol)


def test_the_command_prints_draws_and_writes_the_ladder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_coco(tmp_path / "C", coco_content())
    (tmp_path / "found.json").write_text(
        json.dumps([{"image_id": 4, "category_id": 18, "bbox": [0, 0, 60, 20], "score": 0.5}])
    )
    given = ["explain", "--detections", str(tmp_path / "found.json"), "--data", str(data), "--nms", "0.5"]
    assert main([*given, "--plot", str(tmp_path / "a.svg"), "--report", str(tmp_path / "a.json")]) == 0
    printed = capsys.readouterr().out
    numbers = json.loads((tmp_path / "a.json").read_text())
    for rung in numbers["rungs"]:
        assert f"{100 * rung['map']:.1f}" in next(
            line for line in printed.splitlines() if line.startswith(rung["name"])
        )
    assert numbers["advice"] in printed
    assert "recall ceiling" in (tmp_path / "a.svg").read_text()
    assert main(["explain", "--detections", "found.json"]) == 2
    assert "--detections (a file) with --data" in capsys.readouterr().err
