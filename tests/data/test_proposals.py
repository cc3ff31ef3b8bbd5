"""Windows: found, tidied, measured, and read from other people's files."""

from __future__ import annotations

import contextlib
import struct
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from stepgrad.data import (
    PackedProposals,
    SearchSettings,
    VOCDataset,
    import_mat,
    import_npz,
    load_dataset,
    load_proposals,
    recall,
    selective_search,
)
from stepgrad.data.proposals.coverage import best_overlaps
from stepgrad.data.proposals.mat_file import read_mat
from stepgrad.errors import ConfigError, DataError, InputError, MissingDependencyError
from tests.data.builders import CAT, DOG, shared_data, voc_xml, write_voc

pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return load_dataset("shapes:val,length=1").image(0)


def test_search_gives_the_same_sorted_distinct_windows_inside_the_image(picture: Image.Image) -> None:
    windows = selective_search(picture)
    assert len(windows) > 50
    assert np.array_equal(np.unique(windows, axis=0), windows)
    assert windows.min() >= 0
    assert windows.max() <= 160
    assert np.array_equal(windows, selective_search(picture))  # every time


@pytest.mark.parametrize("min_side", [1, 12, 40])
def test_no_window_is_smaller_than_asked(picture: Image.Image, min_side: int) -> None:
    windows = selective_search(picture, SearchSettings(min_side=min_side))
    assert (windows[:, 2:] - windows[:, :2]).min() >= min_side


def test_quality_finds_all_that_fast_finds_and_more(picture: Image.Image) -> None:
    fast = {tuple(window) for window in selective_search(picture).tolist()}
    quality = {tuple(window) for window in selective_search(picture, SearchSettings("quality")).tolist()}
    assert len(quality) > 1.5 * len(fast)
    assert len(fast & quality) > 0.9 * len(fast)


def test_one_pixel_image_has_no_windows_and_that_is_defined() -> None:
    assert selective_search(Image.new("RGB", (1, 1))).shape == (0, 4)


def test_unknown_mode_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'fast'"):
        SearchSettings("fats")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="min_side"):
        SearchSettings(min_side=0)


