"""The evaluator counts detections that lie on another device as it counts the CPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from tests.accelerators.test_losses import CPU, Place, on

IMAGES, N, G = 3, 12, 4


def shapes(task: str, random: np.random.Generator, count: int) -> dict[str, Any]:
    """Windows or objects of one image, as the task wants them."""
    low = random.integers(0, 20, (count, 2))
    boxes = torch.tensor(np.concatenate([low, low + random.integers(5, 20, (count, 2))], axis=1), dtype=torch.float32)
    if task == "oriented":
        return {"boxes": torch.cat([boxes[:, :2], boxes[:, 2:] / 2, boxes[:, :1] / 9], dim=1)}
    if task == "segments":
        return {"boxes": boxes[:, [0, 2]]}
    if task == "masks":
        return {"boxes": boxes, "masks": torch.tensor(random.random((count, 16, 16)) < 0.5)}
    if task == "keypoints":
        points = torch.tensor(random.uniform(0, 40, (count, 17, 2)), dtype=torch.float32)
        return {"boxes": boxes, "keypoints": torch.cat([points, torch.ones(count, 17, 1)], dim=2)}
    return {"boxes": boxes}


@pytest.mark.parametrize("task", ["boxes", "masks", "keypoints", "oriented", "segments"])
def test_every_task_is_counted_as_on_the_cpu(device: Place, task: str) -> None:
    random = np.random.default_rng(1)
    targets = [shapes(task, random, G) | {"labels": torch.tensor([0, 1, 1, 0])} for _ in range(IMAGES)]
    found = [
        {
            key: torch.cat([t[key], other[key]])
            for key, other in ((k, shapes(task, random, N - G)) for k in t if k != "labels")
        }
        | {"scores": torch.tensor(random.random(N), dtype=torch.float32), "labels": torch.tensor([0, 1, 1, 0] * 3)}
        for t in targets
    ]
    results = []
    for place in (device, CPU):
        evaluator = sg.Evaluator(2, "dota" if task == "oriented" else "coco", task=task)
        for i in range(IMAGES):
            evaluator.update(on(place, found[i : i + 1]), on(place, targets[i : i + 1]))
        result = evaluator.compute()
        results.append((result.map, result.ap.tolist(), result.interval(resamples=20)))
    assert results[0] == results[1]
    assert results[0][0] > 0.0
