"""COCO files whose boxes have decimals, many of them built to overlap by exactly a threshold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = 25  # each a small dataset of its own
TWENTIETHS = np.arange(10, 20)  # COCO's thresholds
ON_A_BOUND = [(25.6, 40.0), (12.8, 80.0), (81.92, 12.5), (96.0, 96.0), (115.2, 80.0), (57.6, 160.0)]  # 32^2 and 96^2
Grid = NDArray[np.int64]  # boxes x y width height in units of the last decimal


@dataclass(frozen=True)
class Files:
    """Annotations and detections of one draw; every class is a small dataset of its own."""

    truth: dict[str, Any]
    found: list[dict[str, Any]]

    def write(self, folder: Path) -> tuple[Path, Path]:
        paths = folder / "instances.json", folder / "found.json"
        for path, content in zip(paths, (self.truth, self.found), strict=True):
            path.write_text(json.dumps(content))
        return paths


def random_files(rng: np.random.Generator) -> Files:
    """One or two decimals, a class at a time; scores often tie, some objects are crowds."""
    images = int(rng.integers(1, 5))
    objects: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for label in range(1, CLASSES + 1):
        unit, ties, crowds = int(rng.choice([10, 100])), rng.random() < 0.5, rng.choice([0.0, 0.3])
        for image in range(1, images + 1):
            if rng.random() < 0.7:
                boxes = _objects(rng, unit)
                crowd = rng.random(len(boxes)) < crowds
                for box, is_crowd in zip(_written(boxes, unit), crowd, strict=True):
                    common = {"image_id": image, "category_id": label, "bbox": box, "iscrowd": int(is_crowd)}
                    objects.append({"id": len(objects) + 1, "area": float(box[2] * box[3]), **common})
                for box in _written(_detections(rng, boxes, crowd), unit):
                    score = float(rng.integers(0, 4)) / 4 if ties else float(rng.random())
                    found.append({"image_id": image, "category_id": label, "bbox": box, "score": score})
    names = [{"id": label, "name": str(label)} for label in range(1, CLASSES + 1)]
    truth = {"images": [{"id": i} for i in range(1, images + 1)], "categories": names, "annotations": objects}
    return Files(truth, found)


def _written(boxes: Grid, unit: int) -> list[list[float]]:
    """As a file has them: each number the double nearest to its decimals."""
    rows: list[list[float]] = (boxes / unit).tolist()
    return rows


def _objects(rng: np.random.Generator, unit: int) -> Grid:
    count = int(rng.integers(0, 4))
    corners, sizes = rng.integers(0, 400, (count, 2)), rng.integers(1, 200, (count, 2))
    for row in np.flatnonzero(rng.random(count) < 0.2).tolist():
        sizes[row] = np.rint(np.array(ON_A_BOUND[rng.integers(len(ON_A_BOUND))]) * unit)
    return np.concatenate([corners, sizes], axis=1)


def _detections(rng: np.random.Generator, objects: Grid, crowd: NDArray[np.bool_]) -> Grid:
    """For each object some that overlap it by exactly a threshold, where a search finds any; some near, some far."""
    rows = [_objects(rng, 10)]
    for box, is_crowd in zip(objects, crowd, strict=True):
        near = _near(rng, box, 4000)
        exact = near[on_threshold(near, box, bool(is_crowd))]
        rows += [exact[: rng.integers(0, 4)], near[: rng.integers(0, 2)], box[None][: rng.integers(0, 2)]]
    return np.concatenate(rows)


def _near(rng: np.random.Generator, box: Grid, count: int) -> Grid:
    """Boxes whose edges lie around those of `box`."""
    reach = np.maximum(np.tile(box[2:], 2) // 2, 1)
    edges = np.concatenate([box[:2], box[:2] + box[2:]]) + rng.integers(-reach, reach + 1, (count, 4))
    sized = np.concatenate([edges[:, :2], edges[:, 2:] - edges[:, :2]], axis=1)
    return sized[(sized[:, 2:] > 0).all(axis=1)]


def on_threshold(boxes: Grid, box: Grid, crowd: bool) -> NDArray[np.bool_]:
    """Which overlap `box` by exactly one of COCO's thresholds, in whole numbers."""
    low = np.maximum(boxes[:, :2], box[:2])
    high = np.minimum(boxes[:, :2] + boxes[:, 2:], box[:2] + box[2:])
    inter = np.maximum(high - low, 0).prod(axis=1)
    union = boxes[:, 2:].prod(axis=1) + (0 if crowd else box[2:].prod() - inter)
    there: NDArray[np.bool_] = (20 * inter[:, None] == TWENTIETHS * union[:, None]).any(axis=1)
    return there
