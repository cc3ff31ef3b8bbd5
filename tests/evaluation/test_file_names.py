"""Class names and image ids of any kind in VOC's result files: nothing leaves the folder, everything comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepgrad.data import ShapesDataset
from stepgrad.data.read_detections import read_detections
from stepgrad.data.write_detections import write_voc_results
from stepgrad.errors import InputError
from stepgrad.files import WriteError
from tests.evaluation.datasets import boxes_at, pred

NAMES = [
    "Cabinet/shelf",
    "x/../../../victim",
    "a\0b",
    "a\nb 0.9 1 1 2 2",
    "CON",
    ".",
    "50%",
    "Dog",
    "dog",
    "Käfer",
    "x" * 400,
]
IDS = ["a b", "a%20b", "c\nd 0.9 1 1 2 2", "50%", "e\u2028f", "g\0", "2008_000007"]


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_class_name_leaves_the_folder(tmp_path: Path) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    out = tmp_path / "results" / "out"
    written = write_voc_results(out, [pred(boxes_at(0), [0.5])], ["a"], ["x/../../../victim"])
    assert everything(tmp_path) == {victim: b"mine", written[0]: written[0].read_bytes()}
    assert written[0].parent == out


def test_no_prefix_leaves_the_folder(tmp_path: Path) -> None:
    (path,) = write_voc_results(tmp_path / "out", [pred(boxes_at(0), [0.5])], ["a"], ["dog"], prefix="../up")
    assert path.parent == tmp_path / "out"
    assert path.exists()


def test_detections_of_every_class_name_and_image_id_come_back(tmp_path: Path) -> None:
    dataset = ShapesDataset("val", length=len(IDS))
    dataset.ids, dataset.class_names = IDS, tuple(NAMES)  # type: ignore[assignment]
    labels = list(range(len(NAMES)))
    preds = [pred(boxes_at(*labels), [0.5 + image / 100] * len(NAMES), labels) for image in range(len(IDS))]
    paths = write_voc_results(tmp_path, preds, IDS, NAMES, decimals=None)
    assert len({path.name.casefold() for path in paths}) == len(NAMES)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    found = read_detections(tmp_path, dataset)
    assert found.missing == ()
    rows = zip(found.detections.labels.tolist(), found.detections.images.tolist(), strict=True)
    assert list(rows) == [(label, image) for label in labels for image in range(len(IDS))]


def test_files_of_others_that_quote_nothing_are_read(tmp_path: Path) -> None:
    dataset = ShapesDataset("val", length=1)
    dataset.ids, dataset.class_names = ["a%20b"], ("b%2Fc",)  # type: ignore[assignment]
    (tmp_path / "comp4_det_test_b%2Fc.txt").write_text("a%20b 0.5 1 1 5 5\n")
    assert read_detections(tmp_path, dataset).detections.images.tolist() == [0]


def test_an_id_that_fits_no_line_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="empty"):
        write_voc_results(tmp_path / "out", [pred(boxes_at(0), [0.5])], [""], ["dog"])
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_replaced_is_said_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "comp4_det_test_dog.txt").mkdir()
    with pytest.raises(WriteError, match=r"comp4_det_test_dog\.txt: cannot be written"):
        write_voc_results(tmp_path, [pred(boxes_at(0), [0.5])], ["a"], ["dog"])
    assert [path.name for path in tmp_path.iterdir()] == ["comp4_det_test_dog.txt"]
