"""`stepgrad evaluate` as a user sees it."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from stepgrad.cli import main
from stepgrad.cli.evaluate import evaluate
from stepgrad.errors import ConfigError, DataError, LikelyMistakeWarning
from stepgrad.files import WriteError
from tests.data.builders import DOG, coco_content, write_coco, write_voc

HIT, MISS, SECOND = "a 0.9 11 6 30 25", "a 0.8 40 30 50 39", "b 0.7 11 6 30 25"


@pytest.fixture
def voc(tmp_path: Path) -> dict[str, str]:
    """Annotations without images: a dog in each of two images; three detections."""
    root = write_voc(tmp_path / "V", {"a": [DOG], "b": [DOG]})
    for image in (root / "JPEGImages").iterdir():
        image.unlink()
    (root / "JPEGImages").rmdir()
    (root / "classes.txt").write_text("dog\ncat\n")
    out = tmp_path / "out"
    out.mkdir()
    (out / "comp4_det_test_dog.txt").write_text("\n".join([HIT, MISS, SECOND]))
    return {"detections": str(out), "data": str(root)}


@pytest.fixture
def coco(tmp_path: Path) -> dict[str, str]:
    content = coco_content()
    found = [{"image_id": 4, "category_id": 18, "bbox": [0, 0, 60, 20], "score": 0.5}]  # IoU with the dog: one half
    (tmp_path / "found.json").write_text(json.dumps(found))
    return {"detections": str(tmp_path / "found.json"), "data": str(write_coco(tmp_path / "C", content))}


def output(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_voc_annotations_without_images_are_enough(voc: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(**voc, resamples=0) == 0
    lines = output(capsys).splitlines()
    eleven, area = (6 * 1 + 5 * 2 / 3) / 11, (1 + 2 / 3) / 2
    assert (
        f"voc07-devkit, 2 images, 3 detections: mAP {100 * eleven / 2:.1f}" in lines
    )  # of two classes, one without objects
    assert ["dog", "2", "0", "3", "100.0", f"{100 * eleven:.1f}", f"{100 * area:.1f}"] in [
        line.split() for line in lines
    ]
    assert "note: no file for cat: counted as having no detections" in lines


def test_coco_files_are_judged_by_coco_unless_told_otherwise(
    coco: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(**coco) == 0
    assert output(capsys).startswith("coco, 2 images, 1 detections: mAP 5.0")
    assert evaluate(**coco, protocol="voc12") == 0
    assert output(capsys).startswith("voc12, 2 images, 1 detections: mAP 25.0")  # VOC knows no crowds


def test_empty_files_of_detections_find_nothing(
    voc: dict[str, str], coco: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path(coco["detections"]).write_text("[]")
    with pytest.warns(LikelyMistakeWarning, match="found.json on instances: has no detections"):
        assert evaluate(**coco) == 0
    assert output(capsys).startswith("coco, 2 images, 0 detections: mAP 0.0")
    (Path(voc["detections"]) / "comp4_det_test_dog.txt").write_text("")
    with pytest.warns(LikelyMistakeWarning, match="has no detections"):
        assert evaluate(**voc, compare=["voc07-devkit", "coco"]) == 0
    assert "no detection is judged differently" in output(capsys)


def test_objects_without_area_are_refused_or_dropped(coco: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    content = coco_content()
    content["annotations"][0]["bbox"] = [1, 2, 0, 20]
    Path(coco["data"]).write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"instances.json: annotation 1 .*width 0"):
        evaluate(**coco)
    assert evaluate(**coco, degenerate="drop") == 0
    assert "mAP 10.0" in output(capsys)


def test_compare_names_the_rule(voc: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    (Path(voc["detections"]) / "comp4_det_test_dog.txt").write_text("a 0.9 11 6 30 15\n")  # half of the dog
    assert evaluate(**voc, compare=["voc07-devkit", "voc07-python", "voc07"], boxes="file") == 0
    text = output(capsys)
    rows = [" ".join(line.split()) for line in text.splitlines() if line.startswith("dog") and " a " in line]
    assert rows == [
        "dog a 0.9 11 6 30 15 0.5 0.5000 true positive 0.5000 false positive equality",
        "dog a 0.9 11 6 30 15 0.5 0.5000 true positive 0.4737 false positive pixel offset",  # 9 / 19
    ]


@pytest.mark.parametrize("protocol", ["voc12", "coco", "voc07-devkit", "voc12-devkit"])
def test_a_protocol_says_one_number_alone_and_in_a_comparison(
    voc: dict[str, str], protocol: str, tmp_path: Path
) -> None:
    (Path(voc["detections"]) / "comp4_det_test_dog.txt").write_text("a 0.9 11 6 30 15\nb 0.8 11 6 30 20\n")
    other = "voc07-python"
    for boxes in ({}, {"boxes": "converted"}, {"boxes": "file"}):
        report = tmp_path / "report.json"
        assert evaluate(**voc, **boxes, protocol=protocol, report=str(report)) == 0  # type: ignore[arg-type]
        alone = json.loads(report.read_text())["map"]
        assert evaluate(**voc, **boxes, compare=[protocol, other], report=str(report)) == 0  # type: ignore[arg-type]
        assert json.loads(report.read_text())["results"][0]["map"] == alone


def test_what_a_note_advises_works(voc: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", f"--detections={voc['detections']}", f"--data={voc['data']}", "--compare", "voc12", "coco"]
    assert main([*arguments, "--boxes", "file"]) == 0
    (note,) = [line for line in output(capsys).splitlines() if "convention" in line]
    advised = re.findall(r"--boxes \w+", note)
    assert advised == ["--boxes converted"]
    assert main([*arguments, *advised[0].split()]) == 0
    obeyed = output(capsys)
    assert "convention" not in obeyed
    assert main(arguments) == 0
    assert output(capsys) == obeyed  # it is the default


def test_pixel_convention_is_named_and_can_be_converted(
    voc: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(voc["detections"]) / "comp4_det_test_dog.txt").write_text("a 0.9 11 6 30 15\n")  # 20 x 10 in 20 x 20
    maps = {}
    for boxes in ("file", "converted"):
        assert evaluate(**voc, protocol="voc12", boxes=boxes) == 0  # type: ignore[arg-type]
        text = output(capsys)
        maps[boxes] = text.split("mAP ")[1].split()[0]
        assert ("measured them without a pixel added" in text) == (boxes == "file")
    assert maps == {"file": "0.0", "converted": "25.0"}
    for bottom, expected in ((15, "25.0"), (14.75, "0.0")):  # a half; less, unless a pixel were added twice
        (Path(voc["detections"]) / "comp4_det_test_dog.txt").write_text(f"a 0.9 11 6 30 {bottom}\n")
        for boxes in ("file", "converted"):
            assert evaluate(**voc, protocol="voc12-devkit", boxes=boxes) == 0  # type: ignore[arg-type]
            assert f"mAP {expected}" in output(capsys)


def test_report_and_plot_are_written(voc: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, plot = tmp_path / "r/report.json", tmp_path / "curves.svg"
    assert evaluate(**voc, report=str(report), plot=str(plot)) == 0
    content = json.loads(report.read_text())
    assert content["protocol"] == "voc07-devkit"
    assert content["classes"][0]["name"] == "dog"
    assert f"mAP {100 * content['map']:.1f}" in output(capsys)
    assert plot.read_text().rstrip().endswith("</svg>")
    assert evaluate(**voc, compare=["voc12", "coco"], report=str(report), plot=str(plot)) == 0
    assert json.loads(report.read_text())["pairs"][0]["protocols"] == ["voc12", "coco"]


def test_twelve_numbers_are_printed_and_reported(
    coco: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(**coco, coco=True, report=str(tmp_path / "r.json")) == 0
    assert "AR100" in output(capsys)
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["coco"]["AP"] == pytest.approx(content["map"], abs=1e-12)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "nothing given": ({"detections": None}, ConfigError, "both --detections .* and --data"),
    "unknown protocol": ({"protocol": "voc7"}, ConfigError, "Did you mean 'voc07'"),
    "name of a tool": ({"compare": ["coco", "yolo"]}, ConfigError, "Did you mean 'ultralytics'"),
    "name in capitals": ({"metric": ["F1"]}, ConfigError, "Did you mean 'f1'"),
    "one protocol": ({"compare": ["coco"]}, ConfigError, "two or more protocols to compare but got"),
    "unknown split": ({"split": "tset"}, DataError, "no such image set"),
    "no data": ({"data": "nowhere"}, DataError, "nowhere: no such file or folder"),
    "no detections": ({"detections": "nowhere"}, DataError, "nowhere: no such file or folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_named_with_the_way_out(voc: dict[str, str], case: str) -> None:
    changes, error, message = BAD[case]
    with pytest.raises(error, match=message):
        evaluate(**{**voc, **changes})


def test_detections_of_another_split_are_named(voc: dict[str, str]) -> None:
    (Path(voc["data"]) / "ImageSets/Main/half.txt").write_text("a\n")
    with pytest.raises(
        DataError, match=r"comp4_det_test_dog.txt, line 3: image 'b' is not among the 1 images of V half"
    ):
        evaluate(**voc, split="half")


def test_detections_of_one_split_of_a_voc_folder_name_the_split(
    voc: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    lists = Path(voc["data"]) / "ImageSets/Main"
    (lists / "train.txt").write_text("a\n")
    (lists / "val.txt").write_text("b\n")
    (Path(voc["detections"]) / "comp4_det_test_dog.txt").write_text(SECOND)
    with pytest.warns(LikelyMistakeWarning, match="1 of 2 images have no detection; all detections are of split val"):
        assert evaluate(**voc) == 0
    assert evaluate(**voc, split="val") == 0  # warnings are errors here


def test_corners_in_the_place_of_sizes_are_warned_of_with_the_map_without_them(tmp_path: Path) -> None:
    """Objects along the diagonal, so that corners taken for sizes leave the image."""
    corners = [(x, x, x + 40, x + 40) for x in range(0, 460, 30)]
    content = coco_content()
    content["images"] = [{"id": 4, "file_name": "a.jpg", "width": 500, "height": 500}]
    content["annotations"] = [
        {"id": i, "image_id": 4, "category_id": 18, "bbox": [x, y, 40, 40], "area": 1600, "iscrowd": 0}
        for i, (x, y, *_) in enumerate(corners, 1)
    ]
    data = tmp_path / "instances.json"
    data.write_text(json.dumps(content))
    found = [{"image_id": 4, "category_id": 18, "bbox": list(c), "score": 0.5} for c in corners]
    (tmp_path / "found.json").write_text(json.dumps(found))
    with pytest.warns(LikelyMistakeWarning, match=r"It is 100.0 with the boxes read as \[x1, y1, x2, y2\]"):
        assert evaluate(detections=str(tmp_path / "found.json"), data=str(data)) == 0


def test_the_command_line_prints_numbers_or_one_line_of_error(
    voc: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", f"--detections={voc['detections']}", f"--data={voc['data']}"]
    assert main([*arguments, "--protocol", "voc12-devkit"]) == 0
    assert output(capsys).startswith("voc12-devkit, 2 images, 3 detections: mAP 41.7")
    (Path(voc["detections"]) / "comp4_det_test_dog.txt").write_text("a nan 1 1 9 9\n")
    assert main(arguments) == 2
    assert re.fullmatch(r"stepgrad: .*comp4_det_test_dog.txt.*finite score.*\n", capsys.readouterr().err)


def test_full_disk_leaves_the_old_report(voc: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.json"
    report.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=f"{report}: the disk is full"):
        evaluate(**voc, report=str(report))
    assert report.read_text() == "old"
