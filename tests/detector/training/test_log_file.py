"""A damaged log costs its damaged lines, and never a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepgrad.detector.training.run_folder import RunFolder
from stepgrad.detector.training.run_log import Log, _scalars, read_log
from stepgrad.errors import DataError


def line(step: int) -> dict[str, object]:
    return {"kind": "train", "step": step}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of three steps."""
    log = Log(tmp_path / "log.jsonl")
    for step in (1, 2, 3):
        log.write(line(step))
    log.close()
    return tmp_path / "log.jsonl"


@pytest.mark.parametrize("damage", [b'{"kind": "tr', b"", b"\0" * 30, b"\xff\xfe", b"[1]", b'{"kind": "train"}', b"7"])
def test_damaged_lines_are_left_out_with_one_warning_that_numbers_them(path: Path, damage: bytes) -> None:
    first, *others = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, damage, *others, damage, b""]))
    with pytest.warns(UserWarning, match=r"log\.jsonl: damaged lines are left out: 2, 5 \(2 of 5\)") as told:
        assert read_log(path) == [line(1), line(2), line(3)]
    assert len(told) == 1


def test_a_line_that_is_being_written_is_left_out_silently(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])
    assert read_log(path) == [line(1), line(2)]


def test_a_run_goes_on_after_the_lines_of_the_steps_it_has_taken(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])
    log = Log(path, read_log(path)[:1])
    log.write(line(9))
    log.sync()
    assert read_log(path) == [line(1), line(9)]
    log.close()


def test_a_log_that_cannot_be_read_is_named_and_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(DataError, match=r"log\.jsonl: cannot be read \(Is a directory\); move away"):
        read_log(tmp_path / "log.jsonl")
    with pytest.warns(UserWarning, match=r"log\.jsonl: cannot be read .*continuing without it"):
        assert RunFolder(tmp_path).history() == []


def test_the_log_of_tensorboard_has_the_metric_by_its_name() -> None:
    of_a_step = {"kind": "train", "step": 3, "map": None, "losses": {"map": 0.5}, "metrics": {"f1": 0.25}}
    assert dict(_scalars(of_a_step)) == {"train/losses/map": 0.5, "train/metrics/f1": 0.25}
