"""Random datasets: many small ones side by side, each a class of its own with its own images, ties and flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.evaluation import Evaluator
from tests.oracles.voc_devkit import Line, Truth
from tests.scenes import clustered_boxes, windows_near

CLASSES = 25
Entries = list[dict[str, Tensor]]


@dataclass(frozen=True)
class Dataset:
    """Final detections and objects of some images."""

    preds: Entries
    targets: Entries
    K: int = CLASSES

    def evaluator(self, *protocols: str | sg.Protocol) -> Evaluator:
        evaluator = Evaluator(self.K, list(protocols))
        half = len(self.preds) // 2
        evaluator.update(self.preds[:half], self.targets[:half])
        evaluator.update(self.preds[half:], self.targets[half:])
        return evaluator

    def truths(self, label: int) -> dict[str, Truth]:
        """The objects of one class as the devkit's oracle wants them."""
        return {
            str(i): Truth(t["boxes"][t["labels"] == label].tolist(), t["difficult"][t["labels"] == label].tolist())
            for i, t in enumerate(self.targets)
        }

    def lines(self, label: int) -> list[Line]:
        """The results file of one class."""
        return [
            Line(str(i), float(score), box.tolist())
            for i, p in enumerate(self.preds)
            for score, box, y in zip(p["scores"], p["boxes"], p["labels"], strict=True)
            if y == label
        ]


def random_dataset(rng: np.random.Generator, flag: str) -> Dataset:
    """`flag` is "difficult" or "iscrowd": what some objects are marked as."""
    images = int(rng.integers(2, 7))
    rows: list[list[Any]] = [[] for _ in range(images)]
    objects: list[list[Any]] = [[] for _ in range(images)]
    for label in range(CLASSES):
        _add_class(rng, label, rows, objects)
    preds = [_tensors(r, ("boxes", "scores", "labels")) for r in rows]
    targets = [_tensors(o, ("boxes", "labels", flag, "area")) for o in objects]
    return Dataset(preds, [{"difficult": t["labels"] < 0, **t} for t in targets])


def _add_class(rng: np.random.Generator, label: int, rows: list[list[Any]], objects: list[list[Any]]) -> None:
    """One small dataset: on some of the images, whole pixels, scores that often tie, some objects set aside."""
    used = np.flatnonzero(rng.random(len(rows)) < 0.7)  # the others have nothing of the class
    scale, ties, share = 4 ** int(rng.integers(0, 3)), rng.random() < 0.5, rng.choice([0.0, 0.3])
    for image in used:
        centres = rng.integers(6, 23, size=(2, 2))
        boxes = clustered_boxes(rng, centres, int(rng.integers(0, 5)), jitter=1)
        windows = windows_near(rng, boxes, centres, int(rng.integers(0, 7)))
        for box in boxes * scale:
            area = float(rng.choice([100.0, 1024.0, 1025.0, 9216.0, 20000.0]))
            objects[image].append((box, label, rng.random() < share, area))
        for box in windows * scale:
            score = float(rng.integers(0, 4)) / 4 if ties else float(rng.random())
            rows[image].append((box, score, label))


def _tensors(rows: list[Any], names: tuple[str, ...]) -> dict[str, Tensor]:
    kinds = {"boxes": torch.float64, "scores": torch.float64, "labels": torch.int64, "area": torch.float64}
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return {
        name: torch.as_tensor(np.array(column), dtype=kinds.get(name, torch.bool)).reshape(
            -1, *((4,) * (name == "boxes"))
        )
        for name, column in zip(names, columns, strict=True)
    }


def boxes_at(*lefts: float, width: float = 10.0, height: float = 10.0) -> Tensor:
    """Boxes of one size on one line."""
    return torch.tensor([[left, 0.0, left + width, height] for left in lefts], dtype=torch.float64).reshape(-1, 4)


def pred(boxes: Tensor, scores: list[float], labels: list[int] | None = None) -> dict[str, Tensor]:
    chosen = torch.tensor(labels if labels is not None else [0] * len(scores), dtype=torch.int64)
    return {"boxes": boxes, "scores": torch.tensor(scores, dtype=torch.float64), "labels": chosen}


def target(boxes: Tensor, labels: list[int] | None = None, **flags: list[Any]) -> dict[str, Tensor]:
    chosen = torch.tensor(labels if labels is not None else [0] * len(boxes), dtype=torch.int64)
    return {"boxes": boxes, "labels": chosen, **{name: torch.tensor(values) for name, values in flags.items()}}


def evaluate(protocol: str | sg.Protocol, preds: Entries, targets: Entries, K: int = 1) -> float:
    """mAP of a small scene."""
    evaluator = Evaluator(K, protocol)
    evaluator.update(preds, targets)
    return evaluator.compute().map


def after_nms(scores: list[Tensor], boxes: list[Tensor], threshold: float | None) -> list[dict[str, Tensor]]:
    """What a detector hands in: per image the windows that NMS keeps, class by class."""
    preds = []
    for s, b in zip(scores, boxes, strict=True):
        found = []
        for c in range(s.shape[1]):
            own = b[:, c] if b.ndim == 3 else b
            keep = torch.arange(len(s)) if threshold is None else sg.nms(own, s[:, c], threshold)[0]
            found.append((own[keep], s[keep, c], torch.full((len(keep),), c)))
        columns = [torch.cat(column) for column in zip(*found, strict=True)]
        preds.append(dict(zip(("boxes", "scores", "labels"), columns, strict=True)))
    return preds
