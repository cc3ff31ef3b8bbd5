"""Result files read as columns give what reading them one by one gives, and anything unusual is read one by one."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepgrad.data import COCODataset
from stepgrad.data import read_detections as reader
from stepgrad.errors import DataError

TRUTH = {
    "images": [{"id": i, "file_name": f"{i}.jpg", "width": 100, "height": 90} for i in (7, 3, 12)],
    "categories": [{"id": 5, "name": "cat"}, {"id": 2, "name": "dog"}],
    "annotations": [
        {"id": 1, "image_id": 3, "category_id": 2, "bbox": [1.5, 2, 3, 4.25], "area": 9.0, "iscrowd": 0},
        {"id": 2, "image_id": 12, "category_id": 5, "bbox": [10, 20, 30, 40], "iscrowd": 1},
    ],
}
ENTRY = {"image_id": 3, "category_id": 2, "score": 0.5, "bbox": [1.0, 2.0, 3.0, 4.0]}


def dataset(folder: Path) -> COCODataset:
    (folder / "truth.json").write_text(json.dumps(TRUTH))
    return COCODataset(folder / "truth.json", need_images=False)


def both_ways(folder: Path, entries: list[Any], monkeypatch: pytest.MonkeyPatch, empty: str = "count") -> list[Any]:
    """What the two readers give: detections and what else is known, or the text of an error."""
    data, path = dataset(folder), folder / "found.json"
    path.write_text(json.dumps(entries))
    found: list[Any] = []
    for one_by_one in (False, True):
        with monkeypatch.context() as patch:
            if one_by_one:
                patch.setattr(reader, "boxes_at_once", lambda *_: None)
            try:
                read = reader.read_detections(path, data, empty)
                columns = {c.name: getattr(read.detections, c.name) for c in fields(read.detections)}
                plain = {name: (str(v.dtype), v.tolist()) for name, v in columns.items() if v is not None}
                found.append((plain, read.written, read.unread, read.category_ids, read.by_box_area, read.inclusive))
            except DataError as error:
                found.append(str(error))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_columns_give_what_reading_one_by_one_gives(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    entries = [
        {
            "image_id": int(rng.choice([3, 7, 12])),
            "category_id": int(rng.choice([2, 5])),
            "score": float(rng.random()) if rng.random() < 0.8 else int(rng.integers(2)),
            "bbox": [float(v) if rng.random() < 0.5 else int(v) for v in rng.random(4) * 50],
            **({"segmentation": [[1, 2, 3, 4, 5, 6]]} if seed == 2 and rng.random() < 0.3 else {}),
        }
        for _ in range(40)
    ]
    at_once, one_by_one = both_ways(tmp_path, entries, monkeypatch)
    assert at_once == one_by_one
    assert not isinstance(at_once, str)


@pytest.mark.parametrize(
    "change",
    [
        {"image_id": "3"},
        {"image_id": 3.0},
        {"image_id": 4},
        {"image_id": True},
        {"category_id": 9},
        {"category_id": True},
        {"category_id": [2]},
        {"score": float("nan")},
        {"score": "0.5"},
        {"score": True},
        {"score": 10**400},
        {"bbox": [1, 2, 3]},
        {"bbox": [1, 2, 3, "4"]},
        {"bbox": [1, 2, 3, False]},
        {"bbox": {"a": 1, "b": 2, "c": 3, "d": 4}},
        {"bbox": [1, 2, -3, 4]},
        {"bbox": [1, 2, 0, 4]},
        {"bbox": [1e308, 2, 1e308, 4]},
        {"bbox": [1, 2, 1e-200, 1e-200]},
        {"bbox": None},
    ],
)
@pytest.mark.parametrize("empty", ["count", "error"])
def test_what_is_unusual_is_treated_as_one_by_one(
    change: dict[str, Any], empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, one_by_one = both_ways(tmp_path, [ENTRY, {**ENTRY, **change}], monkeypatch, empty)
    assert at_once == one_by_one


@pytest.mark.parametrize("entries", [[], [ENTRY, {"score": 0.5}], [ENTRY, 7], [ENTRY, [1]]])
def test_so_is_what_is_no_detection(entries: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, one_by_one = both_ways(tmp_path, entries, monkeypatch)
    assert at_once == one_by_one
