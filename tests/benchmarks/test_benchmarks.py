"""The benchmark measures what it says: its scenes are as crowded as real ones, its table is honest."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from benchmarks.claims import Claim
from benchmarks.floor import floor_cases, overlapping_pairs
from benchmarks.peers import detection_peers, ranking_peers
from benchmarks.scenes import clustered_scene, crowding, disjoint_scene, relevance
from benchmarks.timing import interleaved


def test_clustered_scene_has_every_class_and_repeats() -> None:
    scene, again = clustered_scene(images=8, windows=200), clustered_scene(images=8, windows=200)
    labels = torch.cat([t["labels"] for t in scene.targets])
    assert set(labels.tolist()) == set(range(20))
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
    assert 0.5 < made.neighbours / real.neighbours < 2
    assert 0.5 < made.near_copies / real.near_copies < 2
    assert 0.5 < made.kept / real.kept < 2


def test_disjoint_scene_has_no_overlaps_and_one_window_per_object() -> None:
    scene = disjoint_scene(600, 12, images=2)
    assert scene.windows == 600
    assert int(relevance(scene).sum()) == 12
    assert all(int((box_iou(b, b) > 0).sum()) == len(b) for b in scene.boxes)


def test_floor_sweep_visits_every_overlapping_pair_once() -> None:
    scene = clustered_scene(images=2, windows=120)
    first, second = overlapping_pairs(scene, 0.3)
    expected = sum((int((box_iou(b, b) > 0.3).sum()) - len(b)) // 2 for b in scene.boxes)
    assert len(first) == expected
    assert np.all(first < second)
    for case in floor_cases(scene, threads=1).values():
        case()


def test_interleaved_takes_turns() -> None:
    calls: list[str] = []
    timings = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warm_up=1)
    assert calls == ["a", "b"] * 4
    assert timings["a"].rounds == 3


def test_missing_peers_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    scene = clustered_scene(images=8, windows=300)
    peers = detection_peers(scene) + ranking_peers(torch.arange(4.0), torch.tensor([True, False, True, False]))
    assert {p.name for p in peers if p.run is not None} == {"softmax cross-entropy"}  # which torch brings along
    assert all(p.note.startswith("not installed") for p in peers if p.run is None)


def test_a_claim_is_met_up_to_its_target() -> None:
    assert Claim("speed", target=2.0, measured=2.0).met
    assert not Claim("speed", target=2.0, measured=2.01).met
