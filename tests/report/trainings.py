"""Made-up trainings of one detector on the same images: objects found with more or less noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepgrad.data.base import DetectionDataset
from stepgrad.report import Arm, write_comparison
from tests.report.runs import CONFIG, evaluated

PROTOCOLS = ["coco", "voc12"]
NOISES = {"as it came": 0.45, "more cross-entropy": 0.35, "mAP": 0.25}


def noisy_detections(dataset: DetectionDataset, noise: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Objects found or missed, their boxes moved, and boxes on nothing: the more noise, the worse."""
    rng = np.random.default_rng(seed)
    preds, targets = [], []
    for index in range(len(dataset)):
        target = dataset.target(index)
        boxes = target["boxes"].double().numpy().reshape(-1, 4)
        found = rng.random(len(boxes)) > noise
        sizes = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
        moved = (boxes + rng.normal(0, 0.05 + 0.1 * noise, boxes.shape) * sizes)[found]
        corners = rng.uniform(0, 100, (rng.poisson(4 * noise), 2))
        clutter = np.hstack([corners, corners + rng.uniform(12, 50, corners.shape)])
        labels = np.append(target["labels"].numpy()[found], rng.integers(len(dataset.class_names), size=len(clutter)))
        scores = np.append(rng.beta(5, 2, len(moved)), rng.beta(2, 4, len(clutter)))
        preds.append(
            {
                "boxes": torch.from_numpy(np.vstack([moved, clutter])),
                "scores": torch.from_numpy(scores),
                "labels": torch.from_numpy(labels),
            }
        )
        targets.append(target)
    return preds, targets


def noisy_arm(
    dataset: DetectionDataset, name: str, noise: float, protocols: list[str], seeds: int = 3, note: str = "as it is"
) -> Arm:
    """An arm whose numbers and detections belong together."""
    evaluators = [
        evaluated(dataset, *noisy_detections(dataset, noise, seed + round(1000 * noise)), protocols)
        for seed in range(seeds)
    ]
    results = [evaluator.compute() for evaluator in evaluators]
    runs = [{protocol: result[protocol].map for protocol in protocols} for result in results]
    return Arm(name, note, runs, evaluators[0].evidence(), seconds=61.5 if seeds else None)


def write(folder: Path, arms: Sequence[Arm], dataset: DetectionDataset, **changes: Any) -> Path:
    given: dict[str, Any] = {
        "title": "Fine-tuning",
        "sentence": "mAP gained.",
        "reference": max(0, len(arms) - 2),
        "chosen": len(arms) - 1,
        "protocols": PROTOCOLS,
        "config": CONFIG,
    }
    return write_comparison(folder, arms=arms, dataset=dataset, **{**given, **changes})


def numbers_of(page: Path) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads((page.parent / "report.json").read_text(encoding="utf-8"))
    return numbers


def with_maps(arm: Arm, values: Sequence[float], protocols: Sequence[str] = PROTOCOLS) -> Arm:
    return replace(arm, runs=[dict.fromkeys(protocols, value) for value in values])
