"""The doctor: the twenty known ailments, each with its path and a way out, or with a defined result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepgrad.data import Problem, VOCDataset, generate_proposals, load_dataset, load_proposals
from stepgrad.data.doctor import Diagnosis, examine
from stepgrad.data.images import EXIF_ORIENTATION
from stepgrad.data.proposals.cache import Record, record_path, write_record
from stepgrad.errors import DataError
from tests.data.builders import CAT, DOG, SIZE, coco_content, shared_data, voc_xml, write_coco, write_image, write_voc


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A healthy folder. Images a (dog, cat) and b (dog); `classes.txt` keeps other classes from being missed."""
    folder = write_voc(tmp_path / "V")
    (folder / "classes.txt").write_text("cat\ndog\n")
    return folder


def only(diagnosis: Diagnosis) -> Problem:
    assert len(diagnosis.problems) == 1, diagnosis.problems
    return diagnosis.problems[0]


def expect(diagnosis: Diagnosis, path: Path, kind: str, severity: str, what: str) -> None:
    """One problem, of this file, of this sort, that says `what` and offers a fix."""
    problem = only(diagnosis)
    assert (problem.path, problem.kind, problem.severity) == (str(path), kind, severity)
    assert what in problem.what
    assert problem.fix
    assert diagnosis.errors == (severity == "error")


def test_healthy_folder_has_no_problems(root: Path) -> None:
    assert examine(root).problems == ()
    assert examine(root, "train").problems == ()


def test_case_01_truncated_jpeg(root: Path) -> None:
    path = root / "JPEGImages/a.jpg"
    path.write_bytes(path.read_bytes()[:-300])
    expect(examine(root), path, "image-unreadable", "error", "cannot be decoded (image file is truncated")
    with pytest.raises(DataError, match=r"a\.jpg: cannot be decoded"):
        VOCDataset(root, "train")[0]


def test_case_02_zero_byte_image(root: Path) -> None:
    path = root / "JPEGImages/a.jpg"
    path.write_bytes(b"")
    expect(examine(root), path, "image-unreadable", "error", "the file is empty")
    expect(examine(root, pixels=False), path, "image-unreadable", "error", "the file is empty")


def test_case_03_png_named_jpg(root: Path) -> None:
    path = root / "JPEGImages/a.jpg"
    write_image(path, format="PNG")
    expect(examine(root), path, "image-format", "warning", "is a PNG file called .jpg")
    assert VOCDataset(root, "train")[0][0].shape == (3, SIZE[1], SIZE[0])


def test_case_04_grey_image_is_counted_and_read_as_three_equal_channels(root: Path) -> None:
    write_image(root / "JPEGImages/a.jpg", mode="L")
    diagnosis = examine(root)
    assert diagnosis.problems == ()
    assert diagnosis.summary.modes == {"L": 1, "RGB": 1}
    image, _ = VOCDataset(root, "train")[0]
    assert (image[0] == image[1]).all()


def test_case_05_cmyk_image(root: Path) -> None:
    write_image(root / "JPEGImages/a.jpg", mode="CMYK")
    expect(examine(root), root / "JPEGImages/a.jpg", "image-cmyk", "warning", "CMYK")
    assert VOCDataset(root, "train")[0][0].shape[0] == 3


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[EXIF_ORIENTATION] = orientation
    return tags


def test_case_06_exif_rotation_with_boxes_of_the_turned_picture(root: Path) -> None:
    path = root / "JPEGImages/b.jpg"
    write_image(path, exif=exif(6))
    (root / "Annotations/b.xml").write_text(voc_xml([DOG], size=SIZE[::-1]))
    expect(examine(root), path, "exif-rotation", "error", "orientation 6")


def test_case_06_exif_rotation_with_boxes_of_the_stored_pixels(root: Path) -> None:
    path = root / "JPEGImages/b.jpg"
    write_image(path, exif=exif(3))
    expect(examine(root), path, "exif-rotation", "warning", "EXIF orientation 3")


def test_case_07_missing_image(root: Path) -> None:
    (root / "JPEGImages/a.jpg").unlink()
    expect(examine(root), root / "JPEGImages/a.jpg", "image-missing", "error", "no such image")


