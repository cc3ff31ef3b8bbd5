"""Scores that follow masks: the whole way from windows to the table, on made-up images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from experiments import paired
from experiments.masks import arms, table, trial, windows
from experiments.masks.arms import MASKS
from experiments.records import load_runs
from experiments.yolo.windows import Letterbox
from stepgrad.evaluation.resampling import Resamples

WINDOWS = 12


def picture(generator: torch.Generator) -> dict[str, Tensor]:
    """Windows around two objects; the first statistic tells how well a mask fits, which the logits do not."""

    def rand(*size: int) -> Tensor:
        return torch.rand(size, generator=generator)

    low = rand(2, 2) * 400
    objects = torch.cat([low, low + 60 + 60 * rand(2, 2)], dim=1)
    labels = torch.randint(3, (2,), generator=generator)
    which = torch.arange(WINDOWS) % 2
    boxes = objects[which] + 10 * (rand(WINDOWS, 4) - 0.5)
    fit = rand(WINDOWS)
    logits = torch.full((WINDOWS, MASKS.classes), -6.0)
    logits[torch.arange(WINDOWS), labels[which]] = 2 * rand(WINDOWS)
    table_of_masks = torch.zeros(WINDOWS, 2).scatter(1, which[:, None], 0.3 + 0.7 * fit[:, None])
    return {
        "boxes": boxes,
        "logits": logits,
        "coefficients": rand(WINDOWS, 4),
        "features": rand(WINDOWS, 6).half(),
        "level": torch.zeros(WINDOWS, dtype=torch.long),
        "statistics": torch.cat([fit[:, None], rand(WINDOWS, 3)], dim=1),
        "mask_iou": table_of_masks,
        "mask_iou_plain": table_of_masks / 2,
        "box_iou": windows.box_iou(boxes, objects),
        "object_boxes": objects,
        "object_labels": labels,
        "object_difficult": rand(2) < 0.1,
    }


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 60), ("val", 40)):
        found = {f"{n:03}/{name}": value for n in range(count) for name, value in picture(generator).items()}
        save_file(found, tmp_path / f"{split}-00000.safetensors")
    return tmp_path


def masks_of(cache: Path) -> trial.Images:
    return trial.Images(cache, MASKS, "mask_iou", {"void": "removed"})


def test_every_arm_goes_from_windows_to_the_table_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"aligned": arms.grid(rate=(1e-2,), steps=(3,)), "exact": arms.grid(rate=(1e-2,), steps=(3,), radius=(1.0,))}
    few["scoring"] = arms.grid(rate=(1e-2,), steps=(40,), alpha=(1.0, 4.0))
    stages = {name: [stage] for name, stage in few.items()}
    monkeypatch.setattr(trial, "MASKS", replace(MASKS, stages=stages, resamples=20))
    file = cache / "runs.jsonl"
    where = ["--cache", str(cache), "--out", str(file)]
    for _ in range(2):
        trial.main(["bounds", *where])
        for more in ([], ["--images", "20", "--arms", "scoring", "exact"]):
            trial.main(["choose", *where, *more])
            trial.main(["final", *where, "--seeds", "0", "1", *more])
    assert len(load_runs(file, "bounds")) == 2 * 3
    assert len(load_runs(file, "choose")) == len(MASKS.arms) + 1 + 3
    assert len(load_runs(file, "final")) == 2 * (len(MASKS.arms) + 2)
    trial.main(["intervals", *where])
    gains = {(run["arm"], run["images"], run["over"]): run["gain"]["mask AP"] for run in load_runs(file, "interval")}
    assert gains["scoring", None, "own"][0] > 0.0, "the first statistic is the mask's quality"
    page = table.page(file)
    assert all(arm.says in page for arm in MASKS.arms.values())


def test_the_gain_is_that_of_the_usual_map_and_resamples_count_images(cache: Path) -> None:
    images = masks_of(cache)("val")
    before = [image.own.double() for image in images]
    after = [-own for own in before]
    twice = np.random.default_rng(0).integers(0, 3, len(images)).astype(np.uint8)
    repeated = [n for n, times in enumerate(twice) for _ in range(times)]
    draws = Resamples.of(len(images), 20, seed=0)
    usual = [trial.measure(scores, images, MASKS) for scores in (before, after)]
    of_repeated = trial.measure([before[n] for n in repeated], [images[n] for n in repeated], MASKS)
    for name, (protocol, by) in MASKS.metrics.items():
        lists = [paired.judged(scores, images, MASKS, protocol, by) for scores in (before, after)]
        low, gain, high = paired.gain([lists[0]], [lists[1]] * 2, protocol, len(images), 20)
        assert gain == pytest.approx(usual[1][name] - usual[0][name], abs=0.011)
        assert low <= gain <= high
        found = 100 * paired.mean_map([lists[0]], protocol, twice[None], draws)[0]
        assert found == pytest.approx(of_repeated[name], abs=0.01), name


def test_true_mask_iou_is_the_best_score_for_masks(cache: Path) -> None:
    images = masks_of(cache)("val")

    def with_true(by: str) -> dict[str, float]:
        scores = [arms.best_of_class(i.tables[by], i.target["labels"], MASKS.classes).double() for i in images]
        return trial.measure(scores, images, MASKS)

    assert with_true("shape")["mask AP"] > with_true("box")["mask AP"]
    assert with_true("box")["box AP"] > with_true("shape")["box AP"]


def test_a_pixel_goes_to_the_value_that_covers_most_of_it_and_no_instance_vanishes() -> None:
    instances = torch.zeros(640, 640, dtype=torch.uint8)
    instances[:8, :10], instances[:8, 10:20], instances[100, 100] = 1, windows.VOID, 2
    first, second, _, void = windows.shrink(instances, [1, 2, 0, windows.VOID], Letterbox(1.0, 0, 0))
    assert first.sum() == 2 * 3  # half of the third column: instances go first
    assert void.sum() == 2 * 2
    assert second.nonzero().tolist() == [[25, 25]]


def test_masks_are_cut_at_their_boxes() -> None:
    inside = windows.inside_boxes(torch.tensor([[1.0, 0.0, 3.0, 2.0]]), 4)
    assert inside[0].nonzero().tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]
    assert windows.extent(inside).tolist() == [[1.0, 0.0, 3.0, 2.0]]
