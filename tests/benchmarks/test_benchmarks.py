"""The benchmarks measure what they say: crowded scenes, turns, honest tables, and pages made of their results."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from benchmarks.children import run_child
from benchmarks.drop_in import Case, measure, render
from benchmarks.first_call import summary
from benchmarks.floor import floor_cases, overlapping_pairs
from benchmarks.peers import detection_peers, ranking_peers
from benchmarks.ranking import dense_approx_ndcg
from benchmarks.report import RESULTS, Claim, claims_table
from benchmarks.scale import CLASSES, Trial, least_bytes
from benchmarks.scenes import clustered_scene, crowding, disjoint_scene, relevance
from benchmarks.soft_rank import BATCH, fit
from benchmarks.timing import interleaved
from stepgrad.detector import FastRCNN
from stepgrad.losses.ranking.metrics import ndcg
from tests.double_precision import double_precision
from tests.models.tiny import SIZE, tiny_model

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    path.stem
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if "\ndef main(" in path.read_text(encoding="utf-8")
]
PAGES = sorted(path.stem for path in RESULTS.glob("*.json"))
NEED_ULTRALYTICS = ("drop_in_yolo",)


def benchmark(name: str) -> Any:
    if name in NEED_ULTRALYTICS:
        pytest.importorskip("ultralytics")
    return importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_says_how_it_is_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        benchmark(name).main(["--help"])
    assert end.value.code == 0
    assert f"python -m benchmarks.{name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in PAGES if name != "loss"])  # older than what the loss is measured by
def test_a_page_is_that_of_its_results(name: str) -> None:
    results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    page = benchmark(name.removesuffix("_large")).render(results)
    assert page == (RESULTS / f"{name}.md").read_text(encoding="utf-8")


def test_every_page_has_its_results() -> None:
    assert sorted(path.stem for path in RESULTS.glob("*.md")) == PAGES


def test_a_claim_is_kept_up_to_its_target_and_broken_ones_stand_out() -> None:
    page = claims_table([Claim("speed", target=2.0, measured=2.0), Claim("speed", target=2.0, measured=2.01)])
    assert [line.split(" | ")[3] for line in page.splitlines()[2:]] == ["yes", "**no**"]


def test_a_child_says_what_it_measured() -> None:
    assert run_child("ranking", "--peak", 2000)["bytes"] > 8


def test_interleaved_takes_turns() -> None:
    calls: list[str] = []
    timings = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warm_up=1)
    assert calls == ["a", "b"] * 4
    assert timings["a"].rounds == 3


def test_clustered_scene_has_every_class_and_repeats() -> None:
    scene, again = clustered_scene(images=8, windows=200), clustered_scene(images=8, windows=200)
    assert set(torch.cat([t["labels"] for t in scene.targets]).tolist()) == set(range(20))
    assert all(torch.equal(a, b) for a, b in zip(scene.scores, again.scores, strict=True))


def test_clustered_scene_is_as_crowded_as_selective_search() -> None:
    root = os.environ.get("STEPGRAD_DATA")
    if root is None or not (Path(root) / "VOC2012-320").is_dir():
        pytest.skip("real windows are needed: set STEPGRAD_DATA to the folder that holds VOC2012-320")
    from stepgrad.detector.training.inputs import open_data

    voc = Path(root) / "VOC2012-320"
    images = open_data(str(voc), "train", str(voc / "selective_search_fast.npz"), 40)
    facts = [images.facts(i) for i in range(len(images))]
    real = crowding([windows for windows, _ in facts], [target["boxes"] for _, target in facts])
    scene = clustered_scene(images=16, windows=round(real.windows))
    made = crowding(scene.boxes, [t["boxes"] for t in scene.targets])
    for name in ("neighbours", "near_copies", "kept"):
        assert 0.5 < getattr(made, name) / getattr(real, name) < 2


def test_disjoint_scene_has_no_overlaps_and_one_window_per_object() -> None:
    scene = disjoint_scene(600, 12, images=2)
    assert (scene.windows, int(relevance(scene).sum())) == (600, 12)
    assert all(int((box_iou(b, b) > 0).sum()) == len(b) for b in scene.boxes)


def test_floor_sweep_visits_every_overlapping_pair_once() -> None:
    scene = clustered_scene(images=2, windows=120)
    first, second = overlapping_pairs(scene, 0.3)
    assert len(first) == sum((int((box_iou(b, b) > 0.3).sum()) - len(b)) // 2 for b in scene.boxes)
    assert np.all(first < second)
    for case in floor_cases(scene, threads=1).values():
        case()


def test_missing_peers_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    scene = clustered_scene(images=8, windows=300)
    peers = detection_peers(scene) + ranking_peers(torch.arange(4.0), torch.tensor([True, False, True, False]))
    assert {p.name for p in peers if p.run is not None} == {"softmax cross-entropy"}  # which torch brings along
    assert all(p.note.startswith("not installed") for p in peers if p.run is None)


@pytest.mark.parametrize("family", ["faster_rcnn", "retinanet"])
def test_every_way_of_training_a_stock_detector_is_measured(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.drop_in.CLASSES", 3)
    case = Case(lambda: tiny_model(family), SIZE, 2, target=1000.0, first_label=int(family == "faster_rcnn"))
    row = measure(family, case, rounds=1)
    assert row["ratio"]["mix"] == row["mix"]["median"] / row["stock"]["median"]
    assert row["anchors"] == (None if family == "faster_rcnn" else (64 + 16) * 6)
    page = render({"command": "x", "machine": {}, "families": [row, {**row, "target": 0.0}]})
    assert [line.endswith("| yes |") for line in page.splitlines()[-2:]] == [True, False]


def test_ratios_of_first_calls_are_taken_within_rounds() -> None:
    """A slow spell that hits one round whole changes no ratio."""

    def found(slow: float) -> dict[str, dict[str, dict[str, float]]]:
        seconds = {"before": 10.0, "after": 2.0}
        return {
            name: {cache: {"wall": s * slow, "cpu": s * slow, "compiled": 5} for cache in ("cold", "warm")}
            for name, s in seconds.items()
        }

    table = summary([found(1.0), found(4.0), found(2.0)])
    assert table["cold"]["before wall"] == 20.0
    assert [table[cache][f"ratio {key}"] for cache in table for key in ("wall", "cpu")] == [0.2] * 4


def test_two_processes_need_to_send_half_of_scores_and_gradients() -> None:
    found = least_bytes(0, 2, own=100, everyones=200, objects=0)
    assert found["least"] == 4 * (100 * CLASSES / 2 + 100 * CLASSES / 2 + 100 * 4)


def test_the_chunked_step_and_the_plain_one_are_of_the_same_loss() -> None:
    trial = Trial(images=5, windows=150)
    with double_precision():  # and a small network, as AlexNet takes long in it
        trial.model = FastRCNN(CLASSES, "tiny", score="raw", loss="map", hidden=32, dropout=0.0, shortest_side=None)
        trial.plain_step()
        expected = [p.grad.clone() for p in trial.model.parameters() if p.grad is not None]
        trial.chunked_step()
    found = [p.grad for p in trial.model.parameters() if p.grad is not None]
    largest = max(float(g.abs().max()) for g in expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10 * largest)


def test_fit_of_exact_cubes_is_three_and_carries_on() -> None:
    found = fit({n: 2e-9 * n**3 for n in (800, 1000, 1600)})
    assert found["exponent"] == pytest.approx(3.0)
    assert found["batch hours"] * 3600 == pytest.approx(2e-9 * BATCH[0] ** 3 * BATCH[1])


def test_the_dense_loss_of_far_apart_scores_is_ndcg() -> None:
    scores, relevance = torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([0.0, 2.0, 1.0, 0.0])
    found = dense_approx_ndcg(1e5 * scores, relevance)
    assert found.item() == pytest.approx(1.0 - ndcg(scores.numpy(), relevance.numpy()), abs=1e-3)
