"""A folder has one writer at a time, however that one ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock

from stepgrad.files import WriteError, write_whole
from stepgrad.locks import HOLDER_NAME, LOCK_NAME, FolderInUse, only_writer

HOLDING = """
import sys
from pathlib import Path
from stepgrad.locks import only_writer
with only_writer(Path(sys.argv[1]), "wait"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def hold(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds a folder until it reads a line."""
    command = [sys.executable, "-c", HOLDING, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_is_told_who_the_first_is(folder: Path) -> None:
    with hold(folder) as other:
        with pytest.raises(FolderInUse) as refused, only_writer(folder, "choose another"):
            raise AssertionError
        text = str(refused.value)
        assert text.startswith(f"{folder}: is in use by process {other.pid} on {socket.gethostname()}, since 20")
        assert str(folder) in text.partition("since")[2]  # the command
        assert text.endswith("; choose another")
        other.communicate("go\n")
    with only_writer(folder, ""):
        pass


def test_a_killed_holder_holds_nothing(folder: Path) -> None:
    with hold(folder) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert (folder / LOCK_NAME).exists()
        with only_writer(folder, ""):
            assert json.loads((folder / HOLDER_NAME).read_text())["pid"] == os.getpid()


def test_a_killed_holder_is_not_taken_for_the_next_one(folder: Path) -> None:
    """The next one has the lock before its name stands in the file."""
    with hold(folder) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
    name = json.dumps({"pid": 7, "host": "here", "since": "now", "command": "train"})
    own_name = threading.Timer(0.3, lambda: (folder / HOLDER_NAME).write_text(name))
    with FileLock(folder / LOCK_NAME):
        own_name.start()
        with pytest.raises(FolderInUse, match="is in use by process 7 on here, since now"), only_writer(folder, ""):
            raise AssertionError
    own_name.join()


def test_whoever_waits_is_told_for_whom_and_comes_next(folder: Path) -> None:
    said: list[str] = []
    with hold(folder) as other:

        def let_go(text: str) -> None:
            said.append(text)
            assert other.stdin
            print("go", file=other.stdin, flush=True)

        with only_writer(folder, "", wait=let_go):
            assert len(said) == 1
            assert said[0].startswith(f"{folder}: waiting for process {other.pid} on ")


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_end_of_the_block_releases_and_leaves_no_trace(folder: Path, error: type[BaseException] | None) -> None:
    def work() -> None:
        with only_writer(folder, ""):
            assert (folder / LOCK_NAME).exists()
            if error:
                raise error

    if error:
        with pytest.raises(error):
            work()
    else:
        work()
    assert not folder.exists()


def test_what_was_written_stays_and_so_does_a_folder_that_was_there(folder: Path, tmp_path: Path) -> None:
    with only_writer(folder, ""):
        write_whole(folder / "file", b"content")
    assert [path.name for path in folder.iterdir()] == ["file"]
    (tmp_path / "empty").mkdir()
    with only_writer(tmp_path / "empty", ""):
        pass
    assert list((tmp_path / "empty").iterdir()) == []


def test_of_many_that_come_and_go_only_one_is_inside(folder: Path) -> None:
    inside: list[int] = []
    worst: list[int] = []

    def come_and_go() -> None:
        for _ in range(30):
            with suppress(FolderInUse), only_writer(folder, ""):
                inside.append(1)
                worst.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(worst) == {1}
    assert not list(folder.glob("*"))  # hidden files too


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.warns(UserWarning, match="has no locks .*; start one at a time"), only_writer(folder, ""):
        pass


def test_a_holder_on_another_machine_that_did_not_leave_is_a_warning(folder: Path) -> None:
    folder.mkdir()
    (folder / HOLDER_NAME).write_text(json.dumps({"pid": 7, "host": "elsewhere", "since": "2020", "command": "train"}))
    with (
        pytest.warns(UserWarning, match="process 7 on elsewhere.* locks do not work between machines"),
        only_writer(folder, ""),
    ):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 1}', b"\xff"])
def test_lock_files_of_any_content_can_be_taken(folder: Path, content: bytes) -> None:
    folder.mkdir()
    for name in (LOCK_NAME, HOLDER_NAME):
        (folder / name).write_bytes(content)
    with only_writer(folder, ""):
        assert json.loads((folder / HOLDER_NAME).read_text())["pid"] == os.getpid()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"file/run: cannot be written \(.*\)"), only_writer(tmp_path / "file/run", ""):
        pass
