"""Scores that follow masks: the whole way from windows to the table, on made-up images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from experiments.masks import arms, intervals, table, trial, windows
from experiments.records import load_runs
from experiments.yolo.windows import Letterbox

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
    logits = torch.full((WINDOWS, arms.CLASSES), -6.0)
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


def test_every_arm_goes_from_windows_to_the_table_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"aligned": arms.grid(rate=(1e-2,), steps=(3,)), "exact": arms.grid(rate=(1e-2,), steps=(3,), radius=(1.0,))}
    few["scoring"] = arms.grid(rate=(1e-2,), steps=(40,), alpha=(1.0, 4.0))
    monkeypatch.setattr(trial, "STAGES", {name: [stage] for name, stage in few.items()})
    monkeypatch.setattr(trial, "RESAMPLES", 20)
    file = cache / "runs.jsonl"
    where = ["--cache", str(cache), "--out", str(file)]
    for _ in range(2):
        trial.main(["bounds", *where])
        for more in ([], ["--images", "20", "--arms", "scoring", "exact"]):
            trial.main(["choose", *where, *more])
            trial.main(["final", *where, "--seeds", "0", "1", *more])
    assert len(load_runs(file, "bounds")) == 2 * 3
    assert len(load_runs(file, "choose")) == len(arms.ARMS) + 1 + 3
    assert len(load_runs(file, "final")) == 2 * (len(arms.ARMS) + 2)
    trial.main(["intervals", *where])
    gains = {(run["arm"], run["images"], run["over"]): run["gain"]["mask AP"] for run in load_runs(file, "interval")}
    assert gains["scoring", None, "own"][0] > 0.0, "the first statistic is the mask's quality"
    page = table.page(file)
    assert all(arm.says in page for arm in arms.ARMS.values())


def test_weights_of_one_give_the_usual_map_and_weights_count_images(cache: Path) -> None:
    images = trial.Images(cache)("val")
    scores = [image.own.double() for image in images]
    usual = trial.measure(scores, images)
    twice = np.random.default_rng(0).integers(0, 3, len(images))
    repeated = [n for n, times in enumerate(twice) for _ in range(times)]
    of_repeated = trial.measure([scores[n] for n in repeated], [images[n] for n in repeated])
    weights = np.stack([np.ones(len(images)), twice], axis=1).astype(np.float64)
    for metric in arms.METRICS:
        found = 100 * intervals.resampled_map(scores, images, metric, weights)
        assert found == pytest.approx([usual[metric], of_repeated[metric]], abs=0.01), metric


def test_true_mask_iou_is_the_best_score_for_masks(cache: Path) -> None:
    images = trial.Images(cache)("val")
    found = {
        by: trial.measure([arms.best_of_class(i.tables[by], i.target["labels"]).double() for i in images], images)
        for by in ("mask", "box")
    }
    assert found["mask"]["mask AP"] > found["box"]["mask AP"]
    assert found["box"]["box AP"] > found["mask"]["box AP"]


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
