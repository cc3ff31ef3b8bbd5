"""The commands on YOLO data, from a data.yaml to a report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stepgrad.cli import main
from stepgrad.data import load_dataset
from stepgrad.data.convert import convert
from tests.data.builders import write_yolo


def detections_of_everything(path: Path, split: str) -> list[dict[str, object]]:
    """Every object of a split, found, as COCO results; images by number where they have one, as YOLO tools write them."""
    dataset = load_dataset(path, split)
    found = []
    for i, image_id in enumerate(dataset.ids):
        target = dataset.target(i)
        for (x1, y1, x2, y2), label, crowd in zip(
            dataset.exact_boxes(i).tolist(), target["labels"].tolist(), target["iscrowd"].tolist(), strict=True
        ):
            box = [x1, y1, x2 - x1, y2 - y1]
            if not crowd:
                number = int(image_id) if str(image_id).isdigit() else image_id
                found.append({"image_id": number, "category_id": label + 1, "bbox": box, "score": 0.5})
    return found


def test_detections_on_yolo_data_are_judged_and_ignored_regions_set_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {"val/0007": "0 .25 .25 .25 .25\n1 .75 .75 .25 .25", "val/0008": "0 .5 .5 .5 .5"}
    path = write_yolo(tmp_path / "Y", "val: images/val\nnames: [cat, dog]\n", labels)
    found = detections_of_everything(path, "val")
    assert [entry["image_id"] for entry in found] == [7, 7, 8]
    stray = {"image_id": 8, "category_id": 1, "bbox": [1, 1, 8, 8], "score": 0.9}
    (tmp_path / "found.json").write_text(json.dumps([*found, stray]))
    command = ["evaluate", "--detections", str(tmp_path / "found.json"), "--data", str(path), "--split", "val"]

    def judged() -> float:
        assert main([*command, "--report", str(tmp_path / "report.json")]) == 0
        capsys.readouterr()
        return float(json.loads((tmp_path / "report.json").read_text())["map"])

    assert judged() < 1.0
    (tmp_path / "Y/ignored_regions.json").write_text('{"val/0008": [[0, 0, 12, 12]]}')
    assert judged() == pytest.approx(1.0)


@pytest.mark.filterwarnings("always::stepgrad.errors.LikelyMistakeWarning")
@pytest.mark.parametrize("command", ["evaluate --detections found.json", "report found.json found.json"])
def test_detections_of_one_split_name_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    labels = {f"{split}/{split}{i}": "0 .5 .5 .5 .5" for split in ("train", "val") for i in range(3)}
    path = write_yolo(tmp_path / "Y", "train: images/train\nval: images/val\nnames: [cat]\n", labels)
    Path("found.json").write_text(json.dumps(detections_of_everything(path, "val")))
    assert main([*command.split(), "--data", str(path)]) == 0
    shown = capsys.readouterr().err
    assert "3 of 6 images have no detection; all detections are of split val" in shown
    assert "--split val" in shown
    assert main([*command.split(), "--data", str(path), "--split", "val"]) == 0
    assert capsys.readouterr().err == ""


def test_a_detector_is_trained_on_yolo_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    convert("shapes:length=4", "Y", "yolo")
    dataset = load_dataset("Y", "train")
    ids = [*dataset.ids]
    windows = [np.concatenate([dataset.exact_boxes(i), [[0, 0, 80, 80], [40, 40, 160, 160]]]) for i in range(4)]
    offsets = np.cumsum([0, *map(len, windows)])
    np.savez("windows.npz", ids=np.array(ids), offsets=offsets, boxes=np.concatenate(windows).astype(np.float32))
    model = (
        "{backbone: tiny, weights: null, hidden: 8, dropout: 0, freeze: none, shortest_side: null, longest_side: null}"
    )
    Path("tiny.yaml").write_text(
        "data: {path: Y/data.yaml, train: train, val: train, windows: windows.npz}\n"
        f"model: {model}\nnll: {{steps: 1, images: 2}}\nmap: {{steps: 1, images: 2, windows: null}}\n"
        "run: {eval_every: 2, report: false}\n"
    )
    assert main(["train", "--config", "tiny.yaml", "--out", "run"]) == 0
    assert main(["evaluate", "--run", "run"]) == 0


def test_windows_of_yolo_data_are_kept_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_yolo(tmp_path / "Y")
    np.savez(tmp_path / "w.npz", ids=["a", "b"], offsets=[0, 1, 2], boxes=[[15, 15, 45, 25], [15, 10, 45, 30]])
    out = str(tmp_path / "windows")
    assert main(["propose", str(path), "--split", "train", "--source", str(tmp_path / "w.npz"), "--out", out]) == 0
    assert "66.7%" in capsys.readouterr().out
    assert main(["doctor", str(path), "--split", "train", "--proposals", out]) == 0
