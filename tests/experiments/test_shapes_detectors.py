"""Detectors on `shapes`: the smallest runs of each script, and the laws that their comparisons rest on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import box_gradient, detector, drop_in, drop_in_left_out, unfrozen
from experiments.box_head import BoxHead, Images, moved, offset_loss, offsets_to
from experiments.drop_in import ARMS, Arm
from experiments.drop_in_table import page as drop_in_page
from experiments.endless import arms
from experiments.endless.arms_table import kept
from experiments.endless.arms_table import page as arms_page
from experiments.endless.families import FAMILIES
from experiments.endless.held_out import evaluate, held_out
from experiments.endless.package import main as package
from experiments.endless.run_files import Config, RunFiles, load_start
from experiments.endless.soft_labels import soft_targets
from experiments.endless.train import main as endless_main
from experiments.endless.train import train
from experiments.records import load_runs, read_lines
from stepgrad.data import EndlessShapes
from stepgrad.data.base import make_target
from stepgrad.detector.sampling import Sample
from stepgrad.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the runs have it: sums are then taken in the same order every time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---- experiments.drop_in


@pytest.mark.parametrize("family", drop_in.FAMILIES)
def test_all_phases_of_a_family_run_once_and_are_listed(
    family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (("TRAIN_IMAGES", 6), ("VAL_IMAGES", 2), ("TEST_IMAGES", 2), ("SEEDS", (100,))):
        monkeypatch.setattr(drop_in, name, value)
    monkeypatch.setattr(drop_in, "FILE", tmp_path / "drop_in.jsonl")
    for name, arm in ARMS.items():
        monkeypatch.setitem(ARMS, name, Arm(1, 2, arm.mode, arm.points[:2]))
    everything = {"all": {"topk": 10**9}, "few": {"topk": 2, "keep_positives": False}}
    monkeypatch.setattr(drop_in_left_out, "SELECTIONS", everything)
    for _ in range(2):
        for phase in drop_in.PHASES:
            drop_in.main([phase, "--family", family, "--runs", str(tmp_path)])
    phases = {phase: load_runs(drop_in.FILE, phase) for phase in drop_in.PHASES}
    assert [len(runs) for runs in phases.values()] == [5, 3, 0 if family == "faster_rcnn" else 1, 1]
    for run in phases["final"][1:]:
        tried = [r for r in phases["choose"] if r["arm"] == run["arm"]]
        assert run["rate"] == max(tried, key=lambda r: r["map"]["voc12"])["rate"]
    for run in phases["left-out"]:
        whole = run["rows"][0]
        assert (whole["candidates"], whole["gradient error"], whole["map"]) == (1.0, 0.0, whole["map of all"])
    assert all(f"| {family} | {arm} |" in drop_in_page(drop_in.FILE) for arm in ARMS)


# ---- experiments.detector, unfrozen and box_gradient


def test_the_detectors_budget_is_spent_in_every_way_and_boxes_learn_from_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small: dict[str, Any] = {"nll": {"steps": 2, "images": 2, "windows": 8}, "map": {"steps": 1, "images": 2}}
    setting = detector.settings("shapes", None)
    content = {key: {**value, **small.get(key, {})} for key, value in setting.content.items()}
    content["data"]["train_images"] = 4
    monkeypatch.setattr(
        detector, "settings", lambda *_: replace(setting, content=content, held_out=("val", 2), final=("test", 2))
    )
    monkeypatch.setattr(detector, "RESULTS", tmp_path)
    monkeypatch.setattr(detector, "SEEDS", (100,))
    for phase in ("choose", "final"):
        detector.main([phase, "--runs", str(tmp_path / "runs")])
    final = load_runs(tmp_path / "detector-shapes.jsonl", "final")
    assert [(run["arm"], run["steps"]) for run in final] == [("nll", 2), ("nll-more", 1), ("map-radius", 1)]
    assert "| shapes | map-radius |" in detector.page(tmp_path / "detector.jsonl")
    for name, value in (("TRAIN", 4), ("VAL", 2), ("TEST", 2), ("STEPS", 1), ("MINIBATCH", 2), ("SEEDS", (100,))):
        monkeypatch.setattr(box_gradient, name, value)
    monkeypatch.setattr(box_gradient, "FILE", tmp_path / "box_gradient.jsonl")
    monkeypatch.setattr(box_gradient, "GRID", {name: grid[:1] for name, grid in box_gradient.GRID.items()})
    for phase in ("choose", "final"):
        box_gradient.main([phase, "--runs", str(tmp_path / "runs")])
    assert all(f"\n| {name} |" in box_gradient.page(box_gradient.FILE) for name in box_gradient.GRID)


def test_the_whole_network_is_fine_tuned_on_fresh_images_as_many_by_both_losses(tmp_path: Path) -> None:
    start, nll, ours = (unfrozen.config(arm, tmp_path, None, tmp_path) for arm in ("start", "nll", "map"))
    assert (start.data.train, nll.data.train, ours.data.train) == ("train[:1000]", *["train[1000:1500]"] * 2)
    assert nll.nll.steps * nll.nll.images == ours.map.steps * ours.map.images


def test_boxes_learn_the_offsets_of_windows_that_show_an_object_alone() -> None:
    objects = torch.tensor([[10.0, 10.0, 30.0, 30.0], [50.0, 12.0, 90.0, 40.0]])
    windows = torch.tensor([[12.0, 9.0, 30.0, 33.0], [48.0, 12.0, 85.0, 44.0], [0.0, 0.0, 5.0, 5.0]])
    offsets = offsets_to(windows[:2], objects)
    torch.testing.assert_close(moved(windows[:2], offsets), objects)
    features, target = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), make_target(objects, [0, 1], "a")
    images, head = Images([windows], [features], [features], [target]), BoxHead(8)
    torch.testing.assert_close(images.boxes(head)[0], windows)  # a new head moves nothing
    wanted = offsets / torch.tensor([0.1, 0.1, 0.2, 0.2])
    expected = 4 * torch.nn.functional.smooth_l1_loss(wanted, torch.zeros_like(wanted)).item()
    assert offset_loss(head, images).item() == pytest.approx(expected, rel=1e-5)


# ---- experiments.endless: starts

SMALL = Config("ssd", steps=16, images=1, val_images=2, evaluations=2, warmup=0)
"""Saved at every second step, evaluated at the 8th and the 16th."""


def start_of(family: str, folder: Path) -> Path:
    """A finished run that has not learnt anything."""
    folder.mkdir()
    RunFiles(folder).finish(Config(family, steps=1), FAMILIES[family].build(0))
    return folder


def lines_without_seconds(folder: Path) -> list[dict]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in RunFiles(folder).lines()]


def test_a_killed_run_ends_with_the_bits_of_an_unbroken_one(tmp_path: Path) -> None:
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    train(SMALL, unbroken)
    train(SMALL, killed, stop_after=7)
    with open(killed / "log.jsonl", "a", encoding="utf-8") as handle:  # between its log and its checkpoint
        handle.write(json.dumps({"step": 8}) + '\n{"step": 9, "lo')
    train(SMALL, killed, stop_after=11)
    train(SMALL, killed)
    first, second = ((folder / "start.safetensors").read_bytes() for folder in (unbroken, killed))
    assert first == second
    assert lines_without_seconds(killed) == lines_without_seconds(unbroken)
    assert [line["step"] for line in read_lines(unbroken / "log.jsonl")] == [8, 16]
    config, model = load_start(unbroken)
    assert config == SMALL
    assert evaluate(FAMILIES["ssd"], model, held_out("val", 2)) == RunFiles(unbroken).lines()[-1]["map"]
    with pytest.raises(ConfigError, match=r"rate 0\.001, not 0\.5"):
        train(replace(SMALL, rate=0.5), unbroken)
    package(["--start", str(unbroken), "--out", str(tmp_path / "ssd.safetensors")])
    assert (tmp_path / "ssd.safetensors").stat().st_size < (unbroken / "start.safetensors").stat().st_size


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_command_line_trains_every_family(family: str, tmp_path: Path) -> None:
    small = ["--images", "1", "--val-images", "1", "--evaluations", "1"]
    endless_main(["--family", family, "--steps", "1", "--out", str(tmp_path), *small])
    assert load_start(tmp_path)[0] == Config(family, steps=1, images=1, val_images=1, evaluations=1)


def test_soft_labels_are_overlaps_where_the_family_has_them() -> None:
    windows = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 8.0], [0.0, 0.0, 10.0, 2.0]])
    found = soft_targets(Sample(windows, torch.tensor([1, 1, 2]), 2), windows[:1], columns=3)
    torch.testing.assert_close(found, torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.8, 0.2], [0.0, 0.0, 1.0]]))
    images = EndlessShapes().batch(0, images=2)
    for name, family in FAMILIES.items():
        if not family.soft_labels:
            with pytest.raises(ConfigError, match="fastrcnn, ssd, retinanet, fcos"):
                Config(name, steps=1, labels="soft")
            continue
        hard, soft = (family.losses(family.build(0, labels), images, seed=0) for labels in ("hard", "soft"))
        classes = "loss_nll" if name == "fastrcnn" else "classification"
        assert float(soft[classes].detach()) != float(hard[classes].detach())
        assert all(torch.equal(soft[loss], hard[loss]) for loss in soft if loss != classes)


# ---- experiments.endless: arms


def test_arms_run_once_from_the_same_start_on_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssd, out, seen = start_of("ssd", tmp_path / "ssd"), tmp_path / "runs.jsonl", []
    stock = FAMILIES["ssd"].losses

    def listening(model: Any, images: Any, seed: int) -> Any:
        seen.append(b"".join(fresh.image.numpy().tobytes() for fresh in images))
        return stock(model, images, seed)

    monkeypatch.setattr(FAMILIES["ssd"], "losses", listening)
    monkeypatch.setitem(arms.GRIDS, "ssd", arms.GRIDS["ssd"][:1])
    sizes = ["--steps", "1", "--images", "1", "--val-images", "1", "--test-images", "1"]
    where = ["--start", str(ssd), "--out", str(out), *sizes]
    with pytest.raises(DataError, match="choose"):
        arms.main(["final", *where, "--seeds", "1"])
    for _ in range(2):
        for phase in (["choose"], ["final", "--seeds", "1", "2"], ["trial", "--arms", "coco", "--share", "3"]):
            arms.main([*phase, *where])
    assert [run["arm"] for run in load_runs(out, "final")] == ["start", *arms.arms_of("ssd") * 2]
    assert [len(set(seen[n : n + 4])) for n in (0, 4, 8)] == [1, 1, 1]
    assert len({*seen, EndlessShapes(0)[0].image.numpy().tobytes()}) == 4  # three seeds, and the start's own
    assert all("test" not in run for run in load_runs(out, "choose"))
    page = arms_page(out)
    assert "| ssd | coco | 0.001 | class head | mix | 3 |" in page
    assert all(f"| ssd | {name} |" in page for name in ["start", *arms.arms_of("ssd"), "kept, coco", "kept, voc12"])
    with pytest.raises(ConfigError, match="saw these images"):
        arms.fresh_images(Config("ssd", steps=1, seed=arms.FIRST_SEED), 0, 1)


def test_a_mask_rcnn_is_judged_by_its_masks_and_can_train_for_its_boxes_besides() -> None:
    assert set(arms.arms_of("maskrcnn")) == {"stock", "coco", "voc12", "coco-boxes"}
    images = EndlessShapes(task="masks").batch(0, images=2)
    family, totals = FAMILIES["maskrcnn"], []
    for task in (None, "boxes"):
        model = family.build(0).train()
        family.add_map(model, "coco", task=task)
        totals.append(float(family.losses(model, images, seed=0)["loss_map"].detach()))
    assert totals[0] != totals[1]
    found = family.detect(model.eval(), images[0])
    assert found["masks"].shape == (len(found["scores"]), 160, 160)


def test_what_is_kept_is_chosen_on_val() -> None:
    values = {"start": {0: 50.0}, "stock": {1: 40.0, 2: 40.0}, "coco": {1: 45.0, 2: 55.0}}
    by_arm = {arm: {seed: {"arm": arm, "val": {"coco": v}} for seed, v in own.items()} for arm, own in values.items()}
    assert [run["arm"] for run in kept(by_arm, "coco").values()] == ["start", "coco"]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_map_joins_the_stock_losses_and_a_class_head_alone_changes(family: str, tmp_path: Path) -> None:
    images = EndlessShapes(task=FAMILIES[family].task).batch(0, images=2)

    def total(mode: str | None) -> float:
        model = FAMILIES[family].build(0).train()
        if mode is not None:
            FAMILIES[family].add_map(model, "coco", mode)
        return sum(float(loss.detach()) for loss in FAMILIES[family].losses(model, images, seed=0).values())

    stock, mixed, replaced = map(total, (None, "mix", "replace"))
    assert stock < mixed != pytest.approx(replaced)
    start, point = start_of(family, tmp_path / "start"), {"rate": 1e-2, "trains": "class head"}
    before = dict(load_start(start)[1].named_parameters())
    after = arms.go_on(start, arms.ARMS["coco"], point, 0, arms.Budget(steps=1, images=2)).named_parameters()
    changed = [name for name, weights in after if not torch.equal(before[name], weights)]
    assert changed
    assert all(name.startswith(FAMILIES[family].class_head) for name in changed)
