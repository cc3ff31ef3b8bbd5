"""Runs on record are added by several processes at once, and no kill loses more than the line being written."""

from __future__ import annotations

import json
import multiprocessing
import resource
from pathlib import Path

import pytest

from experiments import results
from experiments.results import load_runs, save_runs
from stepgrad.errors import DataError
from stepgrad.files import WriteError

PROCESSES, RUNS = 4, 25
RESULTS = Path(results.__file__).parent / "results"


def _add_many(file: Path, process: int) -> None:
    for number in range(RUNS):
        save_runs(file, "final", {"process": process, "number": number, "long": "x" * 5000 * (process + 1)})


def test_runs_added_by_several_processes_at_once_are_all_there_and_whole(tmp_path: Path) -> None:
    file, context = tmp_path / "table.jsonl", multiprocessing.get_context("spawn")
    processes = [context.Process(target=_add_many, args=(file, process)) for process in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    runs = load_runs(file, "final")
    for process in range(PROCESSES):
        own = [run for run in runs if run["process"] == process]
        assert [run["number"] for run in own] == list(range(RUNS))
        assert {len(run["long"]) for run in own} == {5000 * (process + 1)}


def _three_runs(file: Path) -> bytes:
    for number in range(3):
        save_runs(file, "final", {"number": number, "nested": {"text": "ä \n }"}})
    return file.read_bytes()


def test_a_line_cut_short_anywhere_costs_that_run_only(tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    content = _three_runs(file)
    whole = content[:-1].rfind(b"\n") + 1
    for length in range(whole, len(content) - 1):
        file.write_bytes(content[:length])
        assert [run["number"] for run in load_runs(file, "final")] == [0, 1]
        save_runs(file, "final", {"number": 9})
        assert [run["number"] for run in load_runs(file, "final")] == [0, 1, 9]
        assert file.read_bytes().startswith(content[:whole])


def test_a_run_that_lost_only_the_end_of_its_line_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    content = _three_runs(file)
    file.write_bytes(content[:-1])
    assert [run["number"] for run in load_runs(file, "final")] == [0, 1, 2]
    save_runs(file, "final", {"number": 9})
    assert [run["number"] for run in load_runs(file, "final")] == [0, 1, 2, 9]
    assert file.read_bytes().startswith(content)


def test_adding_a_run_changes_nothing_that_was_there(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "table.jsonl"
    content = _three_runs(file)
    save_runs(file, "tune", {"number": 3})
    assert file.read_bytes().startswith(content)
    assert load_runs(file, "tune") == [{"phase": "tune", "number": 3}]
    assert len(load_runs(file, "final")) == 3


def test_each_run_is_one_write_that_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    file = tmp_path / "table.jsonl"
    monkeypatch.setattr(results.os, "fsync", lambda handle: synced.append(file.read_bytes()))
    save_runs(file, "final", {"number": 0})
    assert [json.loads(content) for content in synced] == [{"phase": "final", "number": 0}]


def test_a_damaged_line_among_others_is_an_error_that_numbers_it(tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    lines = _three_runs(file).splitlines(keepends=True)
    file.write_bytes(lines[0] + b"<<<<<<< HEAD\n" + lines[2])
    with pytest.raises(DataError, match="line 2 but got b'<<<<<<< HEAD'"):
        load_runs(file, "final")


def test_a_table_without_runs_yet_is_empty(tmp_path: Path) -> None:
    assert load_runs(tmp_path / "table.jsonl", "final") == []


def _add_with_little_room(file: Path, bytes_left: int) -> None:
    limit = file.stat().st_size + bytes_left
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with pytest.raises(WriteError, match=f"only {bytes_left} of "):
        save_runs(file, "final", {"number": 3, "long": "x" * 1000})


def test_a_disk_that_fills_up_is_an_error_and_costs_no_other_run(tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    _three_runs(file)
    process = multiprocessing.get_context("spawn").Process(target=_add_with_little_room, args=(file, 100))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert [run["number"] for run in load_runs(file, "final")] == [0, 1, 2]
    save_runs(file, "final", {"number": 9})
    assert [run["number"] for run in load_runs(file, "final")] == [0, 1, 2, 9]


@pytest.mark.parametrize("file", sorted(RESULTS.glob("table_*.jsonl")), ids=lambda file: file.stem)
def test_every_run_of_the_tables_has_its_provenance(file: Path) -> None:
    runs = load_runs(file, "tune") + load_runs(file, "final")
    assert len(runs) == len(file.read_bytes().splitlines())
    for run in runs:
        assert run["commit"]
        assert run["command"].startswith("python -m experiments.run ")
        assert run["versions"].keys() == {"python", "torch", "numpy"}
        assert {"row", "tuning", "seed", "seconds", "train_seconds"} <= run.keys()
