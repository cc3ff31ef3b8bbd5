"""The doctor finds every problem, names its file, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepgrad.data import VOCDataset, generate_proposals, load_dataset
from stepgrad.data.doctor import examine
from tests.data.builders import CAT, DOG, SIZE, coco_content, shared_data, voc_xml, write_coco, write_image
from tests.data.diagnoses import cache_of, expect, healthy_folder, only


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return healthy_folder(tmp_path)


def test_healthy_folder_has_no_problems(root: Path) -> None:
    assert examine(root).problems == ()
    assert examine(root, "train").problems == ()


def test_every_problem_is_listed_not_just_the_first(root: Path) -> None:
    (root / "JPEGImages/a.jpg").write_bytes(b"")
    (root / "Annotations/b.xml").write_text(voc_xml([("dog", 30, 6, 11, 25), ("emu", 12, 6, 30, 25), DOG]))
    (root / "ImageSets/Main/val.txt").write_text("ghost\n")
    *others, unknown = sorted(examine(root).problems, key=lambda problem: problem.kind)
    kinds = [problem.kind for problem in others]
    assert kinds == ["box-degenerate", "image-missing", "image-unreadable", "no-annotation"]
    assert (unknown.kind, unknown.what.split(":")[0]) == ("unknown-class", "object 1")  # as the file counts


def test_overlapping_splits_are_pointed_out(root: Path) -> None:
    (root / "ImageSets/Main/val.txt").write_text("b")
    what = f"val: 1 of 1 image is in train too, first {root / 'JPEGImages/b.jpg'}"
    expect(examine(root), root, "splits-overlap", "warning", what)
    assert examine(root, need_images=False).problems[0].what == "val: 1 of 1 image is in train too, first b"


def test_spare_images_are_pointed_out(root: Path) -> None:
    write_image(root / "JPEGImages/z.jpg")
    expect(examine(root), root / "JPEGImages", "image-spare", "warning", "1 image has no annotation, first 'z.jpg'")
    assert examine(root, "train").problems == ()


@pytest.mark.parametrize(("object_", "severity"), [(DOG, "warning"), (("dog", 11, 6, 90, 70), "error")])
def test_other_size_in_the_annotation(root: Path, object_: tuple, severity: str) -> None:
    (root / "Annotations/b.xml").write_text(voc_xml([object_], size=(120, 80)))
    problem = examine(root).problems[0]
    assert (problem.kind, problem.severity) == ("size-differs", severity)
    assert "is 60 x 40 but annotated as 120 x 80" in problem.what


def test_dataset_without_any_object_is_an_error(root: Path) -> None:
    for image_id in "ab":
        (root / f"Annotations/{image_id}.xml").write_text(voc_xml([]))
    errors = [problem for problem in examine(root).problems if problem.severity == "error"]
    assert [problem.kind for problem in errors] == ["no-objects-at-all"]


def test_class_without_countable_objects_is_pointed_out(root: Path) -> None:
    (root / "Annotations/a.xml").write_text(voc_xml([CAT], difficult="1"))
    expect(examine(root), root, "class-empty", "warning", "1 class has no objects that are counted: cat")


def test_annotations_alone_can_be_examined(root: Path) -> None:
    for path in (root / "JPEGImages").iterdir():
        path.unlink()
    (root / "JPEGImages").rmdir()
    assert examine(root, need_images=False).problems == ()
    expect(examine(root), root / "JPEGImages", "image-missing", "error", "no such folder")


def test_stale_windows_are_an_error(root: Path, tmp_path: Path) -> None:
    cache = cache_of(root, tmp_path, {"a": 3, "b": 3})
    write_image(root / "JPEGImages/a.jpg", seed=77)
    expect(examine(root, proposals=cache), cache / "a.npz", "windows-stale", "error", "was made for 'V'")


def test_windows_of_another_dataset_are_one_error(root: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", ids=["x", "y"], offsets=[0, 1, 2], boxes=[[0, 0, 9, 9], [0, 0, 9, 9]])
    what = "has windows for none of 2 images, but for others such as 'x'"
    expect(examine(root, proposals=tmp_path / "w.npz"), tmp_path / "w.npz", "windows-missing", "error", what)


def test_windows_beyond_the_image_are_an_error(root: Path, tmp_path: Path) -> None:
    inside, beyond = [0, 0, 9, 9], [0, 0, SIZE[0] + 1, 9]
    np.savez(tmp_path / "w.npz", ids=["a", "b"], offsets=[0, 1, 3], boxes=[inside, inside, beyond])
    what = "windows of image 'b' reach beyond its 60 x 40 pixels"
    expect(examine(root, proposals=tmp_path / "w.npz"), tmp_path / "w.npz", "windows-beyond", "error", what)


def test_damaged_or_absent_windows_are_an_error(root: Path, tmp_path: Path) -> None:
    cache = cache_of(root, tmp_path, {"a": 3, "b": 3})
    (cache / "a.npz").write_bytes(b"junk")
    assert only(examine(root, proposals=cache)).kind == "windows-damaged"
    assert only(examine(root, proposals=tmp_path / "none")).kind == "windows-missing"


def test_healthy_coco_file_has_no_problems(tmp_path: Path) -> None:
    diagnosis = examine(write_coco(tmp_path))
    assert diagnosis.problems == ()
    assert diagnosis.summary.total.crowd == 1


def test_every_problem_of_a_coco_file_is_listed(tmp_path: Path) -> None:
    content = coco_content()
    content["annotations"] += [
        {"id": 4, "image_id": 1, "category_id": 18, "bbox": [0, 0, 5, 5]},
        {"id": 5, "image_id": 4, "category_id": 1, "bbox": [0, 0, 5, 5]},
        {"id": 6, "image_id": 4, "category_id": 18, "bbox": [0, 0, 0, 5]},
        {"id": 7, "image_id": 4, "category_id": 18, "bbox": [70, 0, 5, 5]},
        {"id": 8, "image_id": 4, "category_id": 18, "bbox": [0, 0, 5, 5], "ignore": 1},
    ]
    path = write_coco(tmp_path, content)
    (tmp_path / "images/nine.jpg").unlink()
    kinds = sorted(problem.kind for problem in examine(path).problems)
    expected = ["box-degenerate", "box-outside", "ignore-field", "image-missing", "unknown-class", "unknown-image"]
    assert kinds == expected


def test_unreadable_coco_file_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{")
    diagnosis = examine(path)
    assert only(diagnosis).kind == "json-damaged"
    assert diagnosis.summary.images == 0


def test_coco_images_that_are_nowhere_are_one_error(tmp_path: Path) -> None:
    path = write_coco(tmp_path, images="odd/place")
    assert only(examine(path)).kind == "image-missing"
    assert examine(path, images=tmp_path / "odd/place").problems == ()
    assert examine(path, need_images=False).problems == ()


def test_summary_counts_images_objects_and_sizes(root: Path) -> None:
    (root / "Annotations/a.xml").write_text(voc_xml([("dog", 1, 1, 10, 40), CAT], difficult="1"))
    summary = examine(root).summary
    rows = {row.name: (row.images, row.objects, row.difficult) for row in (*summary.classes, summary.total)}
    assert rows == {"cat": (1, 1, 1), "dog": (2, 2, 1), "all": (2, 3, 2)}
    assert summary.classes[1].sides == (20.0, 20.0, 20.0)  # 10 x 40 and 20 x 20
    assert (summary.images, summary.smallest, summary.largest) == (2, SIZE, SIZE)


def test_doctor_changes_nothing(root: Path) -> None:
    (root / "JPEGImages/a.jpg").write_bytes(b"")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    examine(root)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_made_windows_pass_the_examination(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")
    generate_proposals(VOCDataset(root), tmp_path / "cache")
    kinds = {problem.kind for problem in examine(root, proposals=tmp_path / "cache").problems}
    assert kinds <= {"windows-none"}  # noise may have no structure to find


def test_shapes_and_its_windows_are_healthy() -> None:
    assert examine("shapes:val,length=20", proposals="built-in").problems == ()


def test_real_blood_cells_have_two_one_pixel_boxes() -> None:
    diagnosis = examine(shared_data("BCCD"), pixels=False)
    assert [problem.kind for problem in diagnosis.problems] == ["box-one-pixel"] * 2
    counts = {row.name: row.objects for row in diagnosis.summary.classes}
    assert counts == {"RBC": 4155, "WBC": 372, "Platelets": 361}  # as its makers count them
    assert len(load_dataset(shared_data("BCCD"), "train")) == 205


@pytest.mark.parametrize("corners", [(-2, 4, 10, 10), (4, -2, 10, 10), (4, 4, 63, 10), (4, 4, 10, 43)])
def test_a_box_beyond_any_edge_is_said_to_reach_beyond_it(root: Path, corners: tuple[int, int, int, int]) -> None:
    (root / "Annotations/a.xml").write_text(voc_xml([("dog", *corners), CAT]))
    problem = only(examine(root, "train"))
    assert (problem.kind, problem.severity) == ("box-beyond", "warning")
    assert "reaches 3 pixels beyond the 60 x 40 image" in problem.what


def test_a_coco_file_without_images_is_an_error(tmp_path: Path) -> None:
    path = write_coco(tmp_path, {**coco_content(), "images": [], "annotations": []})
    assert "no-images" in {problem.kind for problem in examine(path, need_images=False).problems}
