"""Two files of detections on the same images (`evaluate --against`), and two files of numbers (`evaluate --compare`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepgrad as sg
from stepgrad.cli.evaluate import evaluate
from stepgrad.errors import ConfigError, DataError
from tests.cli.certain import write_files


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return write_files(tmp_path) | {"against": str(tmp_path / "b.json")}


def written(path: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[dict[str, Any], str]:
    assert evaluate(**options, report=path) == 0
    return json.loads(path.read_text()), capsys.readouterr().out


def test_a_sentence_then_the_difference_by_class_and_the_images_that_made_it(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, text = written(tmp_path / "n.json", capsys, **files, metric=["f1"], images=4, resamples=200)
    by_map, by_f1 = content["comparisons"]
    assert text.startswith(f"{by_map['sentence']}\ncoco, mAP: a ")
    assert by_f1["sentence"] in text
    assert by_map["difference"] == content["results"][1]["map"] - content["results"][0]["map"]
    low, high = by_map["interval"]
    assert low <= by_map["difference"] <= high
    assert f"b is ahead in {100 * by_map['ahead']:.1f} % of 200 resamples" in text
    assert [row["name"] for row in by_map["classes"]] == ["dog", "cat"]
    changes = [abs(row["difference"]) for row in content["images"]]
    assert len(changes) == 4
    assert changes == sorted(changes, reverse=True)
    back, _ = written(
        tmp_path / "n.json", capsys, **{**files, "detections": files["against"], "against": files["detections"]}
    )
    assert back["comparisons"][0]["difference"] == -by_map["difference"]


def test_groups_are_drawn_together_for_both(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text = written(tmp_path / "n.json", capsys, **files, group=r"(clip\d+)_")
    assert "these 11 groups of images" in text


def test_images_of_one_file_alone_are_told_and_files_without_a_common_image_are_refused(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(Path(files["detections"]).read_text())
    Path(files["detections"]).write_text(json.dumps([row for row in rows if row["image_id"] > 2]))
    assert evaluate(**files) == 0
    assert "2 of 30 images have detections of the other file but none of a, such as 1" in capsys.readouterr().out
    for name, kept in (("detections", True), ("against", False)):
        rows = json.loads(Path(files[name]).read_text())
        Path(files[name]).write_text(json.dumps([row for row in rows if (row["image_id"] > 15) == kept]))
    with pytest.raises(DataError, match="a and b have detections on no common image: the first on 15 images"):
        evaluate(**files)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no resamples": ({"resamples": 0}, ConfigError, "resamples: expected at least 1 with --against"),
    "protocols": ({"compare": ["coco", "voc12"]}, ConfigError, "compare: leave it out with --against"),
    "errors": ({"errors": True}, ConfigError, "errors: leave it out with --against"),
    "page": ({"report": Path("a.html")}, ConfigError, "stepgrad report A B"),
    "no file": ({"against": Path("nowhere.json")}, DataError, "nowhere.json"),
    "images alone": ({"against": None, "images": 3}, ConfigError, "images: needs --against"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_named_with_the_way_out(files: dict[str, str], case: str) -> None:
    changes, error, message = BAD[case]
    with pytest.raises(error, match=message):
        evaluate(**{**files, **changes})


def test_numbers_say_how_they_came(files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import hashlib

    content, _ = written(tmp_path / "n.json", capsys, **files, metric=["f1@threshold=0.5"], seed=5, resamples=20)
    came = content["provenance"]
    assert came["stepgrad"] == sg.__version__
    for name in ("detections", "against", "data"):
        data = Path(files[name]).read_bytes()
        described = came["files"][name]
        assert (described["bytes"], described["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert came["protocols"]["coco"]["match_thresholds"][0] == 0.5
    assert came["options"]["metric"] == ["f1@threshold=0.5"]
    assert (came["options"]["seed"], came["options"]["resamples"], came["options"]["level"]) == (5, 20, 0.95)


def test_a_folder_of_files_has_one_digest_of_names_and_contents(tmp_path: Path) -> None:
    from stepgrad.cli.provenance import describe_files

    (tmp_path / "f").mkdir()
    for name in ("a.txt", "b.txt", "photo.jpg"):
        (tmp_path / "f" / name).write_text(name)
    first = describe_files(tmp_path / "f")
    assert (first["files"], first["bytes"]) == (2, 10)
    (tmp_path / "f/photo.jpg").write_text("another")
    assert describe_files(tmp_path / "f") == first
    assert describe_files(tmp_path / "f/*.txt")["sha256"] == first["sha256"]
    (tmp_path / "f/a.txt").rename(tmp_path / "f/c.txt")
    assert describe_files(tmp_path / "f")["sha256"] != first["sha256"]


def test_two_files_of_numbers_are_told_apart_by_how_they_came(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {name: files[name] for name in ("detections", "data")}
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    written(first, capsys, **one)
    compared = {"compare": [str(first), str(second)]}
    written(second, capsys, **one)
    assert evaluate(**compared) == 0  # type: ignore[arg-type]
    assert capsys.readouterr().out.startswith("both came in the same way")
    changes: dict[str, dict[str, Any]] = {
        "protocol: coco / voc12": {"protocol": "voc12"},
        "seed: 0 / 3": {"seed": 3},
        "metric: [] / ['f1@threshold=0.5']": {"metric": ["f1@threshold=0.5"]},
        "other detections were judged": {"detections": files["against"]},
    }
    for line, change in changes.items():
        content, _ = written(second, capsys, **{**one, **change})
        assert evaluate(**compared) == 0  # type: ignore[arg-type]
        text = capsys.readouterr().out
        assert line in text
        assert f"{100 * content['map']:.1f} (" in text
    copy = tmp_path / "elsewhere.json"
    copy.write_bytes(Path(one["detections"]).read_bytes())
    written(second, capsys, **{**one, "detections": str(copy)})
    assert evaluate(**compared) == 0  # type: ignore[arg-type]
    assert capsys.readouterr().out.startswith("both came in the same way")  # where a file lies changes nothing
    changed = json.loads(second.read_text())
    changed["provenance"]["stepgrad"] = "0.1"
    changed["provenance"]["protocols"]["coco"]["equality"] = False
    second.write_text(json.dumps(changed))
    assert evaluate(**compared) == 0  # type: ignore[arg-type]
    text = capsys.readouterr().out
    assert f"version of stepgrad: {sg.__version__} / 0.1" in text
    assert "rules of coco: equality: True / False" in text


def test_bad_files_of_numbers_are_named(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    written(good, capsys, detections=files["detections"], data=files["data"])
    for content, message in (("{", "cannot be read"), ("[1]", "is not what"), ('{"map": "x"}', "is not what")):
        bad.write_text(content)
        with pytest.raises(DataError, match=message):
            evaluate(compare=[str(good), str(bad)])
    with pytest.raises(DataError, match="no such file"):
        evaluate(compare=[str(good), str(tmp_path / "none.json")])
    with pytest.raises(ConfigError, match="expected two files of numbers"):
        evaluate(compare=[str(good)])
    with pytest.raises(ConfigError, match="need no --detections"):
        evaluate(compare=[str(good), str(good)], detections=Path(files["detections"]))
    old = json.loads(good.read_text())
    del old["provenance"]
    bad.write_text(json.dumps(old))
    capsys.readouterr()
    assert evaluate(compare=[str(good), str(bad)]) == 0
    assert "bad.json does not say how its numbers came" in capsys.readouterr().out
