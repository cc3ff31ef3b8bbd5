"""What ultralytics' validation counts, saved by `save_counted` and judged by us: the same mAP to the last digit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version
from PIL import Image

from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.errors import ConfigError
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.metric.protocol import ULTRALYTICS, ULTRALYTICS_8_3, ULTRALYTICS_8_4, ULTRALYTICS_OLD, Protocol
from stepgrad.models.yolo import save_counted
from tests.models.yolo.small import needs_ultralytics, train, yolo_folder

pytestmark = needs_ultralytics
CLASSES = 3
EQUAL = 1e-12  # both are sums of at most 101 terms of at most 1 / 100 in double precision


def data_at_the_edges(folder: Path, seed: int, images: int = 10) -> Path:
    """A YOLO folder of images of all shapes, with objects of which many touch an edge; one image has none."""
    rng = np.random.default_rng(seed)
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True)
    for i in range(images):
        width, height = rng.integers(30, 200, size=2).tolist()
        Image.fromarray(rng.integers(0, 255, size=(height, width, 3), dtype=np.uint8)).save(
            folder / f"images/{i:03d}.jpg"
        )
        corners = np.sort(rng.uniform(-0.3, 1.3, size=(0 if i == 3 else 6, 2, 2)).clip(0, 1), axis=1)
        centre, size = corners.mean(axis=1), corners[:, 1] - corners[:, 0]
        rows = np.concatenate([centre, size], axis=1)[(size > 0.05).all(axis=1)]
        lines = [f"{rng.integers(CLASSES)} " + " ".join(f"{number:.6f}" for number in row) for row in rows]
        (folder / f"labels/{i:03d}.txt").write_text("".join(f"{line}\n" for line in lines))
    names = ", ".join(f"class{c}" for c in range(CLASSES))
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images\nval: images\nnames: [{names}]\n")
    return folder / "data.yaml"


def near_the_objects(seed: int, ties: bool = False, turned: bool = True) -> Any:
    """The stock validator, given detections around the objects, of which many reach beyond the image.

    Where scores tie, they do so with those of other images: the sort of ultralytics is not stable. Some boxes are turned inside
    out, as those of heads without a distribution of distances may be; pycocotools, unlike ultralytics, leaves these out.
    """
    from ultralytics.models.yolo.detect import DetectionValidator
    from ultralytics.utils import ops

    class NearTheObjects(DetectionValidator):
        generator = torch.Generator().manual_seed(seed)

        def preprocess(self, batch: Any) -> Any:
            self.batch = super().preprocess(batch)
            return self.batch

        def postprocess(self, preds: Any) -> Any:
            stock, size = super().postprocess(preds), self.batch["img"].shape[2:]
            made = [self._near(self.batch, i, size, ops) for i in range(len(self.batch["img"]))]
            if isinstance(stock[0], dict):
                return [{"bboxes": m[:, :4], "conf": m[:, 4], "cls": m[:, 5], "extra": m[:, 6:]} for m in made]
            return made

        def _near(self, batch: Any, i: int, size: Any, ops: Any) -> torch.Tensor:
            here = batch["batch_idx"] == i
            boxes = (ops.xywh2xyxy(batch["bboxes"][here]) * torch.tensor(size)[[1, 0, 1, 0]]).repeat(8, 1)
            if i % 4 == 1:
                boxes = boxes[:0]  # nothing was found here
            boxes = boxes + 6 * torch.randn(boxes.shape, generator=self.generator)
            boxes[:, 2:] = boxes[:, 2:].maximum(boxes[:, :2] + 1)
            if turned:
                boxes[::7, 2] = boxes[::7, 0] - 3
            labels = batch["cls"][here].view(-1).repeat(8)[: len(boxes)]
            steps = 128 if ties else 100_000
            scores = torch.randperm(steps, generator=self.generator)[: len(boxes)].sort(descending=True).values
            scores = 0.01 + 0.9 * scores / steps
            return torch.cat([boxes, scores[:, None], labels[:, None]], dim=1)

    return NearTheObjects


def validate(data: Path, folder: Path, validator: Any, **settings: Any) -> Any:
    """Their metrics, and the folder in which the counted boxes are."""
    from ultralytics import YOLO

    model = YOLO("yolov8n.yaml")
    save_counted(model)
    usual = {
        "data": str(data),
        "imgsz": 96,
        "batch": 4,
        "plots": False,
        "device": "cpu",
        "workers": 0,
        "verbose": False,
    }
    place = {"project": str(folder), "name": "val", "exist_ok": True}
    return model.val(validator=validator, **{**usual, **place, **settings}), folder / "val" / "counted"


def judged(detections: Path, data: Path, protocol: Protocol) -> EvaluationResult:
    dataset = load_dataset(data, need_images=False)
    return evaluate_under(evidence_from(dataset, read_detections(detections, dataset)), protocol)


def rounding() -> float:
    """How far mAP may be off where boxes are rounded or read again: old versions resize back by one factor for both axes."""
    return 0.05 if their_protocol().clip else 1e-3


def their_protocol() -> Protocol:
    from ultralytics import __version__

    since = {"8.4.176": ULTRALYTICS, "8.4.37": ULTRALYTICS_8_4, "8.3.168": ULTRALYTICS_8_3, "0": ULTRALYTICS_OLD}
    return next(protocol for version, protocol in since.items() if Version(__version__) >= Version(version))


@pytest.mark.parametrize("settings", [{}, {"rect": False}, {"single_cls": True}, {"imgsz": 160, "batch": 1}])
@pytest.mark.parametrize("seed", range(3))
def test_mAP_of_the_counted_boxes_is_the_one_that_yolo_val_gives(
    seed: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    data = data_at_the_edges(tmp_path / "data", seed)
    metrics, counted = validate(data, tmp_path, near_the_objects(seed, ties=True), save_json=True, **settings)
    result = judged(counted / "detections.json", counted / "annotations.json", their_protocol())
    theirs = metrics.box.all_ap
    mine = np.array([list(row.ap_by_threshold.values()) for row in result.classes if row.objects])
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=EQUAL)
    assert result.map == pytest.approx(float(metrics.box.map), abs=EQUAL)
    assert 0.05 < result.map < 0.95


def test_clipping_is_what_the_saved_file_lost(tmp_path: Path) -> None:
    """The counted boxes, clipped by the rule, have the mAP of predictions.json; unclipped they have another."""
    data = data_at_the_edges(tmp_path / "data", 0)
    _, counted = validate(data, tmp_path, near_the_objects(0, turned=False), save_json=True)
    ours = replace(their_protocol(), name="unclipped", clip=False)
    boxes, objects = counted / "detections.json", counted / "annotations.json"
    cut = judged(boxes, objects, replace(ours, name="clipped", clip=True)).map
    saved = judged(tmp_path / "val" / "predictions.json", data, ours).map
    assert cut == pytest.approx(saved, abs=rounding())  # the file rounds boxes and scores
    if not their_protocol().clip:
        assert abs(judged(boxes, objects, ours).map - cut) > 0.01


def test_counted_detections_can_be_judged_on_the_users_own_data(tmp_path: Path) -> None:
    data = data_at_the_edges(tmp_path / "data", 1)
    metrics, counted = validate(data, tmp_path, near_the_objects(1))
    result = judged(counted / "detections.json", data, their_protocol())
    assert result.map == pytest.approx(float(metrics.box.map), abs=rounding())  # objects are read from the labels again


def test_images_of_the_same_name_keep_their_own_boxes(tmp_path: Path) -> None:
    data = data_at_the_edges(tmp_path / "data", 2, images=4)
    for kind in ("images", "labels"):
        for i, file in enumerate(sorted((data.parent / kind).iterdir())):
            place = file.parent / f"part{i}"
            place.mkdir()
            file.rename(place / f"same{file.suffix}")
    metrics, counted = validate(data, tmp_path, near_the_objects(2))
    for truth in (counted / "annotations.json", data):
        result = judged(counted / "detections.json", truth, their_protocol())
        assert result.map == pytest.approx(float(metrics.box.map), abs=rounding())


@pytest.mark.parametrize(("task", "model"), [("segment", "yolov8n-seg.yaml"), ("pose", "yolov8n-pose.yaml")])
def test_boxes_of_other_tasks_are_saved_as_counted(task: str, model: str, tmp_path: Path) -> None:
    data = yolo_folder(tmp_path / "data", task)
    yolo = train(data, tmp_path / "run", None, model, epochs=1)
    save_counted(yolo)
    place = {"project": str(tmp_path), "name": "val", "exist_ok": True}
    metrics = yolo.val(
        data=str(data), imgsz=64, conf=1e-6, plots=False, device="cpu", workers=0, verbose=False, **place
    )
    counted = tmp_path / "val" / "counted"
    unlimited = replace(their_protocol(), name="unlimited", min_score=None)
    result = judged(counted / "detections.json", counted / "annotations.json", unlimited)
    assert result.map == pytest.approx(float(metrics.box.map), abs=EQUAL)
    assert result.detections > 0


def test_models_for_something_else_are_refused() -> None:
    with pytest.raises(ConfigError, match="classify"):
        save_counted(SimpleNamespace(task="classify"))
