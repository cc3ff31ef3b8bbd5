"""What goes into a checkpoint comes out of it; old ones go, but only when the new one is there."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from stepgrad.detector.training.checkpoint import (
    Checkpoint,
    checkpoint_step,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from stepgrad.errors import DataError, InputError
from stepgrad.weights_file import load_weights, save_weights

TENSORS = {
    "float": torch.randn(3, 4, 5),
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 4),
    "empty half": torch.empty(2, 0).half(),
    "bfloat16": torch.randn(5).bfloat16(),
    "double": torch.tensor([math.nan, -math.inf, -0.0, 5e-324], dtype=torch.float64),
    "bool": torch.tensor([True, False, True]),
    "transposed": torch.randn(4, 6).t(),
    "every second": torch.arange(9)[::2],
    "bytes": torch.arange(3, dtype=torch.uint8),
    "ünïcode": torch.ones(1, dtype=torch.int16),
    "parameter": torch.nn.Parameter(torch.randn(2)),
}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_identical(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert (one[name].dtype, one[name].shape, bits(one[name])) == (
            other[name].dtype,
            other[name].shape,
            bits(other[name]),
        )


def tiny(step: int) -> Checkpoint:
    return Checkpoint(step, {"a": torch.tensor([step])})


def steps_in(folder: Path) -> list[int]:
    return [checkpoint_step(path) for path in list_checkpoints(folder)]


def test_tensors_and_texts_come_back_to_the_last_bit_also_by_the_library(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.safetensors", TENSORS, {"names": '["cat", "dög"]'})
    tensors, metadata = load_weights(tmp_path / "w.safetensors")
    assert_identical(tensors, TENSORS)
    assert metadata == {"names": '["cat", "dög"]'}
    assert_identical(load_file(tmp_path / "w.safetensors"), TENSORS)
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        assert file.metadata()["names"] == metadata["names"]


def test_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    """Not so with the library, which writes metadata in random order."""
    metadata = {f"key {i}": str(i) for i in range(20)}
    save_weights(tmp_path / "one", TENSORS, metadata)
    save_weights(tmp_path / "other", dict(reversed(TENSORS.items())), metadata)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks of memory are read from /proc")
def test_saving_takes_no_copy_of_the_tensors(tmp_path: Path) -> None:
    """The library makes two: of VGG16 and its momentum, two gigabytes in the middle of a run."""
    code = f"""
import re, torch
from pathlib import Path
from stepgrad.weights_file import save_weights
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
tensors = {{str(i): torch.ones(10_000_000) for i in range(4)}}
save_weights({str(tmp_path / "warm")!r}, {{"a": torch.ones(10)}})
before = peak()
save_weights({str(tmp_path / "w")!r}, tensors)
print((peak() - before) / sum(tensor.nbytes for tensor in tensors.values()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.5


def test_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    python_random = list(random.Random(3).getstate()[1])
    state: dict[str, Any] = {"random": python_random, "best": None, "lr": 0.1 + 0.2, "large": 2**80, "nan": math.inf}
    path = save_checkpoint(tmp_path / "checkpoints", Checkpoint(123, TENSORS, {"a/step": torch.tensor(3.0)}, state), 2)
    found = load_checkpoint(path)
    assert path.name == "step-00000123.safetensors"
    assert (found.step, found.state) == (123, state)
    assert_identical(found.weights, TENSORS)
    assert_identical(found.optimizer, {"a/step": torch.tensor(3.0)})


def test_nothing_is_unpickled_and_what_was_loaded_outlives_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_checkpoint(tmp_path, tiny(7), 1)
    monkeypatch.setattr("pickle.Unpickler", None)
    monkeypatch.setattr("pickle.loads", None)
    monkeypatch.setattr(torch, "load", None)
    found = load_checkpoint(path)
    path.write_bytes(bytes(path.stat().st_size))
    path.unlink()
    assert found.weights["a"].tolist() == [7]


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (Checkpoint(1, {"a": torch.ones(2)}, state={"set": {1}}), "set is not JSON serializable"),
        (Checkpoint(1, {"a": torch.ones(2, dtype=torch.complex128)}), "weights/a to be .*complex128"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(
    tmp_path: Path, checkpoint: Checkpoint, message: str
) -> None:
    with pytest.raises((InputError, TypeError), match=message):
        save_checkpoint(tmp_path, checkpoint, 1)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({}, {"digest": "x"}, "without `digest`"),
        ({}, {"step": 3}, "'step'.*to be a string but got int"),
        ({}, {"state": " " * 100_000_001}, "metadata of at most 100000000 bytes"),
    ],
)
def test_metadata_that_the_file_cannot_hold_is_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        save_weights(tmp_path / "w", tensors, metadata)


@given(
    steps=st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=7).map(sorted),
    keep=st.integers(1, 4),
    pinned=st.sets(st.integers(0, 30)),
)
def test_newest_and_pinned_checkpoints_stay_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], keep: int, pinned: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    for step in steps:
        save_checkpoint(folder, tiny(step), keep, pinned)
        assert step in steps_in(folder)
    loose = [step for step in steps if step not in pinned]
    assert steps_in(folder) == sorted(loose[-keep:] + [step for step in steps if step in pinned])


def test_resumed_run_replaces_the_course_it_left(tmp_path: Path) -> None:
    for step in (50, 100, 150, 200):
        save_checkpoint(tmp_path, tiny(step), keep=9)
    save_checkpoint(tmp_path, tiny(100), keep=9, pinned=[200])
    assert steps_in(tmp_path) == [50, 100, 200]


def test_old_checkpoints_are_removed_only_after_the_new_one_is_flushed_and_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, tiny(1), keep=1)
    events: list[str] = []

    def recording(name: str) -> None:
        real = getattr(os, name)

        def record_and_do(path: Any, *args: Any, **options: Any) -> Any:
            events.append(f"{name} {Path(path).name if isinstance(path, (str, Path)) else 'handle'}")
            return real(path, *args, **options)

        monkeypatch.setattr(os, name, record_and_do)

    for name in ("fsync", "replace", "unlink"):
        recording(name)
    save_checkpoint(tmp_path, tiny(2), keep=1)
    beside = ".step-00000002.safetensors.tmp"
    assert [event for event in events if event != f"unlink {beside}"] == [
        "fsync handle",  # the file
        f"replace {beside}",
        "fsync handle",  # the folder
        "unlink step-00000001.safetensors",
    ]


def test_leftovers_of_killed_writers_are_cleaned_up_and_never_listed(tmp_path: Path) -> None:
    (tmp_path / ".step-00000009.safetensors.4711.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("the user's own")
    assert list_checkpoints(tmp_path) == []
    save_checkpoint(tmp_path, tiny(10), keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-00000010.safetensors"]
    (tmp_path / ".best.safetensors.4711.tmp").write_bytes(b"half")
    save_weights(tmp_path / "best.safetensors", {})
    assert not list(tmp_path.glob(".*"))


def test_checkpoints_are_listed_by_step_not_by_name(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000, 5):
        save_checkpoint(tmp_path, tiny(step), keep=9, pinned=[99_999_999, 100_000_000])
    (tmp_path / "step-7.safetensors").touch()
    assert steps_in(tmp_path) == [5, 99_999_999, 100_000_000]
    assert list_checkpoints(tmp_path / "absent") == []


def test_name_without_a_step_is_refused() -> None:
    with pytest.raises(DataError, match=r"best\.safetensors: expected a checkpoint with a name like step-00000123"):
        checkpoint_step("best.safetensors")
