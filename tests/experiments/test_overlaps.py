"""Scores that follow poses, and new heads for every overlap of `shapes`: the whole way from windows to the pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from experiments.masks import arms
from experiments.overlaps import branches, law, table, trial, windows
from experiments.poses import table as poses_table
from experiments.poses import trial as poses_trial
from experiments.poses import windows as poses_windows
from experiments.records import load_runs
from experiments.yolo.windows import Letterbox
from stepgrad.data import ShapesDataset
from stepgrad.models.demo.detector import trained_ssd
from stepgrad.overlaps import Rotated

FEW = {
    "aligned": [arms.grid(rate=(1e-2,), steps=(3,))],
    "exact": [arms.grid(rate=(1e-2,), steps=(3,), radius=(1.0,))],
    "box-more": [arms.grid(rate=(1e-2,), steps=(3,))],
    "scoring": [arms.grid(rate=(1e-2,), steps=(3,), alpha=(1.0,))],
}


def target_of(index: int) -> windows.Tensors:
    return windows.target_of(ShapesDataset("val", 30), index)


# ---- branches


def test_a_shape_that_is_wanted_is_drawn_again() -> None:
    for index in range(20):
        target = target_of(index)
        boxes = target["boxes"].float()
        rows, shapes = branches.wanted(boxes, target)
        assert rows.tolist() == list(range(len(boxes))), "every object's own box fits it"
        drawn = branches.Drawn(torch.zeros(0), (shapes.mask - 0.5) * 20, shapes.points, shapes.oriented)
        same = Rotated()(branches.oriented_of(drawn, boxes), target["oriented"]).diagonal()
        assert float(same.min()) > 1 - 1e-4
        assert torch.allclose(branches.points_of(drawn, boxes), target["keypoints"][:, :, :2].float(), atol=1e-3)


def test_a_mask_of_whole_cells_is_drawn_again() -> None:
    whole = torch.zeros(1, 160, 160, dtype=torch.bool)
    whole[:, 20 : 20 + 2 * branches.CELLS, 40 : 40 + branches.CELLS] = True  # the left half of the box
    box = torch.tensor([[40, 20, 40 + 2 * branches.CELLS, 20 + 2 * branches.CELLS]])
    empty = {"keypoints": torch.zeros(1, 4, 3), "oriented": torch.ones(1, 5)}
    _, shapes = branches.wanted(box.float(), {"boxes": box.double(), "masks": whole, **empty})
    drawn = branches.Drawn(torch.zeros(0), shapes.mask - 0.5, shapes.points, shapes.oriented)
    assert torch.equal(branches.masks_of(drawn, box.float()), whole)


def test_a_mask_stays_in_its_box() -> None:
    boxes = torch.tensor([[10.0, 20.0, 14.0, 30.0]])
    drawn = branches.Drawn(
        torch.zeros(0), torch.ones(1, branches.CELLS, branches.CELLS), torch.zeros(0), torch.zeros(0)
    )
    mask = branches.masks_of(drawn, boxes)[0]
    assert mask.sum() == 4 * 10
    assert mask[20:30, 10:14].all()


def test_windows_that_fit_no_object_learn_no_shape() -> None:
    rows, shapes = branches.wanted(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), target_of(0))
    assert len(rows) == len(shapes.mask) == len(shapes.points) == len(shapes.oriented) == 0


# ---- new heads


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlaps")
    model = trained_ssd()
    patch = pytest.MonkeyPatch()
    for name, value in (("BRANCHES", (8, 8)), ("EPOCHS", 1), ("BATCH", 16), ("WINDOWS", 30), ("PART", 12)):
        patch.setattr(windows, name, value)
    patch.setattr(windows, "SETS", {"train": ("train", 20, 7), "val": ("test", 30, 0)})
    drawing = windows.load_branches(model, folder / "branches.safetensors")
    for _ in range(2):
        for split in windows.SETS:
            windows.fill(folder, split, model, drawing)
    patch.undo()
    return folder


def test_every_way_to_train_goes_from_windows_to_the_page_and_the_plot(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: (replace(study, stages=FEW, resamples=20), key) for name, (study, key) in trial.TASKS.items()}
    monkeypatch.setattr(trial, "TASKS", few)
    file = tmp_path / "overlaps.jsonl"
    for _ in range(2):
        for what in ("choose", "final", "law"):
            trial.main([what, "--cache", str(cache), "--out", str(file), "--seeds", "0", "1"])
    assert len(load_runs(file, "choose")) == 3 * 5 + 3
    assert len(load_runs(file, "final")) == 2 * (3 * 5 + 3)
    (found,) = load_runs(file, "law")
    groups = {name: {arm: own["groups"] for arm, own in slope.items()} for name, slope in found["slope"].items()}
    assert groups["all"] == {"box-more": 48, "own": 36, "box-exact": 48, "own-exact": 36}
    assert set(groups["masks"].values()) == {12}
    gains = load_runs(file, "gain")
    assert [run["task"] for run in gains] == list(trial.TASKS)
    assert {g["disagreement"] for g in gains[-1]["groups"]} == {0.0}, "box IoU agrees with itself"
    assert "| mask IoU | disk, hidden |" in table.page(file)
    table.draw(file, tmp_path / "overlaps.svg")
    assert "objects partly hidden" in (tmp_path / "overlaps.svg").read_text(encoding="utf-8")


def test_the_slope_is_that_of_gains_that_grow_with_disagreement() -> None:
    def gains(x: float) -> law.Gains:
        return law.Gains({"own": np.array([2 + 30 * x])}, {"own": 2 + 30 * x + np.zeros(5)})

    found = law.slopes([(x, gains(x)) for x in (0.0, 0.1, 0.3)], "own")
    assert found == {"slope": [3.0, 3.0, 3.0], "spearman": 1.0, "groups": 3}


# ---- poses


def test_a_person_of_lsp_has_cocos_joints_and_its_place_in_the_frame() -> None:
    joints = torch.stack([torch.arange(14.0), 10 + torch.arange(14.0), torch.ones(14)], dim=1)
    joints[13, 2] = 0  # the top of the head is not labelled, so it makes the box no larger
    person = poses_windows.read_objects(joints, Letterbox(2.0, 100, 50))
    assert person is not None
    assert person["keypoints"][0, 16].tolist() == [100.0, 70.0, 2.0], "the right ankle is LSP's first and COCO's last"
    assert person["keypoints"][0, 9].tolist() == [122.0, 92.0, 2.0], "the left wrist"
    assert person["keypoints"][0, :5].abs().sum() == 0
    assert person["boxes"][0].tolist() == pytest.approx([100 - 2.4, 70 - 2.4, 124 + 2.4, 94 + 2.4])
    joints[6:, 2] = 0
    joints[0, 2] = 0
    assert poses_windows.read_objects(joints, Letterbox(2.0, 100, 50)) is None


def test_poses_go_from_windows_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        found = {}
        for n in range(30):
            boxes = 100 + 400 * torch.rand(8, 2, generator=generator)
            boxes = torch.cat([boxes, boxes + 60], dim=1)
            image = {
                "boxes": boxes,
                "logits": torch.randn(8, 1, generator=generator),
                "features": torch.rand(8, 6, generator=generator).half(),
                "level": torch.zeros(8, dtype=torch.long),
                "statistics": torch.rand(8, 5, generator=generator),
                "oks": torch.rand(8, 1, generator=generator),
                "box_iou": poses_windows.box_iou(boxes, boxes[:1]),
                "object_boxes": boxes[:1].clone(),
                "object_labels": torch.zeros(1, dtype=torch.long),
                "object_difficult": torch.zeros(1, dtype=torch.bool),
            }
            found |= {f"{n:03}/{name}": value.contiguous() for name, value in image.items()}
        save_file(found, tmp_path / f"{split}-00000.safetensors")
    monkeypatch.setattr(poses_trial, "POSES", replace(poses_trial.POSES, stages=FEW, resamples=20))
    file = tmp_path / "poses.jsonl"
    for what in ("bounds", "choose", "final", "intervals"):
        poses_trial.main(
            [what, "--cache", str(tmp_path), "--out", str(file), *(["--seeds", "0"] if what == "final" else [])]
        )
    page = poses_table.page(file)
    assert all(arm.says in page for arm in poses_trial.POSES.arms.values())
