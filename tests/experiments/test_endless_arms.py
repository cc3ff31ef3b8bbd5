"""Arms from a converged start: the same images for all, a record of every run, mAP in the losses of every family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.endless import arms
from experiments.endless.arms import ARMS, GRIDS, Budget, arms_of, best_point, fresh_images, go_on
from experiments.endless.arms import main as run_arms
from experiments.endless.arms_table import kept, render, rows_of
from experiments.endless.families import FAMILIES
from experiments.endless.run_files import Config, RunFiles, load_start, load_trunk, weights_of
from experiments.endless.train import train
from experiments.results import load_runs, save_runs
from stepgrad.data import EndlessShapes
from stepgrad.errors import ConfigError, DataError

POINTS = GRIDS["ssd"]
TINY = Budget(steps=2, images=2, val_images=2, test_images=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the runs have it: sums are then taken in the same order every time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def start_of(family: str, folder: Path, seed: int = 0) -> Path:
    """A finished run that has not learnt anything."""
    folder.mkdir()
    RunFiles(folder).finish(Config(family, steps=1, seed=seed), FAMILIES[family].build(seed))
    return folder


@pytest.fixture
def ssd(tmp_path: Path) -> Path:
    return start_of("ssd", tmp_path / "ssd")


def test_all_arms_of_a_seed_see_the_same_images(ssd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[torch.Tensor]] = []
    stock = FAMILIES["ssd"].losses

    def listening(model: Any, images: Any, seed: int) -> Any:
        seen[-1].extend(fresh.image for fresh in images)
        return stock(model, images, seed)

    monkeypatch.setattr(FAMILIES["ssd"], "losses", listening)
    for name, arm in ARMS.items():
        seen.append([])
        go_on(ssd, arm, POINTS[0], seed=3, budget=TINY)
        assert torch.equal(torch.stack(seen[-1]), torch.stack(seen[0])), name
    assert len(seen[0]) == TINY.steps * TINY.images


def test_seeds_share_no_image_with_each_other_nor_with_the_start() -> None:
    config = Config("ssd", steps=1)
    first = [EndlessShapes(config.seed)[0].image, *(fresh_images(config, seed, 1)[0].image for seed in range(3))]
    assert len({image.numpy().tobytes() for image in first}) == len(first)
    with pytest.raises(ConfigError, match="saw these images"):
        fresh_images(Config("ssd", steps=1, seed=arms.FIRST_SEED), 0, 1)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_map_joins_the_stock_losses_or_takes_the_place_of_the_class_loss(family: str) -> None:
    images = EndlessShapes().batch(0, images=2)

    def total(mode: str | None) -> float:
        model = FAMILIES[family].build(0).train()
        if mode is not None:
            FAMILIES[family].add_map(model, "coco", mode)
        losses = FAMILIES[family].losses(model, images, seed=0)
        objective = torch.stack([loss.float() for loss in losses.values()]).sum()
        objective.backward()
        assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
        return float(objective.detach())

    stock, mixed, replaced = total(None), total("mix"), total("replace")
    assert stock < mixed
    assert replaced != pytest.approx(mixed)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_class_head_alone_changes_and_nothing_else_does(family: str, tmp_path: Path) -> None:
    start = start_of(family, tmp_path / "start")
    point = {"rate": 1e-2, "trains": "class head"}
    before = dict(load_start(start)[1].named_parameters())
    after = dict(go_on(start, ARMS["coco"], point, 0, Budget(steps=1, images=2)).named_parameters())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith(FAMILIES[family].class_head) for name in changed)


def test_a_run_on_record_is_not_run_again(ssd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRIDS, "ssd", POINTS[:1])
    out = tmp_path / "runs.jsonl"
    sizes = ["--steps", "1", "--images", "1", "--val-images", "1", "--test-images", "1"]
    where = ["--start", str(ssd), "--out", str(out), *sizes]
    with pytest.raises(DataError, match="choose"):
        run_arms(["final", *where, "--seeds", "1"])
    for phase, more in (("choose", []), ("final", ["--seeds", "1", "2"])):
        run_arms([phase, *where, *more])
        before = out.read_bytes()
        monkeypatch.setattr(arms, "go_on", None)  # to train once more would fail
        run_arms([phase, *where, *more])
        monkeypatch.setattr(arms, "go_on", go_on)
        assert out.read_bytes() == before
    assert [run["arm"] for run in load_runs(out, "final")] == ["start", *ARMS, *ARMS]
    run_arms(["trial", *where, "--arms", "coco", "--share", "3"])
    assert best_point("ssd", "coco", out) == POINTS[0]
    page = render(out)
    assert "| ssd | coco | 0.001 | class head | mix | 3 |" in page
    assert all(f"| ssd | {name} |" in page for name in ["start", *ARMS, "kept, coco", "kept, voc12"])


def test_no_choice_is_made_on_test_images(tmp_path: Path, ssd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRIDS, "ssd", POINTS[:1])
    monkeypatch.setattr(arms, "arms_of", lambda family: ["stock"])
    arms.choose(ssd, TINY, tmp_path / "runs.jsonl")
    assert all("test" not in run for run in load_runs(tmp_path / "runs.jsonl", "choose"))


def test_the_best_point_is_the_one_with_the_highest_sum_of_both_metrics(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    for point, voc12, coco in ((POINTS[0], 70.0, 40.0), (POINTS[1], 69.0, 42.0), (POINTS[2], 71.0, 39.0)):
        save_runs(out, "choose", {"family": "ssd", "arm": "coco", **point, "val": {"voc12": voc12, "coco": coco}})
    assert best_point("ssd", "coco", out) == POINTS[1]


def a_run(arm: str, seed: int, val: float, test: float) -> dict[str, Any]:
    scores = {"val": {"voc12": 0.0, "coco": val}, "test": {"voc12": 0.0, "coco": test}}
    return {"family": "ssd", "arm": arm, "seed": seed, "rate": 0.1, "trains": "all", **scores}


def test_what_is_kept_is_chosen_on_val_and_reported_on_test() -> None:
    runs = [a_run("start", 0, 50.0, 1.0)]
    runs += [a_run("stock", 1, 40.0, 9.0), a_run("coco", 1, 45.0, 8.0)]
    runs += [a_run("stock", 2, 40.0, 9.0), a_run("coco", 2, 55.0, 7.0)]
    by_arm = {name: {run["seed"]: run for run in runs if run["arm"] == name} for name in ("start", "stock", "coco")}
    assert [run["test"]["coco"] for run in kept(by_arm, "coco").values()] == [1.0, 7.0]
    (row,) = [cells for cells in rows_of("ssd", runs) if cells[1] == "kept, coco"]
    assert row[-3:] == ["4.0 (4.2)", "-5.0 (4.2)", "2"]


def test_soft_labels_are_an_arm_where_the_family_has_them() -> None:
    assert [name for name in FAMILIES if "soft" in arms_of(name)] == ["fastrcnn", "ssd", "retinanet", "fcos"]


def test_a_detr_trains_with_finite_losses_and_detects_inside_the_image() -> None:
    family = FAMILIES["detr"]
    model, images = family.build(0).train(), EndlessShapes().batch(0, images=2)
    (loss,) = family.losses(model, images, seed=0).values()
    assert bool(loss.isfinite())
    with torch.no_grad():
        found = family.detect(model.eval(), images[0])
    assert found["boxes"].shape == (100, 4)
    assert bool(((found["boxes"] > -160) & (found["boxes"] < 320)).all())
    assert found["labels"].unique().tolist() == sorted(set(found["labels"].tolist()) & set(range(6)))
    assert bool((found["scores"].diff() <= 0).all())


def test_a_stopped_run_with_a_trunk_ends_with_the_bits_of_an_unbroken_one(ssd: Path, tmp_path: Path) -> None:
    config = Config("detr", steps=4, images=1, trunk="ssd", val_images=1, evaluations=1, warmup=0)
    train(config, tmp_path / "unbroken")
    train(config, tmp_path / "stopped", stop_after=3)
    train(config, tmp_path / "stopped")
    first, second = ((tmp_path / name / "start.safetensors").read_bytes() for name in ("unbroken", "stopped"))
    assert first == second


def test_a_trunk_is_taken_over_whole(ssd: Path) -> None:
    model = FAMILIES["detr"].build(1)
    load_trunk(model, ssd)
    theirs, ours = weights_of(load_start(ssd)[1]), weights_of(model)
    names = [name for name in theirs if name.startswith(("backbone.stem.", "backbone.stages."))]
    assert names
    assert all(
        torch.equal(theirs[name], ours[f"model.backbone.model.{name.removeprefix('backbone.')}"]) for name in names
    )


def test_a_trunk_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="trunk"):
        load_trunk(FAMILIES["detr"].build(0), start_of("fastrcnn", tmp_path / "fastrcnn"))
