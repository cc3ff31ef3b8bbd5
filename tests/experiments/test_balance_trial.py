"""The balance trial samples, labels and chooses as its table says."""

from itertools import islice
from pathlib import Path

import torch

from experiments.balance import RATES, arms, chosen_rates
from experiments.balance_table import render
from experiments.results import load_runs, save_runs
from experiments.window_head import BACKGROUND, IGNORED, image_batches, new_head, window_labels
from stepgrad.data import make_target

WINDOWS = torch.tensor([[0.0, 0.0, 10.0, 10.0], [30.0, 0.0, 40.0, 10.0], [0.0, 30.0, 10.0, 40.0]])


def test_windows_take_the_class_of_their_object_and_difficult_ones_are_ignored() -> None:
    boxes = [[0.0, 0.0, 10.0, 9.0], [30.0, 0.0, 40.0, 9.0]]
    target = make_target(boxes, [7, 3], "a", difficult=[False, True])
    assert window_labels(WINDOWS, target).tolist() == [7, IGNORED, BACKGROUND]


def test_windows_of_an_image_without_objects_are_background() -> None:
    assert window_labels(WINDOWS, make_target([], [], "a")).tolist() == [BACKGROUND] * 3


def test_every_image_comes_once_before_any_comes_again() -> None:
    batches = list(islice(image_batches(12, 4, torch.Generator().manual_seed(0)), 6))
    for epoch in (batches[:3], batches[3:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(12))


def test_log_probabilities_leave_room_for_background() -> None:
    scores = new_head(8, seed=0).eval().scores(torch.randn(5, 8, generator=torch.Generator().manual_seed(1)), "logprob")
    assert scores.shape == (5, 20)
    assert torch.all(scores.exp().sum(1) < 1)


def test_learning_rates_are_chosen_on_held_out_images_alone() -> None:
    runs = [
        {"arm": "x", "rate": 1e-3, "heldout": 10.0, "train": 90.0},
        {"arm": "x", "rate": 3e-3, "heldout": 12.0, "train": 20.0},
    ]
    assert chosen_rates(runs) == {"x": 3e-3}


def test_every_arm_has_a_grid_and_a_name_of_its_own() -> None:
    names = [arm.name for arm in arms()]
    assert len(set(names)) == len(names)
    assert {arm.start for arm in arms()} == set(RATES)


def test_table_shows_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    row = {"arm": "n", "start": "nll", "estimator": "mee", "balance": "class", "through_nms": "exact", "rate": 1e-4}
    save_runs(tmp_path / "r.jsonl", "choose", {**row, "heldout": 30.0})
    for seed, val in enumerate((20.0, 22.0)):
        save_runs(tmp_path / "r.jsonl", "final", {**row, "seed": seed, "train": 50.0, "val": val})
    assert len(load_runs(tmp_path / "r.jsonl", "final")) == 2
    assert "| nll | mee | class | exact | 0.0001 | 30.0 | 50.0 (0.0) | 21.0 (1.4) | 2 |" in render(
        tmp_path / "r.jsonl", tmp_path / "r.md"
    )
