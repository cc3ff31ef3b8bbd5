"""The benchmark compares like with like: on the same detections the peers find the same AP."""

from __future__ import annotations

import pytest
import torch

from benchmarks import evaluator as benchmark


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools
def test_peers_of_the_benchmark_find_the_same_ap() -> None:
    pytest.importorskip("torchmetrics", reason="a reference of the tests only")
    pytest.importorskip("faster_coco_eval", reason="a peer of the benchmark: pip install .[bench]")
    pytest.importorskip("hotcoco", reason="a peer of the benchmark: pip install hotcoco")
    plain = benchmark.random_scene(600, images=40, objects=150)
    assert plain.detections == 600
    for task, kind, scene in (("boxes", "bbox", plain), ("masks", "segm", benchmark.with_masks(plain))):
        values: dict[str, float] = {}
        cases = {tool: benchmark.coco_case(scene, tool, kind) for tool in benchmark.PEERS[:-1]}
        cases |= {
            "stepgrad": benchmark.stepgrad_case(scene, task),
            "torchmetrics": benchmark.torchmetrics_case(scene, "faster_coco_eval", kind),
        }
        for name, case in cases.items():
            benchmark._quiet(case, name, values)()
        benchmark._check_equal(values)
        assert 0.1 < values["stepgrad"] < 0.9
        with pytest.raises(RuntimeError, match="hotcoco found"):
            benchmark._check_equal({**values, "hotcoco": values["hotcoco"] + 1e-5})


def test_scenes_of_the_benchmark_repeat() -> None:
    one, other = (benchmark.random_scene(500, images=10, objects=40) for _ in range(2))
    assert all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(one.preds, other.preds, strict=True))


def test_claims_are_kept_or_not_by_the_numbers() -> None:
    tools = {"stepgrad": 1.0, "hotcoco": 2.0, "faster-coco-eval": 0.5, "torchmetrics": 6.0}
    seconds = {f"{what}: {tool}": s for what in ("boxes", "masks") for tool, s in tools.items()}
    seconds |= {"one evaluation": 1.0, "1,000 resamples": 4.0}
    timings = {name: {"median": median} for name, median in seconds.items()}
    claims = benchmark.check_claims(timings, {"100000": 10, "400000": 50})
    assert [claim.met for claim in claims] == [True, False, True] * 2 + [True, False]
