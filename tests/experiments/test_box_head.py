"""The box-gradient experiment moves windows, draws minibatches and sums up as its page says."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

import pytest
import torch

from experiments import box_gradient
from experiments.box_coordinates.loss import BoxMAPLoss
from experiments.box_head import BoxHead, Images, moved, offset_loss, offsets_to
from experiments.results import save_runs
from stepgrad.data.base import make_target

OBJECTS = torch.tensor([[10.0, 10.0, 30.0, 30.0], [50.0, 12.0, 90.0, 40.0]])
WINDOWS = torch.tensor([[12.0, 9.0, 30.0, 33.0], [48.0, 12.0, 85.0, 44.0], [0.0, 0.0, 5.0, 5.0]])


def images() -> Images:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 8, generator=generator)
    return Images([WINDOWS], [features], [features], [make_target(OBJECTS, [0, 1], "a")])


def test_windows_moved_by_their_offsets_are_their_objects() -> None:
    torch.testing.assert_close(moved(WINDOWS[:2], offsets_to(WINDOWS[:2], OBJECTS)), OBJECTS)


def test_a_new_head_moves_nothing_and_no_head_neither() -> None:
    torch.testing.assert_close(images().boxes(BoxHead(8))[0], WINDOWS)
    assert images().boxes(None)[0] is WINDOWS


def test_offsets_are_learned_by_windows_that_show_an_object_alone() -> None:
    head, part = BoxHead(8), images()
    expected = offsets_to(WINDOWS[:2], OBJECTS) / torch.tensor([0.1, 0.1, 0.2, 0.2])
    zero = torch.zeros_like(expected)
    rounding = 2 * expected.numel() * torch.finfo(expected.dtype).eps  # of the terms and of their sum; all are positive
    assert offset_loss(head, part).item() == pytest.approx(
        torch.nn.functional.smooth_l1_loss(expected, zero).item() * 4, rel=rounding
    )


def test_ways_follow_what_their_names_say() -> None:
    for name, grid in box_gradient.GRID.items():
        for way in grid:
            assert (way.name, way.follows_map, way.follows_offsets) == (name, "map" in name, "l1" in name)
            assert isinstance(way.loss(), BoxMAPLoss) == way.follows_map


def test_every_image_comes_once_before_any_comes_again() -> None:
    drawn = list(islice(box_gradient.minibatches(32, 0), 4))
    assert sorted(chain(*drawn[:2])) == sorted(chain(*drawn[2:])) == list(range(32))


def test_table_shows_means_and_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_gradient, "RESULTS", tmp_path)
    monkeypatch.setattr(box_gradient, "FILE", tmp_path / "r.jsonl")
    for seed, voc in ((1, 32.0), (2, 34.0)):
        row = {"name": "map", "rate": 0.001, "radius": 0.1, "seed": seed, "cpu_seconds": 4.0}
        scores = {"start": {"voc12": 30.0, "coco": 9.0}, "map": {"voc12": voc, "coco": 9.0}}
        save_runs(tmp_path / "r.jsonl", "final", {**row, **scores})
    assert "| map | 0.001 | 0.1 | 33.0 (1.4) | 9.0 (0.0) | 3.0 (1.4) | 0.0 (0.0) | 4 |" in box_gradient.render()