def test_case_08_missing_proposals(root: Path, tmp_path: Path) -> None:
    cache = cache_of(root, tmp_path, {"a": 5})
    expect(examine(root, proposals=cache), cache, "windows-missing", "error", "has no windows of image 'b'")


def test_case_09_xml_without_objects(root: Path) -> None:
    path = root / "Annotations/b.xml"
    path.write_text(voc_xml([]))
    expect(examine(root), path, "no-objects", "warning", "holds no objects")


def test_case_10_xmin_zero(root: Path) -> None:
    path = root / "Annotations/b.xml"
    path.write_text(voc_xml([("dog", 0, 6, 30, 25)]))
    expect(examine(root), path, "zero-based", "warning", "object 0 (dog): xmin or ymin is 0")


def test_case_11_xmax_below_xmin(root: Path) -> None:
    path = root / "Annotations/b.xml"
    path.write_text(voc_xml([("dog", 30, 6, 11, 25), DOG]))
    expect(examine(root), path, "box-degenerate", "error", "object 0 (dog): xmax 11 < xmin 30")


def test_case_11_xmax_equal_to_xmin_is_one_pixel(root: Path) -> None:
    path = root / "Annotations/b.xml"
    path.write_text(voc_xml([("dog", 11, 6, 11, 25)]))
    expect(examine(root), path, "box-one-pixel", "warning", "one pixel wide")


def test_case_12_box_outside_the_image(root: Path) -> None:
    path = root / "Annotations/b.xml"
    path.write_text(voc_xml([("dog", 61, 6, 80, 25)]))
    expect(examine(root), path, "box-outside", "error", "lies outside the 60 x 40 image: 60, 5, 80, 25")


def test_case_12_box_beyond_the_edge(root: Path) -> None:
    path = root / "Annotations/b.xml"
    path.write_text(voc_xml([("dog", 30, 6, 63, 25)]))
    expect(examine(root), path, "box-beyond", "warning", "reaches 3 pixels beyond")


def test_case_13_unknown_class(root: Path) -> None:
    path = root / "Annotations/b.xml"
    path.write_text(voc_xml([("dogg", 11, 6, 30, 25)]))
    expect(examine(root), path, "unknown-class", "error", "object 0: unknown class 'dogg'. Did you mean 'dog'?")


def test_case_13_misspelt_class_in_a_folder_without_class_list(root: Path) -> None:
    (root / "classes.txt").unlink()
    path = root / "Annotations/b.xml"
    path.write_text(voc_xml([("dogg", 11, 6, 30, 25)]))
    expect(
        examine(root), path, "class-suspect", "warning", "'dogg' is rare and looks like another. Did you mean 'dog'?"
    )


def test_case_14_missing_difficult_counts_as_not_difficult(root: Path) -> None:
    (root / "Annotations/b.xml").write_text(voc_xml([DOG], difficult=None))
    diagnosis = examine(root)
    assert diagnosis.problems == ()
    assert diagnosis.summary.total.difficult == 0


def test_case_15_duplicate_ids(root: Path) -> None:
    path = root / "ImageSets/Main/train.txt"
    path.write_text("a\nb\na\n")
    expect(examine(root), path, "duplicate-id", "error", "lists image 'a' more than once")


def test_case_15_duplicate_coco_ids(tmp_path: Path) -> None:
    content = coco_content()
    content["annotations"][1]["id"] = 1
    path = write_coco(tmp_path, content)
    expect(examine(path), path, "duplicate-id", "error", "annotation id 1 occurs more than once")


def test_case_16_annotation_id_zero(tmp_path: Path) -> None:
    content = coco_content()
    content["annotations"][0]["id"] = 0
    path = write_coco(tmp_path, content)
    expect(examine(path), path, "id-zero", "warning", "annotation id 0")


def test_case_17_float_coordinates_are_kept(root: Path) -> None:
    (root / "Annotations/b.xml").write_text(voc_xml([("dog", 11.5, 6.25, 30.75, 25.5)]))
    assert examine(root).problems == ()
    assert VOCDataset(root, "train").target(1)["boxes"].tolist() == [[10.5, 5.25, 30.75, 25.5]]


