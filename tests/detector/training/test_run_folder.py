"""Run folders in which something is not as it should be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import stepgrad.detector.training.engine as engine
from stepgrad.cli import main
from stepgrad.detector.training.checkpoint import Checkpoint, list_checkpoints
from stepgrad.detector.training.run_folder import RunFolder, State, open_run
from stepgrad.errors import ConfigError, DataError, StepgradError
from stepgrad.locks import FolderInUse, only_writer
from tests.detector.training.small_runs import small_config

DAMAGE = {
    "not UTF-8": (b"loss: nll # \xe9\xff", "is damaged .*; restore it from a copy"),
    "not yaml": (b"loss: [", "is damaged .*; restore it from a copy"),
    "not keys": (b"nll", "expected keys and values but got str; restore"),
    "an unknown key": (b"los: nll", "los: no such key. Did you mean 'loss'"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that has not taken a step yet."""
    RunFolder(tmp_path / "run").create(small_config(loss="nll"))
    return tmp_path / "run"


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_config_is_named_with_the_way_out(run: Path, case: str) -> None:
    content, message = DAMAGE[case]
    (run / "config.yaml").write_bytes(content)
    with pytest.raises(StepgradError, match=rf"config\.yaml: {message}"):
        engine.resume(run)


def test_a_folder_in_the_place_of_the_config_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.yaml").unlink()
    (run / "config.yaml").mkdir()
    assert main(["train", "--resume", str(run)]) == 2
    assert "config.yaml: cannot be read (Is a directory); restore it from a copy" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"config\.yaml: cannot be read"):
        open_run(run)


def test_a_file_in_the_place_of_the_checkpoints_is_named_and_the_run_not_begun_anew(run: Path) -> None:
    (run / "checkpoints").write_text("")
    (run / "log.jsonl").write_text("the log of many steps")
    with pytest.raises(DataError, match=r"checkpoints: cannot be read \(Not a directory\)"):
        engine.resume(run)
    assert (run / "log.jsonl").read_text() == "the log of many steps"


def test_checkpoints_that_may_not_be_read_are_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)"):
        list_checkpoints(tmp_path)


def test_a_folder_in_the_place_of_a_checkpoint_is_named(run: Path) -> None:
    (run / "checkpoints/step-00000003.safetensors").mkdir(parents=True)
    with pytest.raises(DataError, match=r"step-00000003\.safetensors: cannot be read \(Is a directory\); there is no"):
        engine.resume(run)


def test_a_file_in_the_place_of_the_events_is_named(run: Path) -> None:
    (run / "events").write_text("")
    with pytest.raises(DataError, match="events: cannot be written"):
        engine.resume(run)


def test_counters_of_older_runs_are_understood_and_others_refused() -> None:
    older = {"best_map": 0.25, "best_step": 2, "log_length": 700, "class_names": ["cat"]}
    assert State.of(Checkpoint(3, {}, {}, older)) == State(
        3, best_map=0.25, best_merit=0.25, best_step=2, class_names=["cat"]
    )
    for state in ({"best_map": "0.25"}, {"unknown": 1}):
        with pytest.raises(DataError, match=f"step 3 has no valid {next(iter(state))}: .*start the run again"):
            State.of(Checkpoint(3, {}, {}, state))


def test_a_run_in_use_is_neither_trained_into_nor_resumed(run: Path, tmp_path: Path) -> None:
    for folder in (run, tmp_path / "new"):
        with only_writer(folder, ""):
            before = sorted(folder.iterdir())
            with pytest.raises(FolderInUse, match=f"{folder}: is in use by process {os.getpid()} on .*--out"):
                engine.train(small_config(), folder)
            if folder == run:
                with pytest.raises(FolderInUse):
                    engine.resume(folder)
            assert sorted(folder.iterdir()) == before


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such weights file"):
        engine.train(small_config(model={"weights": "no/such.pt"}), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["cud", "tpu"])
def test_a_device_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"run\.accelerator: cannot train on '{name}' .*this machine has cpu"):
        engine.train(small_config(run={"accelerator": name}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
