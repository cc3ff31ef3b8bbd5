"""`stepgrad rescore`: files in, files out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepgrad.cli import main
from tests.models.rescore.worlds import shorten, world

IMAGES = 60


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, steps=120)


def entries_of(detections: Any) -> list[dict[str, Any]]:
    return [
        {
            "image_id": 100 + i,
            "category_id": 7 + int(label),
            "bbox": [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()],
            "score": float(score),
            "note": f"{i}",
        }
        for i, image in enumerate(detections)
        for box, score, label in zip(image["boxes"], image["scores"], image["labels"], strict=True)
    ]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Annotations, detections and features in a folder."""
    detections, targets, features = world(IMAGES, seed=0)
    annotations = [
        {"image_id": 100 + i, "category_id": 7 + int(label), "bbox": [*box[:2], *(np.subtract(box[2:], box[:2]))]}
        for i, target in enumerate(targets)
        for box, label in zip(target["boxes"].tolist(), target["labels"], strict=True)
    ]
    content = {
        "images": [{"id": 100 + i, "file_name": f"{i}.jpg", "width": 200, "height": 200} for i in range(IMAGES)],
        "categories": [{"id": 7, "name": "cat"}, {"id": 8, "name": "dog"}],
        "annotations": [{**a, "id": n, "iscrowd": 0} for n, a in enumerate(annotations, 1)],
    }
    (tmp_path / "gt.json").write_text(json.dumps(content))
    entries = entries_of(detections)
    np.savez(tmp_path / "features.npz", features=torch.cat(features).numpy())
    (tmp_path / "val.json").write_text(json.dumps(entries))
    return tmp_path


def test_a_file_is_fitted_and_rescored_and_keeps_all_but_its_scores(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = ["--detections", "val.json", "--data", "gt.json", "--features", "features.npz", "--out", "r.json"]
    paths = [str(files / word) if "." in word else word for word in fit]
    assert main(["rescore", *paths]) == 0
    said = capsys.readouterr().out
    assert "Scores follow " in said
    assert "the detector's own scores" in said
    use = ["--apply", "val.json", "--rescorer", "r.json", "--features", "features.npz", "--out", "better.json"]
    assert main(["rescore", *(str(files / word) if "." in word else word for word in use)]) == 0
    before, after = (json.loads((files / name).read_text()) for name in ("val.json", "better.json"))
    assert [{**row, "score": 0} for row in after] == [{**row, "score": 0} for row in before]
    assert [row["score"] for row in after] != [row["score"] for row in before]
    assert main(["evaluate", "--detections", str(files / "better.json"), "--data", str(files / "gt.json")]) == 0


def test_several_files_are_joined(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = [row for row in json.loads((files / "val.json").read_text()) if row["image_id"] != 105]
    (files / "b.json").write_text(json.dumps(second))
    both = [str(files / "val.json"), str(files / "b.json")]
    out = ["--out", str(files / "r.json")]
    assert main(["rescore", "--detections", *both, "--data", str(files / "gt.json"), *out]) == 0
    assert "2 models" in capsys.readouterr().out
    use = ["--rescorer", str(files / "r.json"), "--out", str(files / "better.json")]
    assert main(["rescore", "--apply", *both, *use]) == 0
    joined = json.loads((files / "better.json").read_text())
    assert {row["image_id"] for row in joined} == set(range(100, 100 + IMAGES))
    assert {row["category_id"] for row in joined} <= {7, 8}
    assert main(["rescore", "--apply", both[0], *use]) != 0
    assert "2 files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--detections", "val.json", "--data", "gt.json"], "--out"),
        (["--out", "r.json"], "--detections and --data"),
        (["--apply", "val.json", "--out", "b.json"], "--rescorer"),
        (["--apply", "val.json", "--rescorer", "gt.json", "--out", "b.json"], "stepgrad rescorer 1"),
        (["--apply", "val.json", "--rescorer", "none.json", "--out", "b.json"], "cannot be read"),
        (["--detections", "val.json", "--data", "gt.json", "--features", "gt.json", "--out", "r.json"], "npz"),
        (["--detections", "gone.json", "--data", "gt.json", "--out", "r.json"], "gone.json"),
        (["--detections", "val.json", "--data", "gt.json", "--task", "masks", "--out", "r.json"], "segmentation"),
    ],
)
def test_a_mistake_is_named_in_a_line(
    words: list[str], said: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(files / word) if word.endswith(".json") else word for word in words]
    assert main(["rescore", *paths]) != 0
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_unknown_categories_are_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "few.json").write_text(json.dumps([]))
    out = ["--data", str(files / "gt.json"), "--out", str(files / "r.json")]
    assert main(["rescore", "--detections", str(files / "few.json"), *out]) == 0
    assert "too few" in capsys.readouterr().out
    row = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 1, 1], "score": 0.5}
    (files / "other.json").write_text(json.dumps([row]))
    use = ["--rescorer", str(files / "r.json"), "--out", str(files / "b.json")]
    assert main(["rescore", "--apply", str(files / "other.json"), *use]) != 0
    assert "unknown category_id 1" in capsys.readouterr().err
