"""Detections of several models as one list: weighted boxes fusion (Solovyev et al. 2019), its weights tuned on images.

Detections of one class that overlap become one: its box is the mean of theirs, weighted by score, and its score the weighted
mean over the models of the best score each gave, 0 for models that found nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.errors import InputError

Floats = NDArray[np.float64]
Detections = Sequence[Mapping[str, Any]]
THRESHOLDS = (0.5, 0.6, 0.7)
_STEPS = (0.5, 2.0)
_LEAST = 1e-6


@dataclass(frozen=True)
class Fusion:
    """Weighted boxes fusion of some models."""

    weights: tuple[float, ...]
    """One per model; they sum to 1."""
    threshold: float = 0.6
    """IoU with a fused box above which a detection joins it."""

    @classmethod
    def equal(cls, models: int) -> Fusion:
        """All models alike."""
        return cls((1.0 / models,) * models)

    def apply(self, several: Sequence[Detections]) -> tuple[list[dict[str, Any]], list[torch.Tensor]]:
        """The fused detections per image, best first, and features of each: the logit of the best score that each model gave
        there, how many detections were fused, and how far they lie apart.
        """
        self._check(several)
        fused = [self._image([_columns(found[i]) for found in several]) for i in range(len(several[0]))]
        return [image for image, _ in fused], [features for _, features in fused]

    def _check(self, several: Sequence[Detections]) -> None:
        counts = [len(found) for found in several]
        if len(counts) != len(self.weights) or len(set(counts)) > 1:
            raise InputError(
                f"Expected detections of {len(self.weights)} models on the same images but got lists of {counts} images."
            )

    def _image(self, models: Sequence[tuple[Floats, Floats, NDArray[np.int64]]]) -> tuple[dict[str, Any], torch.Tensor]:
        boxes, scores = (np.concatenate([columns[k] for columns in models]) for k in (0, 1))
        labels = np.concatenate([columns[2] for columns in models])
        model = np.repeat(np.arange(len(models)), [len(columns[1]) for columns in models])
        rows = [
            row
            for label in np.unique(labels)
            for row in self._class(int(label), *(c[labels == label] for c in (boxes, scores, model)))
        ]
        rows.sort(key=lambda row: -row[1])
        width = len(models) + 2
        image = {
            "boxes": torch.tensor(np.array([row[0] for row in rows]).reshape(-1, 4)),
            "scores": torch.tensor([row[1] for row in rows], dtype=torch.float64),
            "labels": torch.tensor([row[2] for row in rows], dtype=torch.long),
        }
        return image, torch.tensor(np.array([row[3] for row in rows]).reshape(-1, width)).float()

    def _class(
        self, label: int, boxes: Floats, scores: Floats, model: NDArray[np.int64]
    ) -> list[tuple[Floats, float, int, Floats]]:
        """Box, score, label and features of each fused detection of a class."""
        M = len(scores)
        weight = scores * np.array(self.weights)[model]
        sums, total = np.zeros((M, 4)), np.zeros(M)  # of the members of each fused box
        fused, best = np.zeros((M, 4)), np.zeros((M, len(self.weights)))
        members, apart, count = np.zeros(M), np.zeros(M), 0
        for i in np.argsort(-weight, kind="stable").tolist():
            alike = _iou(boxes[i], fused[:count])
            place = int(alike.argmax()) if count else 0
            if count and alike[place] > self.threshold:
                apart[place] += 1.0 - alike[place]
            else:
                place, count = count, count + 1
            sums[place] += weight[i] * boxes[i]
            total[place] += weight[i]
            fused[place] = sums[place] / total[place] if total[place] > 0 else boxes[i]
            best[place, model[i]] = max(best[place, model[i]], scores[i])
            members[place] += 1
        logits = np.log(np.clip(best[:count], _LEAST, 1 - _LEAST)) - np.log1p(
            -np.clip(best[:count], _LEAST, 1 - _LEAST)
        )
        features = np.column_stack([logits, np.log(members[:count]), apart[:count] / members[:count]])
        values = best[:count] @ np.array(self.weights)
        return [(fused[k], float(values[k]), label, features[k]) for k in range(count)]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for json."""
        return {"weights": list(self.weights), "threshold": self.threshold}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Fusion:
        return cls(tuple(float(w) for w in content["weights"]), float(content["threshold"]))


def tuned_fusion(
    several: Sequence[Detections], value: Callable[[Sequence[Any]], float], tick: Callable[[], object]
) -> Fusion:
    """The threshold, then the weights, that are best by `value` of fused detections; one weight is changed at a time."""
    best = Fusion.equal(len(several))
    reached = -1.0

    def look_at(candidate: Fusion) -> None:
        nonlocal best, reached
        found = value(candidate.apply(several)[0])
        tick()
        if found > reached:
            best, reached = candidate, found

    for threshold in THRESHOLDS:
        look_at(replace(Fusion.equal(len(several)), threshold=threshold))
    for model in range(len(several)):
        now = best.weights
        for step in _STEPS:
            changed = [weight * (step if m == model else 1.0) for m, weight in enumerate(now)]
            look_at(replace(best, weights=tuple(weight / sum(changed) for weight in changed)))
    return best


def fusions_tried(models: int) -> int:
    """How many fusions `tuned_fusion` looks at."""
    return len(THRESHOLDS) + len(_STEPS) * models


def _columns(found: Mapping[str, Any]) -> tuple[Floats, Floats, NDArray[np.int64]]:
    boxes = torch.as_tensor(found["boxes"]).detach().cpu().double().numpy().reshape(-1, 4)
    scores = torch.as_tensor(found["scores"]).detach().cpu().double().numpy().reshape(-1)
    if len(scores) and not (scores.min() >= 0.0 and scores.max() <= 1.0):
        raise InputError(f"Expected scores in [0, 1], which can be averaged over models, but got {scores.max():g}.")
    return boxes, scores, torch.as_tensor(found["labels"]).cpu().numpy().astype(np.int64).reshape(-1)


def _iou(box: Floats, others: Floats) -> Floats:
    """(M,) IoU of one box (4,) with others (M, 4)."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.maximum(high - low, 0.0).prod(axis=1)
    areas = (others[:, 2:] - others[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod()
    found: Floats = shared / np.maximum(areas - shared, _LEAST)
    return found
