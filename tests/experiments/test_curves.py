"""The figure of the result tables has a line for each loss, in four panels."""

from pathlib import Path

from experiments.curves import CURVES, plot
from experiments.rows import ROWS


def test_a_line_for_each_row_that_was_run(tmp_path: Path) -> None:
    points = [{"steps": s, "seconds": 2.0 * s, "heldout": 30.0 + s, "train": 40.0} for s in (0, 10)]
    plot({name: points for name in list(CURVES)[:3]}, tmp_path / "curves.svg")
    drawn = (tmp_path / "curves.svg").read_text()
    assert "seconds on one core" in drawn
    for shown, label in zip([True] * 3 + [False] * 4, CURVES.values(), strict=True):
        assert (label in drawn) == shown, label


def test_a_run_that_failed_is_a_gap(tmp_path: Path) -> None:
    plot({"radius": [{"steps": 0, "seconds": 0.0, "heldout": None, "train": None}]}, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").is_file()


def test_curves_are_of_rows_that_exist() -> None:
    assert set(CURVES) <= set(ROWS)
