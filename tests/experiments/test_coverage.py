"""The simulation of coverage takes samples as the evaluator would judge them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import coverage
from stepgrad.evaluation.resampling import Resamples, resample
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.over_classes import OverClasses


def test_a_sample_has_the_map_of_its_images() -> None:
    entries = coverage.made_set(seed=3, images=60)
    population = coverage.Population(coverage.evaluated(entries, "voc12"))
    drawn = np.random.default_rng(0).integers(60, size=30)
    assert len(np.unique(drawn)) < 30  # some are drawn twice
    expected = coverage.evaluated([entries[i] for i in drawn], "voc12")
    units, over = Resamples.of(30, 1, 0), OverClasses(absent_classes="zero")
    found = resample(
        population.sample(drawn), AVERAGE_PRECISION, expected.protocol, np.ones((1, 30), dtype=np.uint8), units, over
    )
    assert found.values[0] == pytest.approx(expected.map, abs=1e-12)


def test_the_page_joins_runs_of_one_setting(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    coverage.main(
        ["measure", "--images", "40", "--draws", "2", "--seeds", "2", "--resamples", "20", "--out", str(file)]
    )
    row = next(line for line in coverage.page(file).splitlines() if "| mAP |" in line)
    assert [cell.strip() for cell in row.split("|")][1:7] == ["voc12", "40", "20", "4", "mAP", "4"]


def test_the_paired_interval_is_hotcocos_with_each_image_once(tmp_path: Path) -> None:
    """hotcoco counts an image that was drawn twice once; with that, its interval is ours up to the chance of the draws."""
    pytest.importorskip("hotcoco", reason="a peer: pip install hotcoco")
    found = coverage.compare(images=200, resamples=400)
    ours, theirs = found["ours, each image once"], found["hotcoco"]
    assert theirs["difference"] == pytest.approx(ours["difference"], abs=1e-9)
    width = ours["high"] - ours["low"]
    # A 2.5 % quantile of 400 normal draws is uncertain by 0.13 deviations, 0.034 widths; both sides have it: 4 of these.
    for end in ("low", "high"):
        assert abs(ours[end] - theirs[end]) < 4 * 2**0.5 * 0.034 * width
