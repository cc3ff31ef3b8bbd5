"""The experiments on a new class head, small: what is chosen, equal budgets, and that all of it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from experiments.endless import new_head, ways, where
from experiments.endless.new_head import Point


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(new_head, "SIZES", {"train": 8, "val": 4, "test": 4})
    monkeypatch.setattr(new_head, "STEPS", 3)
    monkeypatch.setattr(new_head, "MAP_STEPS", 1)
    threads = torch.get_num_threads()
    new_head.pictures.cache_clear()
    yield
    new_head.pictures.cache_clear()
    torch.set_num_threads(threads)


def test_every_way_to_go_on_sees_as_many_images() -> None:
    seen = {arm: Point("hard", arm, 1e-3).plan for arm in new_head.RATES}
    assert len({plan.steps * plan.images for plan in seen.values()}) == 1


def test_all_points_are_tried_and_the_best_on_val_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs.jsonl"
    new_head.main(["choose", "--out", str(out)])
    lines = new_head.read(out)
    assert len(lines) == len(new_head.LABELS) * (len(new_head.STARTS) + sum(map(len, new_head.RATES.values())))
    best = new_head.chosen(lines)
    for (labels, arm), point in best.items():
        tried = [line for line in lines if (line["labels"], line["arm"]) == (labels, arm)]
        (mine,) = [line for line in tried if (line["rate"], line["weight_decay"]) == (point.rate, point.weight_decay)]
        assert mine["val"]["coco"] == max(line["val"]["coco"] for line in tried)
    new_head.main(["final", "--seeds", "3", "--out", str(out)])
    final = [line for line in new_head.read(out) if line["part"] == "final"]
    assert [(line["labels"], line["arm"]) for line in final] == [
        (labels, arm) for labels in new_head.LABELS for arm in ("start", *new_head.RATES)
    ]
    capsys.readouterr()
    new_head.main(["render", "--out", str(out)])
    assert capsys.readouterr().out.count("\n| cross-entropy, 2000 steps") == len(new_head.LABELS)


def test_wrong_labels_are_as_many_as_asked_for_and_other_ones() -> None:
    right = where.training_images(where.Place(images=8))
    wrong = where.training_images(where.Place(images=8, wrong=1.0))
    for a, b in zip(right, wrong, strict=True):
        assert bool((a.target["labels"] != b.target["labels"]).all())
        assert torch.equal(a.boxes, b.boxes)


def test_the_plot_has_a_panel_for_each_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        where, "PLACES", {"units": [where.Place(4, 8)], "images": [where.Place(4, 8)], "wrong": [where.Place(4, 8)]}
    )
    monkeypatch.setattr(where, "SEEDS", (0,))
    out = tmp_path / "where.jsonl"
    where.main(["run", "--out", str(out)])
    where.main(["draw", "--out", str(out)])
    assert all(title in out.with_suffix(".svg").read_text() for title in where.TITLES.values())


def test_ways_run_and_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_ways = {
        "noise": ways.Way(1, 4, noise=1.0),
        "memory": ways.Way(2, 4, memory=4),
        "both": ways.Way(2, 4, stock=1.0, ramp=True, from_random=True),
    }
    monkeypatch.setattr(ways, "WAYS", small_ways)
    monkeypatch.setattr(ways, "SEEDS", (0,))
    ways.main(["--out", str(tmp_path / "ways.jsonl")])
    found = [json.loads(line) for line in (tmp_path / "ways.jsonl").read_text().splitlines()]
    assert [line["way"] for line in found] == ["cross-entropy", *small_ways]
    assert all(set(run) == {"coco", "voc12"} for line in found for run in line["val"])
