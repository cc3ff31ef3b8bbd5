"""Files in the making: a killed writer's is used again, a running one's is left alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stepgrad.data.write_detections import write_voc_results
from stepgrad.files import WriteError, file_beside, folder_beside, write_whole, writing_whole

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks that tell a dead writer's file")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_writer_left_is_gone_when_the_file_is_written(tmp_path: Path) -> None:
    (tmp_path / ".x.json.tmp").write_bytes(bytes(1000))
    write_whole(tmp_path / "x.json", b"whole")
    assert names(tmp_path) == ["x.json"]
    assert (tmp_path / "x.json").read_bytes() == b"whole"


def test_two_writers_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with writing_whole(path) as one:
        one.write(b"first, ")
        with writing_whole(path) as two:
            two.write(b"second")
        assert path.read_bytes() == b"second"
        one.write(b"and last")
    assert path.read_bytes() == b"first, and last"
    assert names(tmp_path) == ["x.json"]


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError), writing_whole(tmp_path / "x") as handle:
        handle.writelines([b"half", "not bytes"])  # type: ignore[list-item]
    assert names(tmp_path) == []


def test_a_link_in_the_place_of_a_file_in_the_making_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / ".x.tmp").symlink_to(tmp_path / "precious")
    write_whole(tmp_path / "x", b"new")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert (tmp_path / "x").read_bytes() == b"new"
    assert not (tmp_path / "x").is_symlink()


def test_new_files_have_the_mode_the_umask_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "x", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_a_folder_a_killed_writer_left_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    (tmp_path / ".writing").mkdir()
    (tmp_path / ".writing" / "comp4_det_test_cat.txt").write_bytes(b"half")
    (tmp_path / ".writing" / "of another class.txt").write_bytes(b"half")
    write_voc_results(tmp_path, [], [], ["cat"])
    assert names(tmp_path) == ["comp4_det_test_cat.txt"]


def test_two_folders_in_the_making_are_two(tmp_path: Path) -> None:
    with folder_beside(tmp_path) as one:
        with folder_beside(tmp_path) as two:
            assert one != two
        assert one.is_dir()
    assert names(tmp_path) == []


def test_where_no_folder_can_be_made_the_error_is_a_write_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteError, match="cannot be written"):
        write_voc_results(tmp_path / "file", [], [], ["cat"])


def test_a_file_in_the_making_is_held_until_it_is_in_place(tmp_path: Path) -> None:
    with file_beside(tmp_path / "x") as (handle, beside):
        handle.close()
        with file_beside(tmp_path / "x") as (_, another):
            assert another != beside
