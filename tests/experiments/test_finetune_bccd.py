"""The experiment on blood cells, on made-up features: what goes on record, and that nothing is trained twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments import finetune_bccd, finetune_bccd_table
from experiments.finetune_bccd import HELD_OUT, PROTOCOLS, Parts, one_start
from experiments.results import load_runs
from stepgrad.models.fine_tuning import ImageWindows

BUDGET = {"steps": 2, "images_per_step": 4, "rates": [1e-3], "stock_rates": [1e-3], "seeds": [0, 1], "folds": 2}


def _image(generator: torch.Generator) -> ImageWindows:
    corner = 80 * torch.rand(12, 2, generator=generator)
    boxes = torch.cat([corner, corner + 20], dim=1)
    features = torch.randn(12, 5, generator=generator)
    features[:2, :2] += 2 * torch.eye(2)
    return ImageWindows(features, boxes, {"boxes": boxes[:2], "labels": torch.tensor([0, 1])})


@pytest.fixture
def parts() -> Parts:
    generator = torch.Generator().manual_seed(0)
    images = [_image(generator) for _ in range(16)]
    return Parts(images[:8], images[8:12], images[12:], num_classes=2)


def test_every_protocol_and_size_goes_on_record_with_all_ways(parts: Parts, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    for protocol in PROTOCOLS:
        one_start(parts, 3, protocol, 5, tmp_path / "heads", file, **BUDGET)
    runs = load_runs(file, "final")
    assert [(run["protocol"], run["held_out"]) for run in runs] == [(p, h) for p in PROTOCOLS for h in HELD_OUT]
    assert [run["images"] for run in runs] == [4, 2, 4, 2]
    for run in runs:
        assert run["seed"] == 3
        assert list(run["ways"]) == ["start", "more of the usual loss", "mAP", "mAP on fresh scores"]
        assert run["chosen"] in run["ways"]
        assert all(set(way["test"]) == set(PROTOCOLS) for way in run["ways"].values())
    first, second = runs[0]["ways"], runs[1]["ways"]
    for way in first:  # the same heads, so the same numbers on test images
        assert first[way]["test"] == second[way]["test"]
    page = finetune_bccd_table.page(runs)
    assert all(f"| {way} |" in page for way in first)


def test_what_is_on_record_is_not_made_again(parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "runs.jsonl"
    one_start(parts, 0, "coco", 5, tmp_path / "heads", file, **BUDGET)
    before = file.read_bytes()
    monkeypatch.setattr(finetune_bccd, "trained_head", None)
    one_start(parts, 0, "coco", 5, tmp_path / "heads", file, **BUDGET)
    assert file.read_bytes() == before
