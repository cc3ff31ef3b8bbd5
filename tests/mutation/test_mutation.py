"""The mutation runner: its faults are faults, and every file has tests. The run itself is nightly."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import FOLDERS
from tests.mutation.clean import SETUP, Clean, met_by
from tests.mutation.concerned import CONCERNED, concerned
from tests.mutation.mutants import all_mutants, mutants_of, mutated
from tests.mutation.worker import OUT_OF_TIME, PACKAGE, ROOT

SOURCE = '''
def bounded(x: int | None, most: int = 3) -> int:
    """Text with 1 < 2."""
    total = 0
    if x is None:
        raise ValueError(f"{1 + 2}")
    while total < most and x > 0:
        total += max(x, 1)
    return -total
'''
CHANGES = {
    *("3 -> 4", "3 -> 2", "0 -> 1", "0 -> -1", "1 -> 2", "1 -> 0"),
    *("x is None -> x is not None", "total < most -> total <= most", "x > 0 -> x >= 0"),
    "total < most and x > 0 -> total < most or x > 0",
    "total += max(x, 1) -> total -= max(x, 1)",
    "total += max(x, 1) -> pass",
    *("max(x, 1) -> min(x, 1)", "max(x, 1) -> x", "-total -> total"),
}


def test_faults_are_those_of_the_code_and_not_of_its_words() -> None:
    found = {" ".join(m.change.split()) for m in mutants_of("a.py", SOURCE)}
    assert found >= CHANGES
    assert {change.split(" ")[0] for change in found - CHANGES} == {"if", "while"}  # conditions turned round


def test_every_fault_changes_the_program() -> None:
    clean = ast.unparse(ast.parse(SOURCE))
    programs = [mutated(m, SOURCE) for m in mutants_of("a.py", SOURCE)]
    assert clean not in programs
    assert len(set(programs)) == len(programs)


def test_every_file_has_tests_that_exist() -> None:
    for file in {m.file for m in all_mutants(PACKAGE, FOLDERS)}:
        assert all((ROOT / test.split("::")[0]).exists() for test in concerned(file)), file
    files = [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")]
    assert all(any(file.startswith(start) for file in files) for start in CONCERNED)


def test_a_fault_meets_the_tests_that_run_its_line_and_on_import_all_that_run_its_file() -> None:
    source = "LIMIT = 3\ndef f(x):\n    if x:\n        return 1\n    return 2\n"
    clean = Clean(
        seconds={"a.py::one": 9.0, "b.py::two": 3.0, "b.py::three": 2.0, "c.py::four": 0.1},
        runs={"f.py": {"3": ["a.py::one", SETUP + "b.py"], "4": ["a.py::one"], "5": ["b.py::two"]}},
    )
    met = {m.change.split()[0]: list(met_by(m, [clean])) for m in mutants_of("f.py", source)}
    assert met["if"] == [
        "b.py::three",
        "b.py::two",
        "a.py::one",
    ]  # quick ones first, and a fixture is for all of its file
    assert met["1"] == ["a.py::one"]
    assert met["2"] == ["b.py::two"]
    assert met["3"] == met["if"]


FREE = """
from pathlib import Path
import os, sys, time
import stepgrad.errors
def test_inside(tmp_path): (tmp_path / "a").write_text("a"); Path("here").write_text("a")
def test_outside():
    for change in (path.write_text, lambda _: path.unlink(), lambda _: path.with_name("new").mkdir(), lambda _: path.rename("a")):
        try:
            change("changed")
        except PermissionError:
            continue
        raise AssertionError(change)
def test_for_ever():
    if FOR_EVER: time.sleep(100_000)
"""
RUN = """
import sys
from pathlib import Path
from tests.mutation import worker
worker.IDLE_SECONDS = 10
fault = ("errors.py", (worker.PACKAGE / "errors.py").read_text())
run = worker.run_tests([sys.argv[1]], fault, True, Path(sys.argv[2]))
print(run.code)
print(run.output)
"""


@pytest.mark.parametrize(("for_ever", "code"), [(False, 0), (True, OUT_OF_TIME)])
def test_a_fault_changes_nothing_outside_its_folder_and_cannot_wait_for_ever(
    tmp_path: Path, for_ever: bool, code: int
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    tests = tmp_path / "test_free.py"
    tests.write_text(
        f"FOR_EVER = {for_ever}\n{FREE}".replace(
            "def test_outside():", f"path = Path({str(mine)!r})\ndef test_outside():"
        )
    )
    logs = tmp_path / "logs"  # the folder of the log is the child's own
    logs.mkdir()
    words = [sys.executable, "-c", RUN, str(tests), str(logs / "log")]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.splitlines()[0] == str(code), run.stdout + run.stderr
    assert {path.name: path.is_file() and path.read_text() for path in tmp_path.glob("[mn]*")} == {"mine.txt": "mine"}


def mutation_run(out: Path, *words: str) -> str:
    """What `python -m tests.mutation` prints."""
    command = [sys.executable, "-m", "tests.mutation", "--out", str(out / "r.jsonl"), *words]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_fault_that_matters_is_found_and_the_file_on_disk_stays(tmp_path: Path) -> None:
    source = (PACKAGE / "metric/boxes.py").read_bytes()
    first, again = (mutation_run(tmp_path, "--count", "1", "--only", "metric/boxes.py") for _ in range(2))
    assert "all: 1 of 1 killed" in first
    assert "clean:" not in again  # all known: nothing is run twice
    assert (PACKAGE / "metric/boxes.py").read_bytes() == source


@pytest.mark.nightly
def test_nine_of_ten_faults_are_found(tmp_path: Path) -> None:
    printed = mutation_run(tmp_path, "--count", "300", "--seed", "0")
    (line,) = [line for line in printed.splitlines() if line.startswith("all:")]
    assert float(line.split(", ")[1].split()[0]) >= 90.0, printed
