"""The benchmark compares like with like: on the same detections the peers find the same AP."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import stepgrad as sg
from benchmarks import evaluator as benchmark
from stepgrad.metric.protocol import COCO


def test_peers_of_the_benchmark_find_the_same_ap() -> None:
    pytest.importorskip("torchmetrics", reason="a reference of the tests only")
    pytest.importorskip("faster_coco_eval", reason="a peer of the benchmark: pip install .[bench]")
    scene = benchmark.random_scene(1500, images=40, objects=150)
    assert scene.detections == 1500
    ours = sg.Evaluator(benchmark.CLASSES, replace(COCO, match_thresholds=(0.5,)))
    ours.update(scene.preds, scene.targets)
    expected = ours.compute().map
    assert 0.2 < expected < 0.9
    assert benchmark.faster_coco_eval_case(scene)() == pytest.approx(expected, abs=1e-9)
    for backend in ("pycocotools", "faster_coco_eval"):
        case = benchmark._quiet(benchmark.torchmetrics_case(scene, backend))
        assert case() == pytest.approx(expected, abs=1e-3)  # its recall levels are single precision
    assert benchmark.stepgrad_case(scene)() == pytest.approx(expected, abs=0.02)  # the area, not 101 points


def test_scenes_of_the_benchmark_repeat() -> None:
    one, other = (benchmark.random_scene(500, images=10, objects=40) for _ in range(2))
    assert all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(one.preds, other.preds, strict=True))


def test_claims_are_kept_or_not_by_the_numbers() -> None:
    seconds = {"stepgrad, voc12": 1.0, "torchmetrics (a)": 4.0, "torchmetrics (b)": 9.0, "faster-coco-eval": 2.0}
    timings = {name: {"median": median} for name, median in seconds.items()}
    claims = benchmark.check_claims(timings, {"100000": 10, "400000": 50})
    assert [claim.met for claim in claims] == [False, True, False]
