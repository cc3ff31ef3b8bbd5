"""Masks and poses: every number equals pycocotools', with crowds, areas of masks, limits and objects without keypoints."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from tests.scenes import over_seeds

coco_api = pytest.importorskip("pycocotools.coco", reason="pycocotools: the reference")
cocoeval = pytest.importorskip("pycocotools.cocoeval", reason="pycocotools: the reference")
mask_api = pytest.importorskip("pycocotools.mask", reason="pycocotools: the reference")
CLASSES, SIDE = 3, 48
Image = dict[str, Any]


def blob(rng: np.random.Generator) -> np.ndarray:
    """A block of pixels with a bite taken out of it that leaves some: objects without pixels are refused."""
    mask = np.zeros((SIDE, SIDE), dtype=np.uint8)
    (top, left), (height, width) = rng.integers(0, SIDE - 6, 2), rng.integers(4, 30, 2)
    mask[top : top + height, left : left + width] = 1
    mask[top : top + rng.integers(1, 4), left : left + rng.integers(1, 4)] = 0
    return mask


def shifted(rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    return np.roll(mask, rng.integers(-2, 3, 2), axis=(0, 1))


def mask_sets(rng: np.random.Generator) -> tuple[list[Image], list[Image]]:
    """Objects and detections as COCO's json has them."""
    objects, found = [], []
    for image in range(1, 5):
        own = [blob(rng) for _ in range(rng.integers(0, 5))]
        for mask in own:
            rle = mask_api.encode(np.asfortranarray(mask))
            box = mask_api.toBbox(rle).tolist()
            crowd = int(rng.random() < 0.2)
            area = float(mask_api.area(rle)) * float(rng.choice([1.0, 1.0, 30.0]))
            objects.append(
                {
                    "image_id": image,
                    "category_id": int(rng.integers(1, CLASSES + 1)),
                    "segmentation": rle,
                    "bbox": box,
                    "area": area,
                    "iscrowd": crowd,
                }
            )
        for _ in range(rng.integers(0, 9)):
            mask = shifted(rng, own[rng.integers(len(own))]) if own and rng.random() < 0.8 else blob(rng)
            rle = mask_api.encode(np.asfortranarray(mask))
            found.append(
                {
                    "image_id": image,
                    "category_id": int(rng.integers(1, CLASSES + 1)),
                    "segmentation": rle,
                    "score": float(rng.integers(1, 8)) / 8,
                }
            )
    return objects, found


def pose_sets(rng: np.random.Generator) -> tuple[list[Image], list[Image]]:
    objects, found = [], []
    for image in range(1, 4):
        own = []
        for _ in range(rng.integers(0, 5)):
            corner, size = rng.uniform(0, 200, 2), rng.uniform(5, 150, 2)
            points = np.concatenate([corner + rng.random((17, 2)) * size, rng.integers(0, 3, (17, 1))], axis=1)
            if rng.random() < 0.2:
                points[:, 2] = 0
            own.append(points)
            number = int((points[:, 2] > 0).sum())
            objects.append(
                {
                    "image_id": image,
                    "category_id": 1,
                    "keypoints": points.reshape(-1).tolist(),
                    "num_keypoints": number,
                    "bbox": [*corner.tolist(), *size.tolist()],
                    "area": float(size.prod() * rng.uniform(0.3, 1)),
                    "iscrowd": int(rng.random() < 0.15),
                }
            )
        for _ in range(rng.integers(0, 30)):
            base = own[rng.integers(len(own))] if own and rng.random() < 0.9 else rng.uniform(0, 300, (17, 3))
            points = base.copy()
            points[:, :2] += rng.normal(0, rng.choice([1.0, 5.0, 20.0]), (17, 2))
            points[:, 2] = 1
            found.append(
                {
                    "image_id": image,
                    "category_id": 1,
                    "keypoints": points.reshape(-1).tolist(),
                    "score": float(rng.integers(1, 12)) / 12,
                }
            )
    return objects, found


def their_numbers(objects: list[Image], found: list[Image], kind: str, images: int, classes: int) -> list[float]:
    truth = coco_api.COCO()
    truth.dataset = {
        "images": [{"id": i + 1, "height": SIDE, "width": SIDE} for i in range(images)],
        "categories": [{"id": c + 1, "name": str(c)} for c in range(classes)],
        "annotations": [{"id": n + 1, **entry} for n, entry in enumerate(objects)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        run = cocoeval.COCOeval(truth, truth.loadRes([dict(entry) for entry in found]), kind)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return [float(value) for value in run.stats]


def our_numbers(objects: list[Image], found: list[Image], task: str, images: int, classes: int) -> list[float]:
    key = "segmentation" if task == "masks" else "keypoints"
    evaluator = sg.Evaluator(classes, "coco", task=task)
    for image in range(1, images + 1):
        truth, preds = ([entry for entry in entries if entry["image_id"] == image] for entries in (objects, found))
        shapes = [
            [np.array(e[key]).reshape(17, 3) if task == "keypoints" else e[key] for e in entries]
            for entries in (preds, truth)
        ]
        if task == "keypoints":
            shapes = [np.array(s).reshape(-1, 17, 3) for s in shapes]
        corners = [[x, y, x + w, y + h] for x, y, w, h in (e["bbox"] for e in truth)]
        evaluator.update(
            [
                {
                    task: shapes[0],
                    "scores": torch.tensor([e["score"] for e in preds], dtype=torch.float64),
                    "labels": torch.tensor([e["category_id"] - 1 for e in preds], dtype=torch.long),
                }
            ],
            [
                {
                    task: shapes[1],
                    "boxes": torch.tensor(corners, dtype=torch.float64),
                    "labels": torch.tensor([e["category_id"] - 1 for e in truth], dtype=torch.long),
                    "iscrowd": torch.tensor([e["iscrowd"] for e in truth]),
                    "areas": torch.tensor([e["area"] for e in truth], dtype=torch.float64),
                }
            ],
        )
    numbers = list(evaluator.coco_numbers().values)
    result = evaluator.compute()
    assert np.isnan(numbers[0]) or result.map == pytest.approx(numbers[0], abs=1e-12)
    return [-1.0 if np.isnan(value) else value for value in numbers]


@over_seeds(15, 2000)
def test_masks_have_pycocotools_twelve_numbers(seed: int) -> None:
    objects, found = mask_sets(np.random.default_rng([seed, 90]))
    if found and objects:
        theirs = their_numbers(objects, found, "segm", 4, CLASSES)
        np.testing.assert_allclose(our_numbers(objects, found, "masks", 4, CLASSES), theirs, rtol=0, atol=1e-12)


@over_seeds(15, 2000)
def test_poses_have_pycocotools_ten_numbers(seed: int) -> None:
    objects, found = pose_sets(np.random.default_rng([seed, 91]))
    if found and objects:
        theirs = their_numbers(objects, found, "keypoints", 3, 1)
        np.testing.assert_allclose(our_numbers(objects, found, "keypoints", 3, 1), theirs, rtol=0, atol=1e-12)
