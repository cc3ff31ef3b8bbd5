"""Results for other tools: COCO's json gives pycocotools our number, supervision gets every detection with its verdict."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from stepgrad.errors import InputError, MissingDependencyError
from stepgrad.evaluation import EvaluationResult, Evaluator
from tests.evaluation.datasets import boxes_at, pred, random_dataset, target
from tests.report.tasks import task_evaluator
from tests.scenes import over_seeds


@over_seeds(2, 20)
def test_coco_json_of_a_result_gives_pycocotools_the_same_map(seed: int, tmp_path: Path) -> None:
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    result = random_dataset(np.random.default_rng([seed, 70]), "iscrowd").evaluator("coco").compute()
    truth, found = result.to_coco()
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    (tmp_path / "found.json").write_text(json.dumps(found))
    with contextlib.redirect_stdout(io.StringIO()):
        data = coco.COCO(str(tmp_path / "truth.json"))
        evaluation = cocoeval.COCOeval(data, data.loadRes(str(tmp_path / "found.json")), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    assert result.map == pytest.approx(evaluation.stats[0], abs=1e-12)


@pytest.mark.parametrize("task", ["masks", "keypoints"])
def test_masks_and_poses_go_to_coco_json_with_the_same_map(task: str, tmp_path: Path) -> None:
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    rng = np.random.default_rng(5)
    evaluator = Evaluator(2, "coco", task=task)
    for _ in range(6):
        masks = rng.random((4, 8, 12)) < 0.5
        poses = np.concatenate([rng.uniform(10, 40, (4, 17, 2)), rng.integers(0, 3, (4, 17, 1))], axis=2)
        shapes = {"masks": masks} if task == "masks" else {"keypoints": poses}
        around = {} if task == "masks" else {"boxes": torch.tensor([[10.0, 10.0, 40.0, 40.0]]).repeat(4, 1)}
        moved = masks ^ (rng.random(masks.shape) < 0.2) if task == "masks" else poses + rng.normal(0, 1, poses.shape)
        labels = torch.tensor(rng.integers(0, 2, 4))
        found = {**around, task: moved, "scores": torch.tensor(rng.random(4)), "labels": labels}
        evaluator.update([found], [{**around, **shapes, "labels": labels}])
    result = evaluator.compute()
    truth, results = result.to_coco()
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    (tmp_path / "found.json").write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        data = coco.COCO(str(tmp_path / "truth.json"))
        for annotation in data.anns.values():  # pycocotools takes poses of files that have masks, too
            annotation.setdefault("segmentation", [])
        evaluation = cocoeval.COCOeval(
            data, data.loadRes(str(tmp_path / "found.json")), "segm" if task == "masks" else "keypoints"
        )
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    assert 0.05 < result.map == pytest.approx(evaluation.stats[0], abs=1e-12)


@pytest.mark.parametrize("task", ["masks", "keypoints", "oriented"])
def test_supervision_gets_the_shapes(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    module = ModuleType("supervision")
    module.Detections = FakeDetections  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "supervision", module)
    evaluator = task_evaluator(task, 2)[1]
    found = evaluator.compute().to_supervision()[0]
    shapes = evaluator.evidence().detections.shapes
    n = len(found.xyxy)
    if task == "masks":
        assert found.mask.shape == (n, 160, 160)
        assert found.mask.sum(axis=(1, 2)).tolist() == shapes.counts[:n].tolist()
    elif task == "keypoints":
        np.testing.assert_array_equal(found.data["keypoints"], shapes.points[:n])
    else:
        np.testing.assert_array_equal(found.data["xyxyxyxy"], shapes.corners[:n])


def result_of_two_images() -> EvaluationResult:
    evaluator = Evaluator(2, "voc12", class_names=["cat", "dog"])
    evaluator.update(
        [pred(boxes_at(0, 50), [0.5, 0.9], labels=[1, 1]), pred(boxes_at(), [])],
        [{**target(boxes_at(0), labels=[1]), "image_id": "street"}, {**target(boxes_at(0)), "image_id": "yard"}],  # type: ignore[dict-item]
    )
    return evaluator.compute()


@dataclass
class FakeDetections:
    """The arguments that supervision takes; the real one is looked at where it is installed."""

    xyxy: Any
    confidence: Any = None
    class_id: Any = None
    mask: Any = None
    data: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize("real", [False, True])
def test_supervision_gets_every_detection_with_its_verdict(monkeypatch: pytest.MonkeyPatch, real: bool) -> None:
    if real:
        pytest.importorskip("supervision", reason="not a dependency: pip install supervision")
    else:
        module = ModuleType("supervision")
        module.Detections = FakeDetections  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "supervision", module)
    by_image = result_of_two_images().to_supervision()
    assert list(by_image) == ["street", "yard"]
    street = by_image["street"]
    assert street.xyxy.tolist() == [[0, 0, 10, 10], [50, 0, 60, 10]]
    assert street.confidence.tolist() == [0.5, 0.9]
    assert street.class_id.tolist() == [1, 1]
    assert street.data["class_name"].tolist() == ["dog", "dog"]
    assert street.data["verdict"].tolist() == ["true positive", "false positive"]
    assert by_image["yard"].xyxy.shape == (0, 4)


def test_without_supervision_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(MissingDependencyError, match="pip install supervision"):
        result_of_two_images().to_supervision()


def test_a_result_without_its_detections_says_so() -> None:
    with pytest.raises(InputError, match="does not hold its detections"):
        replace(result_of_two_images(), evidence=None).to_coco()
