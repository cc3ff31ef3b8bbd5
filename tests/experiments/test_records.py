"""Runs on record are added by several processes at once, and no kill loses more than the line being written."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from experiments.records import load_runs, once, read_lines, save_run
from stepgrad.errors import DataError

PROCESSES, RUNS = 4, 25


def _add_many(file: Path, process: int) -> None:
    for number in range(RUNS):
        save_run(file, "final", {"process": process, "number": number, "long": "x" * 5000 * (process + 1)})


def test_runs_added_by_several_processes_at_once_are_all_there_and_whole(tmp_path: Path) -> None:
    file, context = tmp_path / "table.jsonl", multiprocessing.get_context("spawn")
    processes = [context.Process(target=_add_many, args=(file, process)) for process in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    runs = load_runs(file, "final")
    for process in range(PROCESSES):
        own = [run for run in runs if run["process"] == process]
        assert [run["number"] for run in own] == list(range(RUNS))
        assert {len(run["long"]) for run in own} == {5000 * (process + 1)}


def _three_runs(file: Path) -> bytes:
    for number in range(3):
        save_run(file, "final", {"number": number, "nested": {"text": "ä \n }"}})
    return file.read_bytes()


def _numbers(file: Path) -> list[int]:
    return [run["number"] for run in load_runs(file, "final")]


def test_a_line_cut_short_anywhere_costs_that_run_only(tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    content = _three_runs(file)
    whole = content[:-1].rfind(b"\n") + 1
    for length in range(whole, len(content)):  # the last lost the end of its line only
        left = [0, 1, 2] if length == len(content) - 1 else [0, 1]
        file.write_bytes(content[:length])
        assert _numbers(file) == left
        save_run(file, "final", {"number": 9})
        assert _numbers(file) == [*left, 9]
        assert file.read_bytes().startswith(content[:whole])


def test_a_damaged_line_among_others_is_an_error_that_numbers_it(tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    lines = _three_runs(file).splitlines(keepends=True)
    file.write_bytes(lines[0] + b"<<<<<<< HEAD\n" + lines[2])
    with pytest.raises(DataError, match="line 2 but got b'<<<<<<< HEAD'"):
        load_runs(file, "final")


def test_a_run_on_record_is_not_made_again(tmp_path: Path) -> None:
    file, made = tmp_path / "folder" / "table.jsonl", []

    def make() -> dict[str, int]:
        made.append(1)
        return {"value": len(made)}

    found = [once(file, phase, {"seed": seed}, make)["value"] for seed in (0, 1, 0) for phase in ("choose", "final")]
    assert found == [1, 2, 3, 4, 1, 2]
    assert [line["phase"] for line in read_lines(file)] == ["choose", "final"] * 2
