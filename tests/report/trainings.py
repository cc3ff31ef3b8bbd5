"""Made-up trainings of one detector on the same images: objects found with more or less noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.data.base import DetectionDataset
from stepgrad.evaluation import Evaluator
from stepgrad.report import Arm, write_comparison
from tests.report.runs import CONFIG, detections_of, evaluated

PROTOCOLS = ["coco", "voc12"]
NOISES = {"as it came": 0.45, "more cross-entropy": 0.35, "mAP": 0.25}


def noisy_evaluator(dataset: DetectionDataset, noise: float, protocols: list[str], seed: int = 0) -> Evaluator:
    """An evaluator that has seen made-up detections: the more noise, the worse."""
    rng = np.random.default_rng(seed + round(1000 * noise))
    return evaluated(dataset, *detections_of(dataset, rng, round(8 * noise), noise), protocols)


def noisy_arm(dataset: DetectionDataset, name: str, noise: float, seeds: int = 3) -> Arm:
    """An arm whose numbers and detections belong together."""
    evaluators = [noisy_evaluator(dataset, noise, PROTOCOLS, seed) for seed in range(seeds)]
    results = [evaluator.compute() for evaluator in evaluators]
    runs = [{protocol: result[protocol].map for protocol in PROTOCOLS} for result in results]
    return Arm(name, "as it is", runs, evaluators[0].evidence(), seconds=61.5)


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
