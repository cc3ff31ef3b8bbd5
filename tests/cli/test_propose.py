"""`stepgrad propose` as a user sees it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepgrad.cli.propose import propose
from stepgrad.data import load_dataset, load_proposals
from stepgrad.errors import DataError
from tests.data.builders import write_voc

pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")
SHAPES = "shapes:val,length=3"


def test_windows_are_made_once_and_recall_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "cache")
    assert propose(SHAPES, out=out, workers=1) == 0
    first = capsys.readouterr().out
    assert "3 made, 0 already there, 0 failed" in first
    assert "recall at IoU 0.5" in first
    assert "recall at IoU 0.7" in first
    assert propose(SHAPES, out=out, workers=1) == 0
    second = capsys.readouterr().out
    assert "0 made, 3 already there, 0 failed" in second
    assert first.splitlines()[-6:] == second.splitlines()[-6:]
    load_proposals(out, load_dataset(SHAPES))


def test_default_folder_is_named_after_data_and_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert propose(SHAPES, workers=1) == 0
    assert propose(str(write_voc(tmp_path / "My data")), split="train", mode="quality", workers=1) == 0
    assert sorted(path.name for path in (tmp_path / "proposals").iterdir()) == ["My-data-quality", "shapes-val-fast"]
    capsys.readouterr()


def test_unreadable_image_gives_one_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_voc(tmp_path / "V")
    (root / "JPEGImages/a.jpg").write_bytes(b"")
    assert propose(str(root), split="train", out=str(tmp_path / "cache"), workers=1) == 1
    output = capsys.readouterr().out
    assert f"error {root}/JPEGImages/a.jpg: is not an image" in output
    assert "1 made, 0 already there, 1 failed" in output


def test_other_settings_never_overwrite_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "cache")
    propose(SHAPES, out=out, workers=1)
    with pytest.raises(DataError, match="--overwrite"):
        propose(SHAPES, out=out, mode="quality", workers=1)
    assert propose(SHAPES, out=out, mode="quality", workers=1, overwrite=True) == 0
    assert "3 made" in capsys.readouterr().out


def test_windows_of_a_file_are_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, packed = write_voc(tmp_path / "V"), tmp_path / "windows.npz"
    np.savez(packed, ids=["a", "b"], offsets=[0, 2, 3], boxes=[[10, 5, 30, 25], [0, 0, 60, 40], [10, 5, 30, 25]])
    assert propose(str(root), split="train", out=str(tmp_path / "cache"), source=str(packed)) == 0
    totals = [line.split() for line in capsys.readouterr().out.splitlines() if "all" in line.split()]
    assert totals == [["│", "all", "│", "3", "│", "100.0%", "│", "100.0%", "│"]]


def test_interrupt_gives_130_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepgrad.data.proposals import generate

    real, searched = generate.selective_search, []

    def interrupted(*arguments: object) -> np.ndarray:
        searched.append(1)
        if len(searched) == 3:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(generate, "selective_search", interrupted)
    assert propose(SHAPES, out=str(tmp_path / "cache"), workers=1) == 130
    assert "has 2 of 3 images: run the same command again to continue" in " ".join(capsys.readouterr().out.split())
    assert propose(SHAPES, out=str(tmp_path / "cache"), workers=1) == 0
    assert "1 made, 2 already there" in capsys.readouterr().out
