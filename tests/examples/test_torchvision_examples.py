"""The examples that fine-tune torchvision's detectors run as they stand, with fewer steps."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = EXAMPLES / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")


@pytest.fixture
def coco_folder(tmp_path: Path) -> Path:
    """Four pictures of one or two objects, categories with numbers of their own, and a crowd."""
    (tmp_path / "annotations").mkdir()
    (tmp_path / "images").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (4, 60, 80, 3), dtype=np.uint8)
    annotations = []
    for i in range(4):
        Image.fromarray(pixels[i]).save(tmp_path / "images" / f"{i}.png")
        annotations.append({"image_id": i, "category_id": 7, "bbox": [5 + i, 5, 40, 30], "iscrowd": int(i == 3)})
    annotations.append({"image_id": 0, "category_id": 3, "bbox": [30, 20, 30, 30], "iscrowd": 0})
    for number, annotation in enumerate(annotations):
        annotation |= {"id": number + 1, "area": annotation["bbox"][2] * annotation["bbox"][3]}
    content = {
        "images": [{"id": i, "file_name": f"{i}.png", "width": 80, "height": 60} for i in range(4)],
        "categories": [{"id": 3, "name": "cup"}, {"id": 7, "name": "hat"}],
        "annotations": annotations,
    }
    (tmp_path / "annotations" / "instances_mine.json").write_text(json.dumps(content))
    return tmp_path


def test_faster_rcnn_on_shapes_switches_to_map_and_keeps_the_best_beside_a_control(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("finetune_torchvision", ["--steps", "2", "--images", "1", "--control"], monkeypatch)
    *steps, last = capsys.readouterr().out.splitlines()
    assert ["loss_map" in line for line in steps] == [False, False, False, True]  # the control, then mAP
    assert re.match(r"Kept the weights .*: mAP \(voc12\) on held-out images \d+\.\d; .*with mAP \d+\.\d", last)


def test_faster_rcnn_is_trained_and_chosen_by_recall_at_a_precision(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("recall_at_precision", ["--steps", "2"], monkeypatch)
    *steps, last = capsys.readouterr().out.splitlines()
    assert all(re.match(r"step \d: recall at precision 0\.95 in the batch \d", line) for line in steps)
    assert len(steps) == 2
    assert re.match(r"Kept the weights .*: recall@precision=0\.95 \(voc12\) on held-out images \d\.\d+", last)


def test_weights_trained_on_a_coco_folder_load_into_a_stock_model(
    coco_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.pt"
    run("finetune_coco_folder", [str(coco_folder), "--out", str(out), "--steps", "2", "--images", "2"], monkeypatch)
    assert len(capsys.readouterr().out.splitlines()) == 3
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    model.load_state_dict(torch.load(out, weights_only=True))


def test_the_example_of_a_new_head_ends_with_a_model_of_its_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--out", str(tmp_path / "run"), "--images", "4", "--steps", "2", "--map-steps", "1"]
    run("new_head", arguments, monkeypatch)
    out = capsys.readouterr().out
    assert re.search(r"The model as a whole has [\d.]+ points of coco", out)
    assert "labels: {1: 'disk'" in out
    assert (tmp_path / "run" / "fine-tuning" / "report.html").exists()
