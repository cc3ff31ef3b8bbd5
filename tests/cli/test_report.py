"""`stepgrad report`, and the pages that `stepgrad evaluate` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepgrad.cli import main
from tests.data.builders import DOG, SIZE, write_voc

HIT, MISS, SECOND = "a 0.9 11 6 30 25", "a 0.8 40 30 50 39", "b 0.7 11 6 30 25"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dog in each of two images, and two files of detections: `good` has both, `bad` has one and a false alarm."""
    monkeypatch.chdir(tmp_path)
    root = write_voc(tmp_path / "V", {"a": [DOG], "b": [DOG]})
    (root / "classes.txt").write_text("dog\n")
    for name, lines in {"good": [HIT, SECOND], "bad": [MISS, SECOND]}.items():
        Path(name).mkdir()
        (Path(name) / "comp4_det_test_dog.txt").write_text("\n".join(lines))
    return str(root)


def images_of(page: Path) -> list[dict[str, object]]:
    text = page.read_text(encoding="utf-8").split('id="evidence">')[1].split("</script>")[0]
    images: list[dict[str, object]] = json.loads(text)["images"]
    return images


def test_evaluate_writes_a_page_and_its_numbers_beside_it(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--detections", "bad", "--data", data, "--report", "out/bad.html"]) == 0
    assert "report: out/bad.html" in capsys.readouterr().out
    numbers = json.loads(Path("out/bad.json").read_text())
    assert numbers["maps"] == {"voc07-devkit": pytest.approx(6 / 11 / 2)}
    assert numbers["sentence"].startswith("mAP is 27.3 (0.0 to ")
    assert numbers["provenance"]["files"]["detections"]["path"] == "bad"
    images = images_of(Path("out/bad.html"))
    assert all(str(image["src"]).startswith("data:image/jpeg") for image in images)
    assert images[1]["objects"] == [[0, 10.0, 5.0, 30.0, 25.0]]  # continuous, where the file counts from 1


def test_a_page_without_pictures_shows_boxes_alone_in_images_of_the_size_that_annotations_say(data: str) -> None:
    for image in (Path(data) / "JPEGImages").iterdir():
        image.unlink()
    assert main(["evaluate", "--detections", "good", "--data", data, "--report", "good.html"]) == 0
    assert [(image["src"], image["size"]) for image in images_of(Path("good.html"))] == [(None, list(SIZE))] * 2
    places = json.loads(Path("good.json").read_text())["objects"]["places"]
    assert sum(map(sum, places)) == 2


def test_a_file_of_another_name_gets_the_numbers_alone(data: str) -> None:
    assert main(["evaluate", "--detections", "good", "--data", data, "--report", "good.json"]) == 0
    assert json.loads(Path("good.json").read_text())["map"] == 1.0


def test_several_files_are_set_side_by_side(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "bad", "good", "--data", data, "--protocol", "voc12-devkit", "coco"]) == 0
    *_, said, where = capsys.readouterr().out.splitlines()
    numbers = json.loads(Path("comparison/report.json").read_text())
    assert (said, where) == (numbers["sentence"], "report: comparison/report.html")
    assert [arm["name"] for arm in numbers["arms"]] == ["bad", "good"]
    assert [arm["maps"]["voc12-devkit"]["mean"] for arm in numbers["arms"]] == [0.25, 1.0]
    assert numbers["sentence"].startswith(
        "good gained 75.0 over bad (25.0 to 100.0, voc12-devkit): false alarms on background cost"
    )
    assert numbers["sentence"].endswith(numbers["paired"]["sentence"])
    assert list(numbers["provenance"]["files"]) == ["data", "bad", "good"]
    assert len(numbers["curves"][0]["mean"]) == 2


def test_files_are_named_by_what_tells_them_apart_or_as_asked(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("good", "bad"):
        (Path("runs") / name / "val").mkdir(parents=True)
        Path(name).rename(Path("runs") / name / "val" / "found")
    files = [f"runs/{name}/val/found" for name in ("bad", "good")]
    for options, names in (([], ["bad", "good"]), (["--names", "YOLO", "mine"], ["YOLO", "mine"])):
        assert main(["report", *files, "--data", data, *options]) == 0
        numbers = json.loads(Path("comparison/report.json").read_text())
        assert [arm["name"] for arm in numbers["arms"]] == names
        assert numbers["title"] == " and ".join(names)
    assert main(["report", *files, "--data", data, "--names", "one"]) == 2
    assert "one name for each of the 2" in " ".join(capsys.readouterr().err.split())


def test_files_without_pictures_are_set_side_by_side_as_boxes(data: str) -> None:
    for image in (Path(data) / "JPEGImages").iterdir():
        image.unlink()
    assert main(["report", "bad", "good", "--data", data, "--out", "both"]) == 0
    assert Path("both/report.html").read_text().count("data:image/jpeg") == 2  # one image changed, on both sides


def test_one_file_needs_a_folder_and_a_file_needs_its_data(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "good", "--data", data]) == 2
    assert "out: expected a folder" in capsys.readouterr().err
    assert main(["report", "good"]) == 2
    assert "name its data with --data" in " ".join(capsys.readouterr().err.split())
    assert main(["report", "good", "--data", data, "--out", "page"]) == 0
    assert Path("page/report.html").exists()
