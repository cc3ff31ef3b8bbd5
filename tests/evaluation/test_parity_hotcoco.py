"""Oriented boxes: AP equals hotcoco's; boxes that are equal, and equal scores, among them."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from tests.scenes import over_seeds

hotcoco = pytest.importorskip("hotcoco", reason="hotcoco: the only other evaluator of oriented boxes by COCO's rules")
CLASSES, IMAGES = 3, 4


def oriented_set(rng: np.random.Generator) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Objects and detections as hotcoco reads them, image by image: near objects, on them, far from them."""
    objects: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for image in range(1, IMAGES + 1):
        columns = rng.uniform(10, 80, (4, 2)), rng.uniform(4, 30, (4, 2)), rng.uniform(-1.5, 1.5, (4, 1))
        boxes = np.concatenate(columns, axis=1)[: rng.integers(0, 5)]
        for box in boxes:
            category, area = int(rng.integers(1, CLASSES + 1)), float(box[2] * box[3])
            of_image = {"id": len(objects) + 1, "image_id": image, "category_id": category}
            objects.append({**of_image, "obb": box.tolist(), "area": area, "bbox": [0, 0, 1, 1], "iscrowd": 0})
            for _ in range(rng.integers(0, 4)):
                near = box + rng.normal(0, 1.0, 5) * [2, 2, 1, 1, 0.1] * rng.integers(0, 2)
                near[2:4] = np.abs(near[2:4]) + 0.5
                label = category if rng.random() < 0.8 else int(rng.integers(1, CLASSES + 1))
                score = float(rng.integers(1, 20)) / 20
                found.append({"image_id": image, "category_id": label, "obb": near.tolist(), "score": score})
    return objects, found


def their_ap(objects: list[dict[str, Any]], found: list[dict[str, Any]]) -> np.ndarray:
    """Mean AP, AP50 and AP75."""
    content = {
        "images": [{"id": n, "width": 100, "height": 100} for n in range(1, IMAGES + 1)],
        "categories": [{"id": c, "name": str(c)} for c in range(1, CLASSES + 1)],
        "annotations": objects,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth = hotcoco.COCO(content)
        judged = hotcoco.COCOeval(truth, truth.load_res(found), "obb")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return np.array(judged.stats[:3], dtype=np.float64)


def our_ap(objects: list[dict[str, Any]], found: list[dict[str, Any]]) -> np.ndarray:
    evaluator = sg.Evaluator(CLASSES, "coco", task="oriented")
    for image in range(1, IMAGES + 1):
        sides = []
        for rows in (found, objects):
            own = [row for row in rows if row["image_id"] == image]
            boxes = torch.tensor([row["obb"] for row in own], dtype=torch.float64).reshape(-1, 5)
            labels = torch.tensor([row["category_id"] - 1 for row in own], dtype=torch.long)
            sides.append({"boxes": boxes, "labels": labels})
        scores = [row["score"] for row in found if row["image_id"] == image]
        evaluator.update([{**sides[0], "scores": torch.tensor(scores, dtype=torch.float64)}], [sides[1]])
    return np.array(list(evaluator.coco_numbers().values)[:3])


@pytest.mark.filterwarnings("ignore:hotcoco")
@over_seeds(15, 1000)
def test_oriented_boxes_have_hotcocos_numbers(seed: int) -> None:
    objects, found = oriented_set(np.random.default_rng([seed, 97]))
    if found and objects:
        np.testing.assert_allclose(our_ap(objects, found), their_ap(objects, found), rtol=0, atol=1e-12)
