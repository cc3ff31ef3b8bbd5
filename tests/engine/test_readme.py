"""The worked example of the engine room runs as it is printed."""

from __future__ import annotations

import doctest
from pathlib import Path

import stepgrad

PAGE = Path(stepgrad.__file__).parent / "engine/README.md"


def test_the_example_runs() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False)
    assert outcome.attempted > 30
    assert outcome.failed == 0


def test_every_kernel_file_is_named() -> None:
    page = PAGE.read_text(encoding="utf-8")
    files = {path.name for path in PAGE.parent.glob("*.py")} - {"__init__.py"}
    assert {file for file in files if f"`{file}`" not in page} == set()
