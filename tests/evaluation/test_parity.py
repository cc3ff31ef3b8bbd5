"""Equal to pycocotools and to the VOC devkit's rules on random datasets: ties, crowds, difficult objects, empties.

Each seed evaluates 25 small datasets at once, as 25 classes: 1,000 in all, 20,000 in the nightly runs.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from stepgrad.evaluation import Evaluator
from stepgrad.metric.protocol import COCO, VOC07_DEVKIT, VOC07_PYTHON, VOC12_DEVKIT
from tests.evaluation.datasets import CLASSES, random_dataset
from tests.evaluation.references import pycocotools
from tests.oracles import voc_devkit
from tests.scenes import over_seeds

SEEDS, NIGHTLY = 1000 // CLASSES, 20_000 // CLASSES
TOLERANCE = 1e-12
VOC12_PYTHON = replace(VOC12_DEVKIT, name="voc12-python", equality=False)


@over_seeds(SEEDS, NIGHTLY)
def test_coco_equals_pycocotools_and_so_do_the_twelve_numbers(seed: int) -> None:
    data = random_dataset(np.random.default_rng([seed, 20]), "iscrowd")
    theirs = pycocotools(data.preds, data.targets, data.K)
    evaluator = data.evaluator("coco")
    ours = evaluator.compute()
    for row in ours.classes:
        for t, ap in enumerate(row.ap_by_threshold.values()):
            assert abs((ap if row.objects else -1.0) - theirs.ap(t, row.label)) < TOLERANCE
    assert abs(ours.map - theirs.stats[0]) < TOLERANCE
    for mine, reference in zip(evaluator.coco_numbers().values, theirs.stats, strict=True):
        assert abs((-1.0 if math.isnan(mine) else mine) - reference) < TOLERANCE


@over_seeds(SEEDS // 4, NIGHTLY)
def test_one_evaluator_says_one_number_of_difficult_objects_under_coco(seed: int) -> None:
    data, small = random_dataset(np.random.default_rng([seed, 22]), "difficult"), "ap@area=small"
    evaluator = Evaluator(data.K, "coco", metrics=[small])
    evaluator.update(data.preds, data.targets)
    result, numbers = evaluator.compute(), evaluator.coco_numbers()
    assert abs(numbers["AP"] - result.map) < TOLERANCE
    assert abs(numbers["APs"] - result.metrics[small].value) < TOLERANCE


@over_seeds(SEEDS, NIGHTLY)
def test_devkit_protocols_equal_the_transcribed_rules(seed: int) -> None:
    data = random_dataset(np.random.default_rng([seed, 21]), "difficult")
    ours = data.evaluator(VOC07_DEVKIT, VOC12_DEVKIT, VOC07_PYTHON, VOC12_PYTHON).compute()
    for c in range(data.K):
        truths, lines = data.truths(c), data.lines(c)
        devkit, port = voc_devkit.devkit_curve(truths, lines), voc_devkit.port_curve(truths, lines)
        expected = {
            "voc07-devkit": voc_devkit.devkit_ap11(devkit),
            "voc12-devkit": voc_devkit.devkit_area(devkit),
            "voc07-python": voc_devkit.port_ap11(port),
            "voc12-python": voc_devkit.port_area(port) if port.positives else 0.0,
        }
        for name, ap in expected.items():
            assert abs(ours[name].classes[c].ap - ap) < TOLERANCE, (name, c)


def test_random_datasets_have_what_they_are_meant_to_have() -> None:
    crowds, difficult = (
        [random_dataset(np.random.default_rng(seed), flag) for seed in range(10)] for flag in ("iscrowd", "difficult")
    )
    assert sum(int(t["iscrowd"].sum()) for d in crowds for t in d.targets) > 50
    assert sum(int(t["difficult"].sum()) for d in difficult for t in d.targets) > 50
    rows = [row for d in difficult for row in d.evaluator("voc12-devkit").compute().classes]
    assert sum(row.objects == 0 for row in rows) > 5
    assert sum(len(np.unique(row.scores)) < len(row.scores) for row in rows) > 50
    assert 0.1 < np.mean([row.ap for row in rows]) < 0.9
    flips = [d.evaluator("voc07-devkit", "voc07-python").compute() for d in difficult]
    assert any(r.map != r["voc07-python"].map for r in flips)  # IoUs of exactly 1/2 occur


def test_limit_on_detections_equals_pycocotools() -> None:
    data = random_dataset(np.random.default_rng(5), "iscrowd")
    ours = data.evaluator(replace(COCO, max_detections=2)).compute()
    theirs = pycocotools(data.preds, data.targets, data.K, max_detections=(1, 1, 2))
    for row in ours.classes:
        for t, ap in enumerate(row.ap_by_threshold.values()):
            assert abs((ap if row.objects else -1.0) - theirs.ap(t, row.label)) < TOLERANCE
    assert ours.map != data.evaluator("coco").compute().map
