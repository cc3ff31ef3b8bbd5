"""Random scenes for the page's JavaScript: what it is given, what it answers, and what the library says of the same."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import stepgrad as sg
from stepgrad.reference.nms import greedy, neighbour_sets
from tests.scenes import Batch, random_batch

ESTIMATORS = ("sde", "mee", "radius")
MODES = ("exact", "paper", "none")


@dataclass(frozen=True)
class TouchScene:
    """One image and one class, as the library and as the page take them."""

    batch: Batch
    protocol: str
    nms_threshold: float | None
    radius: float
    min_step: float

    @property
    def boxes(self) -> np.ndarray:
        return self.batch.boxes[0]

    @property
    def scores(self) -> list[float]:
        return self.batch.scores[0][:, 0].tolist()

    @property
    def objects(self) -> dict[str, np.ndarray]:
        return self.batch.targets[0]

    def for_page(self, through_nms: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The scene and the options of the page's functions."""
        windows = [{"box": b, "score": s} for b, s in zip(self.boxes.tolist(), self.scores, strict=True)]
        flags = zip(self.objects["boxes"].tolist(), self.objects["difficult"].tolist(), strict=True)
        objects = [{"box": box, "difficult": difficult} for box, difficult in flags]
        options = {
            "protocol": self.protocol,
            "nmsThreshold": self.nms_threshold,
            "throughNms": through_nms,
            "radius": self.radius,
            "minStep": self.min_step,
        }
        return {"windows": windows, "objects": objects}, options

    def ap(self) -> float:
        return sg.mean_average_precision(
            *self.batch.tensors(), protocol=self.protocol, nms_threshold=self.nms_threshold
        ).map

    def slopes(self, estimator: str, through_nms: str) -> list[float]:
        gradient = sg.map_pseudogradient(
            *self.batch.tensors(),
            protocol=self.protocol,
            nms_threshold=self.nms_threshold,
            estimator=estimator,
            radius=self.radius,
            through_nms=through_nms,
            min_step=self.min_step,
        )
        return gradient[0].flatten().tolist()

    def has_ties(self) -> bool:
        return len(set(self.scores)) < len(self.scores)

    def has_duplicates(self) -> bool:
        return len(np.unique(self.boxes, axis=0)) < len(self.boxes)

    def has_cascade(self) -> bool:
        """Whether some window, taken away, changes the fate of one that it does not overlap."""
        neighbours = neighbour_sets(self.boxes, self.nms_threshold)
        kept = set(greedy(self.scores, neighbours)[0])
        for b in range(len(self.scores)):
            alone = [frozenset() if c == b else others - {b} for c, others in enumerate(neighbours)]
            changed = kept ^ set(greedy(self.scores, alone)[0])
            if changed - neighbours[b] - {b}:
                return True
        return False


def touch_scene(seed: int) -> TouchScene:
    """Up to 12 crowded windows; every other scene has ties, every third one window twice, as it is or with another score."""
    rng = np.random.default_rng(seed)
    batch = random_batch(
        rng,
        windows=int(rng.integers(1 if seed % 5 == 0 else 8, 13)),
        objects=int(rng.integers(2, 9)),
        ties=seed % 2 == 0,
        difficult=0.25,
        clusters=int(rng.integers(1, 4)),
    )
    if seed % 3 == 0:
        boxes = batch.boxes[0].copy()
        boxes[-1] = boxes[0]
        batch = replace(batch, boxes=[boxes])
    return TouchScene(
        batch=batch,
        protocol=("voc07", "voc12", "coco")[int(rng.integers(3))],
        nms_threshold=(0.3, 0.3, 0.5, 0.7, 0.0, None)[int(rng.integers(6))],
        radius=float(rng.choice([0.5, 1.0, 3.0])),
        min_step=float(rng.choice([0.0, 0.1, 0.7])),
    )


@functools.cache
def touch_scenes(count: int = 200) -> list[TouchScene]:
    return [touch_scene(seed) for seed in range(count)]


def script(function: str, arguments: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """JavaScript that gives the answers to all arguments as JSON, in which infinities are null."""
    return f"JSON.stringify({json.dumps(arguments)}.map(([scene, options]) => {function}(scene, options)))"
