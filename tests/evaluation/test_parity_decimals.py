"""Equal to pycocotools on files whose boxes have decimals, where a rounding decides on which side of a threshold they fall.

Each seed evaluates 25 small datasets at once, as 25 classes: 1,000 in all, 20,000 in the nightly runs.
"""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO as PycocoFile
from pycocotools.cocoeval import COCOeval

from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.evaluation import Evaluator, Evidence
from stepgrad.evaluation.coco_numbers import AREAS, coco_numbers, count_area
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.metric.protocol import COCO
from tests.evaluation.decimals import CLASSES, Files, random_files
from tests.evaluation.references import PycocoResult
from tests.scenes import over_seeds

SEEDS, NIGHTLY = 1000 // CLASSES, 20_000 // CLASSES
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Both:
    """The same files, read and counted by us and by the reference."""

    evidence: Evidence
    ours: EvaluationResult
    theirs: PycocoResult


def both(files: Files, folder: Path) -> Both:
    truth, found = files.write(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        reference = PycocoFile(truth)
        evaluation = COCOeval(reference, reference.loadRes(str(found)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    dataset = load_dataset(truth, need_images=False)
    evidence = evidence_from(dataset, read_detections(found, dataset))
    theirs = PycocoResult(evaluation.stats.tolist(), evaluation.eval["precision"])
    return Both(evidence, evaluate_under(evidence, COCO), theirs)


def assert_same(case: Both) -> None:
    for row in case.ours.classes:
        for t, ap in enumerate(row.ap_by_threshold.values()):
            assert abs((ap if row.objects else -1.0) - case.theirs.ap(t, row.label)) < TOLERANCE
    for bounds, expected in zip(AREAS.values(), case.theirs.ap_by_area, strict=True):
        np.testing.assert_allclose(count_area(case.evidence, bounds).ap, expected, rtol=0, atol=TOLERANCE)
    for mine, reference in zip(coco_numbers(case.evidence).values, case.theirs.stats, strict=True):
        assert abs((-1.0 if math.isnan(mine) else mine) - reference) < TOLERANCE


@over_seeds(SEEDS, NIGHTLY)
def test_files_with_decimals_give_pycocotools_numbers(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    files = random_files(np.random.default_rng([seed, 40]))
    assert_same(both(files, tmp_path_factory.mktemp("files")))


def _one(box: list[float], detection: list[float]) -> Files:
    common = {"image_id": 1, "category_id": 1}
    annotation = {"id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0, **common}
    truth = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "dog"}], "annotations": [annotation]}
    return Files(truth, [{"bbox": detection, "score": 0.9, **common}])


@pytest.mark.parametrize(
    ("box", "detection"),
    [
        ([28.8, 12.3, 1.8, 12.6], [28.7, 10.9, 2.6, 10.8]),  # an overlap of 1/2, by the areas as written
        ([1e10, 5.0, 1e-6, 1.0], [1e10, 5.0, 1e-6, 1.0]),  # the corners are 1.9e-6 apart: no overlap is left
        ([1e10, 5.0, 1.5e-6, 1.0], [1e10, 5.0, 1.5e-6, 1.0]),  # 1.9e-6 of 1.5e-6: an overlap of more than 1
    ],
)
def test_areas_are_those_of_the_sizes_as_written(tmp_path: Path, box: list[float], detection: list[float]) -> None:
    assert_same(both(_one(box, detection), tmp_path))


def test_many_objects_on_one_image_change_nothing(tmp_path: Path) -> None:
    """With more than 16 objects windows are looked up by their left edge, which the corners alone do not bound."""
    files = _one([1e10, 5.0, 1.5e-6, 1.0], [1e10, 5.0, 1.5e-6, 1.0])
    annotation = files.truth["annotations"][0]
    more = [{**annotation, "id": i, "bbox": [20.3 * i, 0.1, 10.1, 9.7]} for i in range(2, 40)]
    found = [{**files.found[0], "bbox": [20.3 * i + 0.1, 0.1, 9.7, 8.9], "score": 0.5} for i in range(2, 40)]
    truth = {**files.truth, "annotations": [annotation, *more]}
    case = both(Files(truth, files.found + found), tmp_path)
    assert_same(case)
    assert case.ours.map > 0.3


def test_boxes_built_to_sit_on_thresholds_do() -> None:
    """They are of no use to the tests above if the rounding never decides anything."""
    differing = 0
    for seed in range(8):
        files = random_files(np.random.default_rng([seed, 40]))
        evaluators = [Evaluator(CLASSES, "coco") for _ in range(2)]
        for evaluator, digits in zip(evaluators, (None, 2), strict=True):
            evaluator.update(*_tensors(files, digits))
        first, second = (evaluator.compute().ap.numpy() for evaluator in evaluators)
        differing += int(np.count_nonzero(~np.isclose(first, second, equal_nan=True)))
    assert differing > 5


def _tensors(files: Files, decimals: int | None) -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """The boxes by corners, in double precision or rounded: what a user without files hands in."""
    preds, targets = [], []
    for image in files.truth["images"]:
        found = [row for row in files.found if row["image_id"] == image["id"]]
        there = [row for row in files.truth["annotations"] if row["image_id"] == image["id"]]
        scores = torch.tensor([row["score"] for row in found])
        preds.append({**_boxes_and_labels(found, decimals), "scores": scores})
        targets.append({**_boxes_and_labels(there, decimals), "iscrowd": torch.tensor([r["iscrowd"] for r in there])})
    return preds, targets


def _boxes_and_labels(rows: list[dict[str, Any]], decimals: int | None) -> dict[str, torch.Tensor]:
    boxes = np.array([row["bbox"] for row in rows], dtype=np.float64).reshape(-1, 4)
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    corners = corners if decimals is None else np.rint(corners * 10**decimals)
    labels = torch.tensor([row["category_id"] - 1 for row in rows], dtype=torch.int64)
    return {"boxes": torch.from_numpy(corners), "labels": labels}


@over_seeds(20, 400)
def test_one_evaluator_gives_one_ap_for_boxes_by_corners(seed: int) -> None:
    evaluator = Evaluator(CLASSES, "coco")
    evaluator.update(*_tensors(random_files(np.random.default_rng([seed, 41])), None))
    result, numbers = evaluator.compute(), evaluator.coco_numbers()
    assert abs(result.map - numbers["AP"]) < TOLERANCE
    assert abs(result.map_at(0.5) - numbers["AP50"]) < TOLERANCE
    assert abs(result.map_at(0.75) - numbers["AP75"]) < TOLERANCE
