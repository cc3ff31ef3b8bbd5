"""The metrics of judged detections: the numbers of the loss, and COCO's for objects of some sizes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.metric.protocol import COCO, PROTOCOLS, VOC12, Protocol
from tests.evaluation.references import pycocotools
from tests.losses.test_detection_loss import NAMES, scene
from tests.scenes import Batch, random_batch


def detections_of(batch: Batch) -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """Every window as a detection of every class, as the loss sees it without NMS."""
    scores, boxes, targets = batch.tensors()
    K = batch.K
    preds = [
        {"boxes": b.repeat_interleave(K, dim=0), "scores": s.reshape(-1), "labels": torch.arange(K).repeat(len(s))}
        for s, b in zip(scores, boxes, strict=True)
    ]
    return preds, targets


@pytest.mark.parametrize("protocol", [VOC12, COCO], ids=lambda p: p.name)
@pytest.mark.parametrize("name", [*NAMES, "ap@area=0:40"])
def test_the_evaluator_reports_what_the_loss_measures(name: str, protocol: Protocol) -> None:
    if "area" in name and protocol is VOC12:
        return
    for seed in range(3):
        batch = scene(seed)
        loss_fn = sg.DetectionLoss(3, name, protocol, nms_threshold=None)
        with torch.no_grad():
            loss_fn(*batch.tensors())
        evaluator = sg.Evaluator(3, protocol, metrics=[name])
        evaluator.update(*detections_of(batch))
        found = evaluator.compute().metrics[name]
        assert found.value == pytest.approx(loss_fn.metrics["value"], rel=1e-14)
        np.testing.assert_allclose(found.by_class, loss_fn.metrics["by_class"], rtol=1e-14)


def test_weights_and_the_worst_class_can_be_asked_for_afterwards() -> None:
    evaluator = sg.Evaluator(3, "voc12")
    evaluator.update(*detections_of(scene(1)))
    result = evaluator.compute()
    values = result.metric("f1").by_class
    assert result.metric("f1", classes="worst").value == float(values.min())
    weighted = result.metric("f1", class_weights=[1.0, 2.0, 5.0]).value
    assert weighted == pytest.approx(float((values * torch.tensor([1.0, 2.0, 5.0])).sum()) / 8)
    assert float(result.metric("ap")) == pytest.approx(result.map, rel=1e-15)
    assert result.metric(lambda hits, objects: float(objects)).by_class.tolist() == [
        row.objects if row.objects else 0.0 for row in result.classes
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda p: p.name)
def test_ap_as_a_metric_is_map_under_every_protocol(protocol: Protocol) -> None:
    for seed in range(3):
        evaluator = sg.Evaluator(3, protocol)
        evaluator.update(*detections_of(scene(seed, crowd=0.1)))
        result = evaluator.compute()
        assert result.map > 0
        assert result.metric("ap").value == pytest.approx(result.map, rel=1e-14)


@pytest.mark.parametrize(
    "changes", [{}, {"max_detections": 9, "max_detections_of": "image"}, {"min_score": 0.5}], ids=str
)
def test_ap_of_all_sizes_is_map_whatever_the_protocol_leaves_out(changes: dict[str, object]) -> None:
    for seed in range(3):
        evaluator = sg.Evaluator(3, replace(COCO, name="changed", **changes), metrics=["ap@area=all"])
        evaluator.update(*detections_of(scene(seed)))
        result = evaluator.compute()
        assert result.metrics["ap@area=all"].value == pytest.approx(result.map, rel=1e-14)


@pytest.mark.parametrize("seed", range(6))
def test_ap_of_some_sizes_equals_cocos(seed: int) -> None:
    rng = np.random.default_rng([seed, 210])
    batch = random_batch(rng, windows=30, images=3, K=2, objects=14, crowd=0.2 * (seed % 2), ties=seed % 3 == 0)
    for target in batch.targets:  # annotated areas decide, not those of the boxes
        target["area"] = rng.uniform(10, 90, size=len(target["labels"])).round(1)
    bounds = {"all": (0.0, 1e10), "small": (0.0, 36.0), "medium": (36.0, 64.0), "large": (64.0, 1e10)}
    names = {size: f"ap@area={low:g}:{high:g}" for size, (low, high) in bounds.items()}
    evaluator = sg.Evaluator(2, "coco", metrics=list(names.values()))
    evaluator.update(*detections_of(batch))
    result = evaluator.compute()
    expected = pycocotools(*detections_of(batch), 2, areas=bounds).ap_by_area.mean(axis=-1)
    for a, size in enumerate(bounds):
        found = sg.metrics.AP(area=bounds[size])
        np.testing.assert_allclose(result.metrics[found.name].by_class, expected[a], rtol=0, atol=1e-12)


def test_metrics_are_part_of_the_table_and_of_the_report() -> None:
    evaluator = sg.Evaluator(3, "voc12", metrics=["recall@precision=0.5", "miss_rate"])
    evaluator.update(*detections_of(scene(2)))
    result = evaluator.compute()
    assert [line.split()[0] for line in str(result).splitlines()[-2:]] == ["recall@precision=0.5", "miss_rate"]
    written = json.loads(json.dumps(result.to_dict()))["metrics"]
    assert written["miss_rate"]["value"] == result.metrics["miss_rate"].value
    assert len(written["miss_rate"]["by_class"]) == 3


def test_sizes_are_refused_where_they_cannot_be_counted() -> None:
    with pytest.raises(ConfigError, match="COCO"):
        sg.Evaluator(1, ["coco", "voc12"], metrics=["ap@area=small"])
    evaluator = sg.Evaluator(1, replace(COCO, match_thresholds=(0.5,)))
    with pytest.raises(ConfigError, match="one of the evaluator's metrics"):
        evaluator.compute().metric("ap@area=small")
    with pytest.raises(ConfigError, match="continues to recall 1"):
        sg.Evaluator(1, "ultralytics-old").compute().metric("ap@max_recall=0.5")


def test_the_command_line_prints_the_metrics_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepgrad.cli import main

    box = [10.0, 10.0, 40.0, 40.0]
    images = [{"id": 1, "file_name": "a.png", "width": 100, "height": 100}]
    objects = [{"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "area": 1600.0, "iscrowd": 0}]
    truth = {"images": images, "categories": [{"id": 1, "name": "cup"}], "annotations": objects}
    found = [
        {"image_id": 1, "category_id": 1, "bbox": [60.0, 60.0, 20.0, 20.0], "score": 0.9},
        {"image_id": 1, "category_id": 1, "bbox": box, "score": 0.5},
    ]
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    (tmp_path / "found.json").write_text(json.dumps(found))
    report = tmp_path / "report.json"
    files = ["--detections", str(tmp_path / "found.json"), "--data", str(tmp_path / "truth.json")]
    metrics = ["--metric", "recall@precision=0.5", "cost@threshold=0.6,miss=10"]
    assert main(["evaluate", *files, *metrics, "--report", str(report)]) == 0
    printed = capsys.readouterr().out
    assert "recall@precision=0.5 100.0" in printed
    assert json.loads(report.read_text())["metrics"]["cost@threshold=0.6,false_alarm=1,miss=10"]["value"] == 11.0


HOW = {
    ("f1", "coco"): "mean of 2 classes, IoU 0.50:0.95, best threshold of each class and IoU",
    ("f1", "voc12"): "mean of 3 classes, IoU 0.5, best threshold of each class",
    ("f1@threshold=0.25", "coco"): "mean of 2 classes, IoU 0.50:0.95, scores of at least 0.25",
    ("recall@precision=0.5", "coco"): "mean of 2 classes, IoU 0.50:0.95",
}


@pytest.mark.parametrize(("name", "protocol"), HOW)
def test_a_metric_is_printed_with_its_classes_iou_and_threshold(name: str, protocol: str) -> None:
    evaluator = sg.Evaluator(3, protocol, metrics=[name])
    box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    found = {"boxes": box, "scores": torch.tensor([0.9]), "labels": torch.tensor([0])}
    evaluator.update([found], [{"boxes": torch.cat([box, box + 20]), "labels": torch.tensor([0, 1])}])
    result = evaluator.compute()
    assert f"{name} {100 * result.metrics[name].value:.1f} ({HOW[name, protocol]})" in str(result).splitlines()


def test_a_metric_over_classes_says_how_they_were_joined() -> None:
    evaluator = sg.Evaluator(2, "voc12")
    evaluator.update(*detections_of(random_batch(np.random.default_rng(0), K=2)))
    result = evaluator.compute()
    assert result.metric("f1", classes="worst").how.startswith("worst of ")
    assert result.metric("f1", class_weights=[1.0, 2.0]).how.startswith("weighted mean of 2 classes")