def test_case_18_one_pixel_image(root: Path) -> None:
    write_image(root / "JPEGImages/b.jpg", size=(1, 1))
    (root / "Annotations/b.xml").write_text(voc_xml([], size=(1, 1)))
    problems = {problem.kind: problem for problem in examine(root).problems}
    assert set(problems) == {"image-tiny", "no-objects"}
    assert "only 1 x 1 pixels" in problems["image-tiny"].what
    assert VOCDataset(root, "train")[1][0].shape == (3, 1, 1)


def cache_of(root: Path, tmp_path: Path, counts: dict[str, int]) -> Path:
    """A cache folder with so many windows an image."""
    dataset = VOCDataset(root, "train")
    for image_id, count in counts.items():
        boxes = np.tile(np.array([[0, 0, 20, 20]]), (count, 1))
        fingerprint = dataset.fingerprint(dataset.index_of(image_id))
        write_record(record_path(tmp_path / "cache", image_id), Record(boxes, "{}", fingerprint, "V"))
    return tmp_path / "cache"


def test_case_19_no_proposals(root: Path, tmp_path: Path) -> None:
    cache = cache_of(root, tmp_path, {"a": 0, "b": 5})
    expect(
        examine(root, proposals=cache),
        cache / "a.npz",
        "windows-none",
        "warning",
        "no windows of image 'a', which has 2",
    )
    assert load_proposals(cache, VOCDataset(root, "train"))["a"].shape == (0, 4)


def test_case_20_twenty_thousand_proposals(root: Path, tmp_path: Path) -> None:
    cache = cache_of(root, tmp_path, {"a": 20_000, "b": 5})
    expect(examine(root, proposals=cache), cache / "a.npz", "windows-many", "warning", "20000 windows")
    assert load_proposals(cache, VOCDataset(root, "train"))["a"].shape == (20_000, 4)


def test_every_problem_is_listed_not_just_the_first(root: Path) -> None:
    (root / "JPEGImages/a.jpg").write_bytes(b"")
    (root / "Annotations/b.xml").write_text(voc_xml([("dog", 30, 6, 11, 25), ("emu", 11, 6, 30, 25), DOG]))
    (root / "ImageSets/Main/val.txt").write_text("ghost\n")
    kinds = sorted(problem.kind for problem in examine(root).problems)
    assert kinds == ["box-degenerate", "image-missing", "image-unreadable", "no-annotation", "unknown-class"]


def test_entity_expansion_is_an_error(root: Path) -> None:
    path = root / "Annotations/b.xml"
    path.write_text('<!DOCTYPE x [<!ENTITY a "a">]><annotation>&a;</annotation>')
    expect(examine(root), path, "xml-entities", "error", "refused")


def test_empty_image_set_is_an_error(root: Path) -> None:
    path = root / "ImageSets/Main/val.txt"
    path.write_text("")
    expect(examine(root), path, "no-images", "error", "lists no images")


def test_overlapping_splits_are_pointed_out(root: Path) -> None:
    (root / "ImageSets/Main/val.txt").write_text("b")
    expect(
        examine(root), root / "ImageSets/Main/train.txt", "splits-overlap", "warning", "shares 1 images with val.txt"
    )


def test_spare_images_are_pointed_out(root: Path) -> None:
    write_image(root / "JPEGImages/z.jpg")
    expect(examine(root), root / "JPEGImages", "image-spare", "warning", "1 images have no annotation, first 'z.jpg'")
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
    expect(examine(root), root, "class-empty", "warning", "1 classes have no objects that count: cat")


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
    what = "has windows for none of the 2 images, but for others such as 'x'"
    expect(examine(root, proposals=tmp_path / "w.npz"), tmp_path / "w.npz", "windows-missing", "error", what)


def test_windows_beyond_the_image_are_an_error(root: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", ids=["a", "b"], offsets=[0, 1, 2], boxes=[[0, 0, 9, 9], [0, 0, 61, 9]])
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
