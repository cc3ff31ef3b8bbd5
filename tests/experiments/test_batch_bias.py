"""The batch-bias experiment judges windows as stepgrad does, and measures what its table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import stepgrad as sg
from experiments.batch_bias import SIZES, measure, plot, render
from experiments.scored_images import ScoredImages, judge, mean_ap
from tests.scenes import random_batch


def scored(images: int, seed: int = 0) -> ScoredImages:
    batch = random_batch(
        np.random.default_rng(seed), windows=14 * images, images=images, K=4, objects=3 * images, difficult=0.2
    )
    return ScoredImages(*batch.tensors(torch.float32))


@pytest.mark.parametrize("seed", range(3))
def test_map_of_any_choice_of_images_is_stepgrads(seed: int) -> None:
    images = scored(12, seed)
    records = judge(images)
    rng = np.random.default_rng(seed)
    for size in (1, 3, 12):
        chosen = np.zeros(12, dtype=np.bool_)
        chosen[rng.choice(12, size, replace=False)] = True
        part = [
            [x for x, c in zip(xs, chosen, strict=True) if c] for xs in (images.scores, images.boxes, images.targets)
        ]
        zero, skip = mean_ap(records, chosen)
        for value, kind in ((zero, "zero"), (skip, "skip")):
            expected = sg.mean_average_precision(*part, protocol="voc12", nms_threshold=0.3, absent_classes=kind).map
            assert value == pytest.approx(expected, abs=1e-12)


def test_scores_come_back_from_their_file(tmp_path: Path) -> None:
    images = scored(5)
    images.save(tmp_path / "scores.npz")
    again = ScoredImages.load(tmp_path / "scores.npz")
    everyone = np.ones(5, dtype=np.bool_)
    assert mean_ap(judge(again), everyone) == mean_ap(judge(images), everyone)
    assert all(torch.equal(a, b) for a, b in zip(images.scores, again.scores, strict=True))
    assert again.targets[3].keys() == {"boxes", "labels", "difficult"}


def test_batches_scatter_around_what_the_table_says() -> None:
    results = measure(scored(32), draws=60, seed=1)
    sizes = [row["size"] for row in results["rows"]]
    assert sizes == [s for s in SIZES if s <= 32]
    small, whole = results["rows"][0], results["rows"][-1]
    assert whole["draws"] == 1
    assert whole["zero"]["bias"] == whole["skip"]["bias"] == 0.0
    assert small["zero"]["deviation"] > results["rows"][-2]["zero"]["deviation"] > 0
    assert small["zero"]["mean"] - results["dataset"]["zero"] == pytest.approx(small["zero"]["bias"])


def test_the_page_and_the_plot_show_every_size(tmp_path: Path) -> None:
    results = {"command": "python -m x", "source": "made up", **measure(scored(16), draws=5)}
    page = render(results)
    for size in (2, 4, 8, 16):
        assert f"\n| {size} | {1 if size == 16 else 5} | " in page
    plot(results, tmp_path / "bias.svg")
    assert (tmp_path / "bias.svg").read_bytes().startswith(b"<?xml")