def test_missing_opencv_names_the_extra(picture: Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2.ximgproc", None)
    with pytest.raises(MissingDependencyError, match=r'pip install .*\[detector\]"'):
        selective_search(picture)


def test_recall_counts_objects_whose_best_window_reaches_the_threshold(tmp_path: Path) -> None:
    objects = {"a": [("dog", 1, 1, 10, 10), ("cat", 21, 1, 30, 10)], "b": [("dog", 1, 1, 10, 10)]}
    dataset = VOCDataset(write_voc(tmp_path / "V", objects), "train", class_names=["cat", "dog"])
    boxes = [[0, 0, 10, 5], [20, 0, 30, 7], [0, 0, 10, 10]]  # IoU 1/2 with the dog, 7/10 with the cat; 1 in b
    measured = recall(PackedProposals(["a", "b"], [0, 2, 3], boxes, "test"), dataset, (0.5, 0.7, 0.75))
    assert measured.objects.tolist() == [1, 2]
    assert measured.covered.tolist() == [[1, 2], [1, 1], [0, 1]]
    assert measured.recall.tolist() == [3 / 3, 2 / 3, 1 / 3]
    assert "100.0% at IoU 0.5, 66.7% at IoU 0.7" in str(measured)


def test_recall_leaves_difficult_objects_out(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V", {"a": [DOG]}, {"train": "a"})
    (root / "Annotations/a.xml").write_text(voc_xml([DOG, CAT], difficult="1"))
    measured = recall(PackedProposals(["a"], [0, 0], [], "test"), VOCDataset(root, "train"))
    assert measured.objects.sum() == 0
    assert np.isnan(measured.recall).all()


def test_overlaps_equal_torchvisions() -> None:
    from torchvision.ops import box_iou

    corners = torch.randint(0, 50, (200, 2, 2), generator=torch.Generator().manual_seed(0)).double()
    boxes = torch.cat([corners.amin(1), corners.amax(1) + 1], dim=1)
    expected = box_iou(boxes[:50], boxes[50:]).amax(1)
    assert np.array_equal(best_overlaps(boxes[:50], boxes[50:]), expected.numpy())
    assert best_overlaps([[0, 0, 2, 2]], np.zeros((0, 4))).tolist() == [0.0]  # no windows cover nothing
    assert best_overlaps(np.zeros((0, 4)), [[0, 0, 2, 2]]).shape == (0,)


@pytest.mark.parametrize("thresholds", [(), (0.0,), (1.5,)])
def test_bad_threshold_is_refused(thresholds: tuple[float, ...]) -> None:
    dataset = load_dataset("shapes:val,length=1")
    with pytest.raises(InputError, match="thresholds in"):
        recall(load_proposals("built-in", dataset), dataset, thresholds)


def save_packed(path: Path, **arrays: object) -> Path:
    content = {"ids": ["a", "b"], "offsets": [0, 1, 3], "boxes": [[0, 0, 5, 5], [1, 1, 9, 9], [2, 2, 9, 9]], **arrays}
    np.savez(path, **{key: np.array(value) for key, value in content.items() if value is not None})
    return path


def test_packed_file_is_cut_at_its_offsets(tmp_path: Path) -> None:
    proposals = import_npz(save_packed(tmp_path / "w.npz"))
    assert proposals["a"].tolist() == [[0, 0, 5, 5]]
    assert proposals["b"].tolist() == [[1, 1, 9, 9], [2, 2, 9, 9]]
    assert proposals["b"].dtype == torch.float32
    assert list(proposals) == ["a", "b"]
    with pytest.raises(KeyError, match="no windows for image 'z'"):
        proposals["z"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": None}, "expected arrays ids, offsets and boxes but offsets is missing"),
        ({"offsets": [0, 1]}, r"expected 3 offsets \(one more than ids\) that rise from 0 to 3"),
        ({"offsets": [0, 2, 1]}, r"expected 3 offsets \(one more than ids\) that rise"),
        ({"ids": ["a", "a"]}, "an image id occurs more than once"),
        ({"boxes": [[0, 0, 5], [1, 1, 9], [2, 2, 9]]}, r"boxes \(N, 4\) but got"),
        (
            {"boxes": [[0, 0, 5, 5], [9, 1, 1, 9], [2, 2, 9, 9]]},
            "1 of 3 windows is not finite or without area, first number 1",
        ),
        ({"boxes": [["0", "0", "5", "5"]] * 3}, "expected numbers in boxes but got an array of <U1"),
        ({"offsets": ["0", "1", "3"]}, "expected whole numbers in offsets but got an array of <U1"),
        ({"boxes": [[0, 0, 5, 5], [0, 1, 1, np.nan], [2, 2, 9, 9]]}, "not finite"),
    ],
)
def test_bad_packed_file_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        import_npz(save_packed(tmp_path / "w.npz", **change))


def test_pickles_and_damaged_packed_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, ids=np.array([{}], dtype=object), offsets=[0], boxes=[[0, 0, 1, 1]])
    for data in (path.read_bytes(), b"", b"PK\x03\x04 not a zip"):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"w\.npz: is not a readable \.npz file .*; download or make it again"):
            load_proposals(path)


def cell(values: list) -> np.ndarray:
    """What MATLAB calls a cell array."""
    cells = np.empty((1, len(values)), dtype=object)
    for i, value in enumerate(values):
        cells[0, i] = value
    return cells


def test_girshicks_files_have_swapped_columns_and_count_from_one(tmp_path: Path) -> None:
    io = pytest.importorskip("scipy.io", reason="writing .mat files needs SciPy")
    path = tmp_path / "voc_2007_test.mat"
    rows = np.array([[1, 2, 10, 20], [3, 4, 5, 6]], dtype=np.uint16)  # y1 x1 y2 x2
    io.savemat(path, {"images": cell(["000001", "000002"]).T, "boxes": cell([rows, np.zeros((0, 4))])})
    proposals = load_proposals(path)
    assert proposals["000001"].tolist() == [[1, 0, 20, 10], [3, 2, 6, 5]]
    assert proposals["000002"].shape == (0, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"boxes": cell([np.ones((1, 4))])}, "expected cells `images` and `boxes`"),
        ({"boxes": np.ones((3, 4)), "images": cell(["a"])}, r"expected cells of \(N, 4\) numbers"),
        ({"boxes": cell([np.ones((2, 3))]), "images": cell(["a"])}, r"expected cells of \(N, 4\) numbers"),
        ({"boxes": cell([np.ones((1, 4))]), "images": cell(["a", "b"])}, "2 images but windows for 1"),
        ({"boxes": cell([np.array([[5, 5, 1, 1]])]), "images": cell(["a"])}, "check the column order"),
        ({"boxes": cell([np.array([[1, 1, 1e300, 9]])]), "images": cell(["a"])}, "1 of 1 window is not finite"),
        ({"boxes": cell([np.ones((1, 4))]), "images": cell([7])}, "expected cells of text"),
    ],
)
def test_bad_mat_file_is_refused(tmp_path: Path, content: dict, message: str) -> None:
    io = pytest.importorskip("scipy.io", reason="writing .mat files needs SciPy")
    io.savemat(tmp_path / "w.mat", content)
    with pytest.raises(DataError, match=message):
        import_mat(tmp_path / "w.mat")


