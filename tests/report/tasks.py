"""Made-up detections of masks, poses, oriented boxes and segments near the objects of the built-in set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.data.shapes import ShapesDataset
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.records import Evidence
from stepgrad.overlaps import Keypoints

TASKS = ("masks", "keypoints", "oriented", "segments")
SIGMAS = (0.1, 0.1, 0.1, 0.1)


def task_evaluator(
    task: str, images: int = 8, seed: int = 0, protocols: Any = "coco"
) -> tuple[ShapesDataset | None, Evaluator]:
    """Some objects are missed, others found a little off, some under another class; the images where they have any."""
    rng = np.random.default_rng(seed)
    dataset = ShapesDataset("val", length=images, task="boxes" if task == "segments" else task)
    evaluator = Evaluator(6, protocols, dataset.class_names, task=Keypoints(SIGMAS) if task == "keypoints" else task)
    for index in range(images):
        target: dict[str, Any] = dict(dataset.target(index))
        if task == "oriented":
            target["boxes"] = target.pop("oriented")
        if task == "segments":
            target["segments"] = target.pop("boxes")[:, [0, 2]] / 10
        rows = np.flatnonzero(rng.random(len(target["labels"])) < 0.75)
        wrong = rng.random(len(rows)) < 0.15
        labels = np.where(wrong, rng.integers(0, 6, len(rows)), target["labels"].numpy()[rows])
        key = {"oriented": "boxes"}.get(task, task)
        found = _moved(task, target[key].numpy()[rows], rng)
        pred = {
            key: torch.tensor(found),
            "scores": torch.tensor(rng.beta(5, 2, len(rows))),
            "labels": torch.tensor(labels),
        }
        evaluator.update([pred], [target])
    return None if task == "segments" else dataset, evaluator


def task_evidence(task: str, images: int = 8, seed: int = 0) -> tuple[ShapesDataset | None, Evidence]:
    dataset, evaluator = task_evaluator(task, images, seed)
    return dataset, evaluator.evidence()


def _moved(task: str, shapes: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """The shapes, each a little off."""
    if task == "masks":
        moved = [np.roll(mask, rng.integers(-4, 5, 2), axis=(0, 1)) for mask in shapes]
        return np.array(moved).reshape(-1, *shapes.shape[1:])
    if task == "keypoints":
        return shapes + np.concatenate([rng.normal(0, 3, (*shapes.shape[:2], 2)), np.zeros((*shapes.shape[:2], 1))], 2)
    size = shapes[:, 2:4].mean(axis=1, keepdims=True) if task == "oriented" else np.ptp(shapes, axis=1, keepdims=True)
    off = rng.normal(0, 0.08, shapes.shape) * size
    if task == "oriented":
        off[:, 4] = rng.normal(0, 0.15, len(shapes))
    return shapes + off
