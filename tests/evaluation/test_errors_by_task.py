"""Types of mistakes go by the overlap of the task, also where the boxes around the shapes say something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.errors_by_type import TYPES, find_mistakes
from stepgrad.metric.protocol import COCO
from stepgrad.overlaps import Distance, Keypoints, Overlap, ProbIoU

Scene = tuple[str, list[Any], list[Any]]


def mask(*rows: slice, corners: bool = True, at: int = 0) -> np.ndarray:
    """Rows of a square of 10 pixels, and its four corners, so that all have the same box."""
    square = np.zeros((10, 10), dtype=np.bool_)
    for row in rows:
        square[row] = True
    if corners:
        square[[0, 0, 9, 9], [0, 9, 0, 9]] = True
    whole = np.zeros((10, 60), dtype=np.bool_)
    whole[:, 10 * at : 10 * at + 10] = square
    return whole


def masks() -> Scene:
    half, few, other = slice(0, 5), slice(0, 2), slice(6, 9)
    fits = mask(half, at=0)
    fits[9, 59] = True  # one pixel far away: its box is six times as wide
    objects = [mask(half, at=at) for at in range(4)]
    return "masks", objects, [fits, mask(half, at=0), mask(few, at=1), mask(half, at=2), mask(other, at=3)]


def poses() -> Scene:
    """One keypoint in boxes of area 100; an OKS of 0.3 is 3.1 pixels away. Boxes of detections are those of the objects."""
    points = [[[20.0 * at + 5, 5.0, 2.0]] for at in range(4)]
    away = [[[20.0 * at + 5 + off, 5.0, 1.0]] for at, off in ((0, 0.0), (0, 0.5), (1, 3.1), (2, 0.0), (3, 9.0))]
    return "keypoints", points, away


def oriented() -> Scene:
    """Crossing bars have the same upright box: an IoU of 1 / 9 at 20 x 4, and of 1 / 39 at 40 x 2."""
    bars = [[100.0 * at, 0.0, *((40.0, 2.0) if at == 3 else (20.0, 4.0)), np.pi / 4] for at in range(4)]
    crossing = [[*bars[at][:4], -np.pi / 4] for at in (1, 3)]
    turned = [*bars[0][:4], np.pi / 4 + np.pi]
    return "boxes", bars, [turned, bars[0], crossing[0], bars[2], crossing[1]]


def segments() -> Scene:
    times = [[20.0 * at, 20.0 * at + 10] for at in range(4)]
    return "segments", times, [times[0], [0.0, 9.0], [25.0, 35.0], times[2], [69.5, 79.5]]


def centres() -> Scene:
    places = [[20.0 * at, 0.0] for at in range(4)]
    return "boxes", places, [places[0], [0.2, 0.0], [21.0, 0.0], places[2], [66.0, 0.0]]


TASKS: dict[str, tuple[str | Overlap, Scene]] = {
    "masks": ("masks", masks()),
    "keypoints": (Keypoints([0.1]), poses()),
    "oriented": ("oriented", oriented()),
    "probiou": (ProbIoU(), oriented()),
    "segments": ("segments", segments()),
    "distance": (Distance([0.5]), centres()),
}


def evaluator_of(task: str) -> Evaluator:
    overlap, (key, objects, found) = TASKS[task]
    evaluator = Evaluator(2, "coco", task=overlap)
    target = {key: torch.tensor(np.array(objects)), "labels": torch.tensor([0, 0, 1, 0])}
    pred = {key: torch.tensor(np.array(found)), "labels": torch.zeros(5, dtype=torch.long)}
    if task == "keypoints":
        target["boxes"] = torch.tensor([[20.0 * at, 0.0, 20.0 * at + 10, 10.0] for at in range(4)])
        pred["boxes"] = target["boxes"][[0, 0, 1, 2, 3]]
    evaluator.update([{**pred, "scores": torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])}], [target])
    return evaluator


@pytest.mark.parametrize("task", TASKS)
def test_one_mistake_of_each_type_by_the_overlap_of_the_task(task: str) -> None:
    evidence = evaluator_of(task).evidence()
    mistakes = find_mistakes(evidence, evidence.overlap.adapt(COCO), 0.5, 0.1)
    kinds = [TYPES[kind] if kind >= 0 else "right" for kind in mistakes.of_detections.tolist()]
    assert kinds == ["right", "duplicate", "box", "class", "background"]
    objects = [TYPES[kind] if kind >= 0 else "right" for kind in mistakes.of_objects.tolist()]
    assert objects == ["right", "box", "class", "missed"]


def test_tables_and_plots_speak_of_what_is_detected() -> None:
    pytest.importorskip("matplotlib", reason="plots need it: pip install .[train]")
    words = {"masks": ("mask IoU", "mask"), "keypoints": ("OKS", "pose"), "oriented": ("rotated IoU", "box")}
    for task, (word, noun) in {**words, "segments": ("tIoU", "segment")}.items():
        evaluator = evaluator_of(task)
        errors, result = evaluator.error_types(), evaluator.compute()
        assert str(errors).startswith(f"coco at {word} 0.5")
        assert errors.table()[1][0][0] == noun
        assert errors.plot().axes[0].get_title().startswith(f"coco at {word} 0.5")
        assert f"curves at {word} 0.5" in result.plot().get_suptitle()
        assert f"{word} 0.50:0.95" in result.metric("ap").how
        assert set(errors.counts) == set(TYPES)