@pytest.mark.parametrize("data", [b"", b"MATLAB 5.0 MAT-file " + b"x" * 200])
def test_damaged_mat_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "w.mat").write_bytes(data)
    with pytest.raises(DataError, match=r"w\.mat: is not a readable"):
        import_mat(tmp_path / "w.mat")


def typed_mat(data: bytes, at: int, kind: int) -> bytes:
    """A .mat file whose element at this place says that it is of another type."""
    return data[:at] + struct.pack("<I", kind) + data[at + 4 :]


def test_a_mat_file_whose_elements_claim_other_types_is_refused_or_read(tmp_path: Path) -> None:
    """SciPy's reader ends the process for some of these."""
    io = pytest.importorskip("scipy.io", reason="writing .mat files needs SciPy")
    io.savemat(tmp_path / "w.mat", {"images": cell(["a"]), "boxes": cell([np.ones((1, 4))])})
    data = (tmp_path / "w.mat").read_bytes()
    for at in range(128, len(data) - 4, 4):
        for kind in (0, 8, 10, 14, 15, 21, 1 << 15, 1 << 31):
            (tmp_path / "w.mat").write_bytes(typed_mat(data, at, kind))
            with contextlib.suppress(DataError):
                import_mat(tmp_path / "w.mat")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "f4", "u1", "i2", "u2", "i4", "u4", "i8"])
def test_mat_files_are_read_as_scipy_reads_them(compressed: bool, dtype: str) -> None:
    io = pytest.importorskip("scipy.io", reason="writing .mat files needs SciPy")
    numbers = np.random.default_rng(0).integers(0, 100, (5, 4)).astype(dtype)
    packed = BytesIO()
    texts = ["000001", "Käfer", ""]
    content = {"numbers": numbers, "cells": cell([numbers, numbers[:0]]), "texts": cell(texts), "struct": {"a": 1}}
    io.savemat(packed, content, do_compression=compressed)
    read = read_mat(packed.getvalue())
    assert np.array_equal(read["numbers"], numbers)
    assert [np.asarray(entry).tolist() for entry in read["cells"]] == [numbers.tolist(), []]
    assert read["texts"] == texts
    assert read["struct"] is None


def test_windows_of_another_dataset_are_refused(tmp_path: Path) -> None:
    dataset = VOCDataset(write_voc(tmp_path / "V", {"x": [DOG], "a": [DOG]}, {"train": "x\na"}), "train")
    with pytest.raises(DataError, match=r"w\.npz: has no windows for 1 of the 2 images of V train, first 'x'"):
        load_proposals(save_packed(tmp_path / "w.npz"), dataset)


@pytest.mark.parametrize(
    ("name", "message"), [("none", "no such file or folder"), ("a.txt", "expected a cache folder")]
)
def test_what_holds_no_windows_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError, match=f"{message}.*stepgrad propose"):
        load_proposals(tmp_path / name)


def test_only_shapes_has_built_in_windows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Only `shapes`"):
        load_proposals("built-in", VOCDataset(write_voc(tmp_path / "V"), "train"))


def test_our_windows_of_real_photographs_are_the_shared_ones() -> None:
    root = shared_data("VOC2012-320")
    dataset, shared = load_dataset(root, "val"), import_npz(root / "selective_search_fast.npz")
    for index in range(3):
        ours = {tuple(window) for window in selective_search(dataset.image(index)).tolist()}
        theirs = {tuple(window) for window in shared.windows(str(dataset.ids[index])).tolist()}
        assert len(ours & theirs) >= 0.95 * len(ours | theirs)  # JPEG decoders may differ in a bit or two
