"""The drop-in experiment runs for every family, resumes, and its table says what its file holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments import drop_in, drop_in_left_out
from experiments.drop_in import ARMS, Arm, batch, first_label, pictures
from experiments.drop_in_left_out import left_out
from experiments.drop_in_lengths import lengths
from experiments.drop_in_models import FAMILIES, build
from experiments.drop_in_table import render
from experiments.results import save_runs


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Six images, one step an arm."""
    for name, value in (("TRAIN_IMAGES", 6), ("VAL_IMAGES", 2), ("TEST_IMAGES", 2)):
        monkeypatch.setattr(drop_in, name, value)
    monkeypatch.setattr(drop_in, "SEEDS", (100,))
    monkeypatch.setattr(drop_in, "FILE", tmp_path / "drop_in.jsonl")
    for name, arm in ARMS.items():
        monkeypatch.setitem(ARMS, name, Arm(1, 2, arm.mode, arm.points[:2]))
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_all_arms_of_a_family_run_once_and_are_listed(family: str, small: Path) -> None:
    drop_in.final([family], small / "runs")
    before = drop_in.FILE.read_bytes()
    drop_in.final([family], small / "runs")
    assert drop_in.FILE.read_bytes() == before
    page = render(drop_in.FILE)
    assert all(f"| {family} | {arm} |" in page for arm in ARMS)


def test_second_halves_have_equally_many_points_to_choose_from() -> None:
    assert len({len(arm.points) for name, arm in ARMS.items() if name != "stock"}) == 1


def test_the_best_point_on_val_is_the_one_that_goes_on(small: Path) -> None:
    first, second = ARMS["stock-more"].points
    for value, point in ((10.0, first), (20.0, second), (90.0, {"rate": 0.5})):  # the last is no point of the arm
        row = {"family": "ssd", "arm": "stock-more", "seed": 100, **point, "map": {"voc12": value, "coco": 0.0}}
        save_runs(drop_in.FILE, "choose", row)
    assert drop_in.best_point("ssd", "stock-more") == second
    assert drop_in.best_point("fcos", "stock-more") == first


def test_second_halves_start_from_the_same_weights(small: Path) -> None:
    first, second = (drop_in.stock_model("ssd", 100, small / "runs") for _ in range(2))
    fresh = build("ssd", 6, 100)
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, second, fresh)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "faster_rcnn"])
def test_nothing_is_left_out_when_all_anchors_take_part(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = {"all": {"topk": 10**9}, "few": {"topk": 2, "keep_positives": False}}
    monkeypatch.setattr(drop_in_left_out, "SELECTIONS", everything)
    model = build(family, 6, seed=0)
    whole, few = left_out(model, *batch(pictures("val", 2), first_label(family)))
    assert whole["candidates"] == 1.0
    assert whole["map"] == whole["map of all"]
    assert whole["gradient error"] == 0.0
    assert few["candidates"] < 0.2
    assert few["gradient error"] > 0.1 or whole["map of all"] == 0.0


def test_a_loss_twice_as_heavy_pulls_twice_as_strongly(small: Path) -> None:
    """Lengths are of gradients in the weights, by entry of the loss dict, and the model stays stock."""
    model = build("ssd", 6, seed=0)
    batches = [batch(pictures("train", 4), first_label("ssd"))]
    found = lengths(model, batches)
    assert sorted(found) == ["bbox_regression", "classification", "loss_map"]
    losses = model(*batches[0])
    assert sorted(losses) == ["bbox_regression", "classification"]
    (2 * losses["classification"]).backward()
    doubled = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert float(doubled) == pytest.approx(2 * found["classification"], rel=1e-4)
