"""Files of detections for tests of how sure their numbers are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def write_files(
    folder: Path, images: int = 30, names: tuple[str, ...] = ("dog", "cat"), rare: int = 0
) -> dict[str, str]:
    """An object of each class on each image (of the class `rare` only on the first few), and detections a.json and b.json, of
    which those of b rank better. Three frames make a clip."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    truth: dict[str, Any] = {
        "images": [
            {"id": i, "file_name": f"clip{i // 3}_{i % 3}.jpg", "width": 200, "height": 200}
            for i in range(1, images + 1)
        ],
        "categories": [{"id": c, "name": name} for c, name in enumerate(names, 1)],
        "annotations": [],
    }
    found: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    for i in range(1, images + 1):
        for c in range(1, len(names) + 1):
            box = [10.0 * c, 10.0, 40.0, 40.0]
            if not (rare and c == len(names) and i > rare):
                entry = {"id": len(truth["annotations"]) + 1, "image_id": i, "category_id": c, "bbox": box}
                truth["annotations"].append({**entry, "area": 1600, "iscrowd": 0})
            for name, skill in (("a", 0.4), ("b", 0.8)):
                hit = rng.random() < 0.7
                place = box if hit else [120.0, 120.0, 30.0, 30.0]
                score = float(rng.random() + skill * hit) / 2
                found[name].append({"image_id": i, "category_id": c, "bbox": place, "score": score})
    (folder / "truth.json").write_text(json.dumps(truth))
    for name, rows in found.items():
        (folder / f"{name}.json").write_text(json.dumps(rows))
    return {"detections": str(folder / "a.json"), "data": str(folder / "truth.json")}
