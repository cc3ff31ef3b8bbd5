"""Made-up runs on real images: detections near the objects, and the log such a run would write."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stepgrad.data.base import DatasetTarget, DetectionDataset
from stepgrad.data.shapes import ShapesDataset
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.records import Evidence


def detections_of(
    dataset: DetectionDataset, rng: np.random.Generator, clutter: int = 3, missed: float = 0.25
) -> tuple[list[Any], list[Any]]:
    """Objects missed by that share, the others found, some twice, some under another class, and some boxes on nothing."""
    preds, targets = [], []
    for index in range(len(dataset)):
        target = dataset.target(index)
        boxes, labels, scores = [], [], []
        for box, label in zip(target["boxes"].numpy(), target["labels"].tolist(), strict=True):
            for _ in range(int(rng.choice(3, p=[missed, 0.75 - missed, 0.25]))):
                shift = rng.normal(0, 0.06, 4) * np.tile(box[2:] - box[:2], 2)
                boxes.append(box + shift)
                labels.append(label if rng.random() < 0.85 else int(rng.integers(len(dataset.class_names))))
                scores.append(rng.beta(5, 2))
        for _ in range(clutter):
            corner = rng.uniform(0, 110, 2)
            boxes.append(np.concatenate([corner, corner + rng.uniform(12, 60, 2)]))
            labels.append(int(rng.integers(len(dataset.class_names))))
            scores.append(rng.beta(2, 5))
        preds.append(
            {
                "boxes": torch.tensor(np.array(boxes).reshape(-1, 4)),
                "scores": torch.tensor(scores, dtype=torch.float64),
                "labels": torch.tensor(labels, dtype=torch.int64),
            }
        )
        targets.append(target)
    return preds, targets


def evaluated(
    dataset: DetectionDataset, preds: list[Any], targets: list[Any], protocols: Any, **options: Any
) -> Evaluator:
    evaluator = Evaluator(len(dataset.class_names), protocols, dataset.class_names, boxes="continuous", **options)
    evaluator.update(preds, targets)
    return evaluator


def evidence_of(dataset: DetectionDataset, preds: list[Any], targets: list[Any]) -> Evidence:
    return evaluated(dataset, preds, targets, "voc12").evidence()


def shapes_evidence(images: int = 24, seed: int = 0, clutter: int = 3) -> tuple[ShapesDataset, Evidence]:
    dataset = ShapesDataset("val", length=images)
    return dataset, evidence_of(dataset, *detections_of(dataset, np.random.default_rng(seed), clutter))


def nothing_found(dataset: DetectionDataset) -> list[Any]:
    none = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}
    return [none] * len(dataset)


class Renamed(ShapesDataset):
    """The same images under other ids and other names of classes."""

    def __init__(self, names: list[str], ids: list[str]) -> None:
        super().__init__("val", length=len(ids))
        self.class_names = tuple(names)
        self.named = ids

    def target(self, index: int) -> DatasetTarget:
        target = super().target(index)
        target["image_id"] = self.named[index]
        target["labels"] %= len(self.class_names)
        return target

    def index_of(self, image_id: str | int) -> int:
        return self.named.index(str(image_id))


def log_lines(nll: int = 200, map_steps: int = 120, every: int = 4, seed: int = 0) -> list[dict[str, Any]]:
    """The log of a run with both phases."""
    rng = np.random.default_rng(seed)
    versions = {"stepgrad": "0.1.0", "torch": "2.13.0", "python": "3.11.7"}
    lines: list[dict[str, Any]] = [{"kind": "start", "step": 0, "time": "2025-01-01T10:00:00", "versions": versions}]
    for step in range(every, nll + map_steps + 1, every):
        lines.append(_train_line(step, step <= nll, rng))
        if step % (10 * every) == 0:
            value = 0.62 * (1 - np.exp(-step / 110)) + 0.02 * rng.random()
            lines.append(
                {
                    "kind": "val",
                    "step": step,
                    "phase": "nll" if step <= nll else "map",
                    "map": {"voc12": value, "voc07": value - 0.02, "coco": 0.6 * value},
                    "images": 24,
                    "seconds": 0.4 * step,
                    "eval_seconds": 1.0,
                }
            )
    best = max((line for line in lines if line["kind"] == "val"), key=lambda line: line["map"]["voc12"], default=None)
    lines.append({"kind": "end", "step": nll + map_steps, "seconds": 0.4 * (nll + map_steps)})
    if best:
        lines[-1] |= {"best_step": best["step"], "best_map": best["map"]["voc12"]}
    return lines


def _train_line(step: int, nll: bool, rng: np.random.Generator) -> dict[str, Any]:
    loss = (2.0 * np.exp(-step / 70) + 0.25 if nll else 0.9 - step / 800) + 0.12 * rng.normal()
    push = float(0.4 + 0.2 * rng.random())
    return {
        "kind": "train",
        "step": step,
        "phase": "nll" if nll else "map",
        "loss": float(loss),
        "losses": {"nll" if nll else "map": float(loss)},
        "lr": 0.001,
        "images": 2,
        "windows": 128,
        "positives": 32,
        "gradient_norm": 3.2,
        "map": None if nll else float(0.55 + step / 2000 + 0.08 * rng.normal()),
        "nonzero": None if nll else float(0.3 + 0.1 * rng.random()),
        "positive_sum": None if nll else push,
        "negative_sum": None if nll else -push,
        "seconds": 0.4 * step,
        "loss_share": 0.1,
    }


CONFIG: dict[str, Any] = {
    "loss": "nll-then-map",
    "protocol": "voc12",
    "also_report": ["voc07", "coco"],
    "data": {"path": "shapes", "train": "train", "val": "val", "windows": None, "flip": True},
    "model": {"backbone": "tiny", "weights": None, "hidden": 256, "dropout": 0.5, "nms_threshold": 0.3},
    "nll": {"steps": 200, "images": 2, "windows": 64, "lr": 0.001, "momentum": 0.9},
    "map": {"steps": 120, "images": 16, "windows": 500, "lr": 0.0001},
    "run": {"seed": 3, "accelerator": "auto", "precision": "32-true"},
}
