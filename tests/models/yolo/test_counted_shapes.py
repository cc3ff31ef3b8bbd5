"""Masks, poses and oriented boxes that `save_counted` saves: mAP is that of ultralytics' validation, to the last digit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from PIL import Image

from stepgrad.cli import main
from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.evaluation.compare import compare
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import COCO, ULTRALYTICS_JSON
from stepgrad.models.yolo import save_counted
from tests.models.yolo.small import needs_ultralytics
from tests.models.yolo.test_counted import CLASSES, EQUAL, their_protocol

pytestmark = needs_ultralytics
Draw = Callable[[np.random.Generator], list[float]]
PROTOCOLS = ULTRALYTICS_JSON, COCO
TASKS = {"segment": "masks", "pose": "keypoints", "obb": "oriented"}


@pytest.fixture(autouse=True)
def needs_shapes() -> None:
    import ultralytics

    if Version(ultralytics.__version__) < Version("8.3.168"):
        pytest.skip("older versions count other boxes than they compare, and save_counted keeps to boxes")


def outline(rng: np.random.Generator) -> list[float]:
    """A star around a centre, in shares of the image."""
    angles = np.sort(rng.uniform(0, 2 * np.pi, int(rng.integers(4, 9))))
    reach = rng.uniform(0.08, 0.4) * rng.uniform(0.5, 1, len(angles))
    points = rng.uniform(0.2, 0.8, 2) + reach[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return points.clip(0, 1).ravel().tolist()


def pose(rng: np.random.Generator, keypoints: int) -> list[float]:
    size = rng.uniform(0.1, 0.5, 2)
    centre = rng.uniform(size / 2, 1 - size / 2)
    points = np.column_stack([centre + (rng.random((keypoints, 2)) - 0.5) * size, rng.integers(0, 3, keypoints)])
    points[:, 2] *= rng.random() < 0.8  # some objects have no labelled keypoint
    return [*centre.tolist(), *size.tolist(), *points.ravel().tolist()]


def oriented(rng: np.random.Generator) -> list[float]:
    half, angle = rng.uniform(0.03, 0.2, 2), rng.uniform(0, np.pi)
    corners = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) * half
    turned = corners @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return (rng.uniform(0.3, 0.7, 2) + turned).clip(0, 1).ravel().tolist()


def data_of(folder: Path, seed: int, draw: Draw, more: str = "", images: int = 8) -> Path:
    """A YOLO folder of images of all shapes, with such labels; one image has none."""
    rng = np.random.default_rng(seed)
    classes = 1 if "kpt_shape" in more else CLASSES  # as many as the network of poses has
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True)
    for i in range(images):
        width, height = rng.integers(60, 200, size=2).tolist()
        picture = rng.integers(0, 255, size=(height, width, 3), dtype=np.uint8)
        Image.fromarray(picture).save(folder / f"images/{i:03d}.jpg")
        rows = [(int(rng.integers(classes)), draw(rng)) for _ in range(0 if i == 3 else 6)]
        lines = [f"{label} " + " ".join(f"{number:.6f}" for number in numbers) for label, numbers in rows]
        (folder / f"labels/{i:03d}.txt").write_text("".join(f"{line}\n" for line in lines))
    names = ", ".join(f"class{c}" for c in range(classes))
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images\nval: images\nnames: [{names}]\n{more}")
    return folder / "data.yaml"


def near_the_objects(task: str, seed: int) -> Any:
    """The stock validator of a task, given detections near the objects that it compares them with."""
    from ultralytics.models import yolo

    stock = {
        "segment": yolo.segment.SegmentationValidator,
        "pose": yolo.pose.PoseValidator,
        "obb": yolo.obb.OBBValidator,
    }[task]

    class NearTheObjects(stock):  # type: ignore[misc, valid-type]
        generator = torch.Generator().manual_seed(seed)

        def preprocess(self, batch: Any) -> Any:
            self.batch = super().preprocess(batch)
            return self.batch

        def postprocess(self, preds: Any) -> Any:
            return [self._near(self._prepare_batch(i, self.batch), i) for i in range(len(self.batch["img"]))]

        def _near(self, there: Any, i: int) -> dict[str, Any]:
            rows = torch.arange(len(there["cls"])).repeat(5 if i % 4 != 1 else 0)  # nothing was found in some images
            boxes = there["bboxes"][rows]
            noise = torch.randn(boxes.shape, generator=self.generator)
            boxes = boxes + noise * (torch.tensor([1.0, 1, 1, 1, 0.05]) if task == "obb" else 2.0)
            if task == "obb":
                boxes[:, 2:4] = boxes[:, 2:4].clamp(min=1)
            else:
                boxes[:, 2:] = boxes[:, 2:].maximum(boxes[:, :2] + 1)
            scores = torch.randperm(10_000, generator=self.generator)[: len(rows)].sort(descending=True).values
            made = {"bboxes": boxes, "conf": 0.01 + 0.9 * scores / 10_000, "cls": there["cls"][rows]}
            if task == "pose":
                points = there["keypoints"][rows].clone()
                points[..., :2] += 0.8 * torch.randn(points[..., :2].shape, generator=self.generator)
                made["keypoints"] = points
            if task == "segment":
                made["masks"] = self._masks(there, rows)
            return made

        def _masks(self, there: Any, rows: torch.Tensor) -> torch.Tensor:
            height, width = (side if self.args.save_json else side // 4 for side in there["imgsz"])
            masks, count = there["masks"], len(there["cls"])
            if len(masks) != count:  # older versions part and resize the objects later
                masks = (masks == torch.arange(1, count + 1)[:, None, None]).float()
            masks = masks[rows] if len(rows) else torch.zeros(0, height, width)
            if masks.shape[1:] != (height, width) and len(masks):
                masks = torch.nn.functional.interpolate(masks[None], (height, width), mode="nearest")[0]
            moved = [
                mask.roll(torch.randint(-1, 2, (2,), generator=self.generator).tolist(), dims=(0, 1)) for mask in masks
            ]
            return torch.stack(moved) if moved else masks

    return NearTheObjects


def validate(task: str, data: Path, folder: Path, seed: int, **settings: Any) -> tuple[Any, Path]:
    """Their numbers of the task, and the folder in which the counted shapes are."""
    from ultralytics import YOLO

    model = YOLO(f"yolov8n-{task.replace('segment', 'seg')}.yaml")
    save_counted(model)
    usual = {"imgsz": 96, "batch": 4, "plots": False, "device": "cpu", "workers": 0, "verbose": False}
    place = {"project": str(folder), "name": "val", "exist_ok": True, "data": str(data)}
    metrics = model.val(validator=near_the_objects(task, seed), **{**usual, **place, **settings})
    number = {"segment": "seg", "pose": "pose", "obb": "box"}[task]
    return getattr(metrics, number), folder / "val" / "counted"


def evidence_of(counted: Path, task: str) -> Evidence:
    dataset = load_dataset(counted / "annotations.json", need_images=False, task=TASKS[task])  # type: ignore[arg-type]
    return evidence_from(dataset, read_detections(counted / "detections.json", dataset))


CASES: list[tuple[str, Draw, str, dict[str, Any]]] = [
    ("segment", outline, "", {}),
    ("segment", outline, "", {"save_json": True}),
    ("segment", outline, "", {"overlap_mask": False, "rect": False}),
    ("segment", outline, "", {"single_cls": True, "imgsz": 160}),
    ("pose", lambda rng: pose(rng, 3), "kpt_shape: [3, 3]\n", {}),
    ("pose", lambda rng: pose(rng, 17), "kpt_shape: [17, 3]\n", {"rect": False}),
    ("pose", lambda rng: pose(rng, 2), "kpt_shape: [2, 3]\nkpt_oks_sigmas: [0.05, 0.1]\n", {"save_json": True}),
    ("obb", oriented, "", {}),
    ("obb", oriented, "", {"rect": False, "imgsz": 160}),
]


@pytest.mark.parametrize(("task", "draw", "more", "settings"), CASES)
@pytest.mark.parametrize("seed", range(2))
def test_mAP_of_the_counted_shapes_is_the_one_that_yolo_val_gives(
    seed: int, task: str, draw: Draw, more: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    data = data_of(tmp_path / "data", seed, draw, more)
    theirs, counted = validate(task, data, tmp_path, seed, **settings)
    result = evaluate_under(evidence_of(counted, task), their_protocol())
    mine = np.array([list(row.ap_by_threshold.values()) for row in result.classes if row.objects])
    np.testing.assert_allclose(mine, theirs.all_ap, rtol=0, atol=EQUAL)
    assert result.map == pytest.approx(float(theirs.map), abs=EQUAL)
    assert 0.05 < result.map < 0.95


def test_masks_with_whole_edges_are_those_of_predictions_json(tmp_path: Path) -> None:
    """`yolo val` cuts off the decimals of resized masks when it saves them; the rule does the same to the counted masks."""
    import ultralytics

    if Version(ultralytics.__version__) < Version("8.4.176"):
        pytest.skip("the rule is that of 8.4.190; 8.4.60 saves other masks")
    data = data_of(tmp_path / "data", 0, outline)
    _, counted = validate("segment", data, tmp_path, 0, save_json=True)
    dataset = load_dataset(counted / "annotations.json", need_images=False, task="masks")
    saved, ours = (
        {p.name: evaluate_under(evidence_from(dataset, read_detections(file, dataset)), p).map for p in PROTOCOLS}
        for file in (tmp_path / "val" / "predictions.json", counted / "detections.json")
    )
    whole, half = PROTOCOLS[0].name, PROTOCOLS[1].name
    assert ours[whole] == pytest.approx(saved[whole], abs=EQUAL)
    assert saved[half] == saved[whole]  # these masks have lost what the rule is about
    assert ours[half] != pytest.approx(saved[half], abs=1e-3)


@pytest.mark.parametrize(("task", "draw", "more", "settings"), [CASES[1], CASES[5], CASES[7]])
def test_compare_splits_what_yolo_val_prints_from_what_coco_says(
    task: str, draw: Draw, more: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    data = data_of(tmp_path / "data", 2, draw, more)
    theirs, counted = validate(task, data, tmp_path, 2, **settings)
    evidence = evidence_of(counted, task)
    protocols = [evidence.overlap.adapt(p) for p in (their_protocol(), COCO)]
    (pair,) = compare(evidence, protocols).pairs
    assert pair.maps[0] == pytest.approx(float(theirs.map), abs=EQUAL)
    assert pair.steps[-1].map == pytest.approx(pair.maps[1], abs=EQUAL)
    own_rule = {"segment": "mask resolution", "pose": "areas of poses", "obb": "likeness"}[task]
    assert abs(pair.parts()[own_rule]) > 0.01


def test_the_command_gives_the_number_that_yolo_val_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = data_of(tmp_path / "data", 1, oriented)
    theirs, counted = validate("obb", data, tmp_path, 1)
    options = ["--task", "oriented", "--protocol", their_protocol().name, "--report", str(tmp_path / "numbers.json")]
    files = ["--detections", str(counted / "detections.json"), "--data", str(counted / "annotations.json")]
    assert main(["evaluate", *files, *options]) == 0
    assert json.loads((tmp_path / "numbers.json").read_text())["map"] == pytest.approx(float(theirs.map), abs=EQUAL)
    assert f"mAP {100 * float(theirs.map):.1f}" in capsys.readouterr().out
