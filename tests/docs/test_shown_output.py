"""Pages with plain code say what it prints: the code runs from top to bottom, and prints that. So does the notebook."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from docs import notebook

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["how_to.md", "own_loop.md", "tutorial.md"]
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
ABOUT = {"own_loop.md": 0.1, "tutorial.md": 1.0}
"""How far numbers of blocks titled "about" may be off, in their own units: trainings end a little different on every CPU."""


@pytest.fixture(autouse=True)
def _no_window() -> Iterator[None]:
    import matplotlib.pyplot as plt

    matplotlib.use("Agg")
    yield
    plt.close("all")


def printed_by(code: str, names: dict[str, Any]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, names)
    return said.getvalue().strip()


@pytest.mark.parametrize("name", PAGES)
def test_the_code_of_a_page_prints_what_the_page_shows(name: str) -> None:
    names: dict[str, Any] = {}
    printed = ""
    for kind, text in notebook.parts((DOCS / name).read_text(encoding="utf-8")):
        if kind == "python":
            assert printed == "", "the page does not show this"
            printed = printed_by(text, names)
        elif kind == "text":
            assert printed == text
            printed = ""
        elif kind.startswith("text"):
            assert NUMBER.sub("_", printed) == NUMBER.sub("_", text)
            found, shown = ([float(n) for n in NUMBER.findall(t)] for t in (printed, text))
            assert found == pytest.approx(shown, abs=ABOUT[name])
            printed = ""
    assert printed == ""


def test_the_notebook_is_that_of_the_page() -> None:
    """`python docs/notebook.py` makes it again."""
    page = notebook.PAGE.read_text(encoding="utf-8")
    assert json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8")) == notebook.notebook(page)


def test_the_notebook_holds_no_output_and_installs_what_it_needs_first() -> None:
    cells = [
        cell
        for cell in json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert "".join(cells[0]["source"]).startswith("%pip install")


def test_the_notebook_runs_from_top_to_bottom() -> None:
    names: dict[str, Any] = {}
    for cell in json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.startswith("%"):
            printed_by(source, names)
    assert names["tuned"].chosen == "mAP"
