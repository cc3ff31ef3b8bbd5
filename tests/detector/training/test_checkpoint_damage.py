"""A damaged file is named, never loaded, and the newest whole checkpoint before it is offered."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest
import torch

from stepgrad.detector.training.checkpoint import Checkpoint, checkpoint_path, load_checkpoint, save_checkpoint
from stepgrad.errors import DataError
from stepgrad.weights_file import load_weights, save_weights


def small(step: int) -> Checkpoint:
    weights = {
        "conv.weight": torch.randn(3, 5, generator=torch.Generator().manual_seed(step)),
        "count": torch.tensor(7),
    }
    return Checkpoint(step, weights, {"conv.weight/momentum_buffer": torch.ones(3, 5)}, {"order": [3, 1, 2]})


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as handle:
        handle.seek(bit // 8)
        byte = handle.read(1)[0]
        handle.seek(bit // 8)
        handle.write(bytes([byte ^ 1 << bit % 8]))


def test_each_single_flipped_bit_is_detected(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, small(1), keep=1)
    bits = range(8 * path.stat().st_size)
    for bit in bits:
        flip(path, bit)
        with pytest.raises(DataError, match=re.escape(str(path))):
            load_weights(path)
        flip(path, bit)
    assert len(bits) > 4000
    load_checkpoint(path)  # and nothing else was wrong with it


def test_each_length_of_a_truncated_file_is_detected(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, small(1), keep=1)
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(DataError, match=rf"is cut short or damaged: its {length} bytes"):
            load_weights(path)


@pytest.mark.parametrize("flips", [100, pytest.param(5000, marks=pytest.mark.nightly)])
def test_flipped_bits_of_a_large_file_are_detected(tmp_path: Path, flips: int) -> None:
    path = tmp_path / "large.safetensors"
    save_weights(path, {"fc6": torch.randn(500, 1000)})
    choose = random.Random(flips)
    for _ in range(flips):
        bit = choose.randrange(8 * path.stat().st_size)
        flip(path, bit)
        with pytest.raises(DataError):
            load_weights(path)
        flip(path, bit)
    load_weights(path)


@pytest.mark.parametrize("extra", [b"\0", b" ", b"\0" * 4096])
def test_bytes_added_at_the_end_or_lost_in_a_power_cut_are_detected(tmp_path: Path, extra: bytes) -> None:
    path = tmp_path / "large.safetensors"
    save_weights(path, {"fc6": torch.ones(500, 1000)})
    whole = path.read_bytes()
    for content in (whole + extra, whole[:8192] + bytes(4096) + whole[12288:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="do not match their digest"):
            load_weights(path)


def test_damaged_checkpoint_offers_the_newest_earlier_whole_one(tmp_path: Path) -> None:
    folder = tmp_path / "my run" / "checkpoints"
    paths = [save_checkpoint(folder, small(step), keep=9) for step in (50, 100, 150, 200)]
    flip(paths[2], 8 * 300)
    os.truncate(paths[1], 200)
    way_out = f"step 50 is undamaged: continue from it with `stepgrad train --resume '{tmp_path}/my run' --step 50`"
    with pytest.raises(DataError, match=re.escape(way_out)) as caught:
        load_checkpoint(paths[2])
    assert str(caught.value).startswith(f"{paths[2]}: is cut short or damaged")
    os.truncate(paths[0], 300)
    with pytest.raises(DataError, match="there is no undamaged earlier checkpoint: start the run again"):
        load_checkpoint(paths[0])


def test_missing_checkpoint_offers_one_that_is_there(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, small(50), keep=9)
    with pytest.raises(DataError, match=r"cannot be read \(No such file.*step 50 is undamaged"):
        load_checkpoint(checkpoint_path(tmp_path, 60))


@pytest.mark.parametrize(
    "content", [b"PK\3\4" + bytes(400), b"\x10" + bytes(7) + b'{"__metadata__":{"format":"pt"}}' + bytes(99)]
)
def test_files_of_others_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.safetensors"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not a file of stepgrad, or its beginning is damaged"):
        load_weights(path)


def test_weights_alone_are_no_checkpoint(tmp_path: Path) -> None:
    save_weights(tmp_path / "best.safetensors", {"a": torch.ones(2)}, {"step": "3"})
    with pytest.raises(DataError, match="holds weights only; expected a checkpoint"):
        load_checkpoint(tmp_path / "best.safetensors")
