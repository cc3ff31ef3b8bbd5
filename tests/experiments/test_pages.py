"""Every page of the experiments is made of its runs, every script can be started, and the examples in their docstrings hold."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from experiments import render
from experiments.records import load_runs
from experiments.tables import gain_of

ROOT = Path(__file__).resolve().parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "experiments").rglob("*.py"))
    if path.name != "__init__.py"
]
SCRIPTS = [
    name for name in MODULES if "\ndef main(" in (ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", render.PAGES)
def test_a_page_is_that_of_its_runs(name: str) -> None:
    """`python -m experiments.render` makes it again."""
    assert render.PAGES[name](render.runs_of(name)) == (render.RESULTS / f"{name}.md").read_text(encoding="utf-8")


def test_every_page_and_figure_beside_the_runs_is_made_of_them() -> None:
    pages = {str(path.relative_to(render.RESULTS).with_suffix("")) for path in render.RESULTS.rglob("*.md")}
    assert pages == render.PAGES.keys()
    drawn = {str(path.relative_to(render.RESULTS).with_suffix("")) for path in render.RESULTS.rglob("*.svg")}
    assert drawn == {*render.FIGURES, "deployed/curves-voc-0-hard"}  # whose curves are not on record


@pytest.mark.parametrize("name", render.FIGURES)
def test_a_figure_is_drawn_from_its_runs(name: str, tmp_path: Path) -> None:
    """Its words are those of the one on the page; where its lines end depends on matplotlib."""
    render.FIGURES[name](render.runs_of(name), tmp_path / f"{Path(name).name}.svg")
    words = [
        re.findall(r"<text[^>]*>([^<]*[a-z][^<]*)</text>", file.read_text(encoding="utf-8"))
        for file in (tmp_path / f"{Path(name).name}.svg", render.RESULTS / f"{name}.svg")
    ]
    assert sorted(words[0]) == sorted(words[1]) != []


def test_your_own_runs_get_a_page_beside_them(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_bytes(render.runs_of("unfrozen").read_bytes())
    render.main(["unfrozen", "--runs", str(tmp_path / "mine.jsonl")])
    assert (tmp_path / "mine.md").read_bytes() == (render.RESULTS / "unfrozen.md").read_bytes()


def test_a_gain_needs_a_control_of_every_seed() -> None:
    def runs(*values: float | None) -> list[dict]:
        return [{"seed": n, "map": {"val": {"voc12": v}} if v else {}} for n, v in enumerate(values)]

    assert gain_of(runs(31.0, 23.0), runs(30.0, 20.0)) == "+2.0 (1.4)"
    assert gain_of(runs(31.0, 23.0), runs(30.0)) == gain_of(runs(31.0, None), runs(30.0, 20.0)) == "-"


@pytest.mark.parametrize("file", sorted(render.RESULTS.glob("table_*.jsonl")), ids=lambda file: file.stem)
def test_every_run_of_the_tables_has_its_provenance(file: Path) -> None:
    runs = load_runs(file, "tune") + load_runs(file, "final")
    assert len(runs) == len(file.read_bytes().splitlines())
    for run in runs:
        assert run["command"].startswith("python -m experiments.run ")
        assert {"commit", "versions", "row", "tuning", "seed", "seconds", "train_seconds"} <= run.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_how_it_is_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        importlib.import_module(name).main(["--help"])
    assert end.value.code == 0
    assert f"python -m {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
