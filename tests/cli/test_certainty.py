"""How sure a number is, as `stepgrad evaluate` says it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stepgrad.cli.evaluate import evaluate
from stepgrad.data import load_dataset
from stepgrad.data.groups import read_groups
from stepgrad.errors import ConfigError, DataError
from stepgrad.evaluation.intervals import affordable
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.options import get_metric
from stepgrad.metric.protocol import get_protocol
from tests.cli.certain import write_files

INTERVAL = r"(-?[\d.]+) to (-?[\d.]+)"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_files(tmp_path_factory.mktemp("sure"))


def printed(capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    assert evaluate(**options) == 0
    return capsys.readouterr().out


def report_of(tmp_path: Path, **options: Any) -> dict[str, Any]:
    assert evaluate(**options, report=tmp_path / "numbers.json") == 0
    content: dict[str, Any] = json.loads((tmp_path / "numbers.json").read_text())
    return content


@pytest.mark.parametrize("protocol", ["coco", "voc07", "ultralytics-8.3"])
def test_map_every_class_and_every_metric_come_with_the_interval_they_lie_in(
    files: dict[str, str], protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = ["f1", "cost@threshold=0.5,false_alarm=1,miss=2", *(["ap@area=medium"] if protocol == "coco" else [])]
    content = report_of(tmp_path, **files, protocol=protocol, metric=[] if protocol == "ultralytics-8.3" else metrics)
    text = capsys.readouterr().out
    rows = [content["map"], content["interval"]], *([row["ap"], row["interval"]] for row in content["classes"])
    rows += tuple([m["value"], m["interval"]] for m in content.get("metrics", {}).values())
    for value, (low, high) in rows:
        assert low < value < high
    low, high = (100 * end for end in content["interval"])
    assert f"mAP {100 * content['map']:.1f} ({low:.1f} to {high:.1f})\n" in text
    assert len(re.findall(rf"^(?:dog|cat|mean of 2) .*{INTERVAL}", text, re.MULTILINE)) == 3
    assert len(re.findall(rf"\({INTERVAL}; mean of 2", text)) == len(content.get("metrics", {}))
    assert content["resampling"] == {"level": 0.95, "resamples": 1000, "seed": 0, "units": 30, "few": []}


def test_seed_and_number_of_resamples_are_options_and_none_are_drawn_for_0(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, same, other = (report_of(tmp_path, **files, resamples=50, seed=seed) for seed in (1, 1, 2))
    assert first == same
    assert first["interval"] != other["interval"]
    assert first["resampling"]["resamples"] == 50
    capsys.readouterr()
    without = report_of(tmp_path, **files, resamples=0)
    assert "interval" not in without
    assert " to " not in capsys.readouterr().out
    for name, value in (("resamples", -1), ("seed", -1)):
        with pytest.raises(ConfigError, match=f"{name} to be a whole number >= 0"):
            evaluate(**files, **{name: value})  # type: ignore[arg-type]


def test_protocols_side_by_side_have_the_intervals_they_have_alone(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = report_of(tmp_path, **files, protocol="voc12")
    both = report_of(tmp_path, **files, compare=["coco", "voc12"])
    assert both["results"][1]["interval"] == alone["interval"]
    assert re.search(rf"95% intervals .*coco {INTERVAL}, voc12 {INTERVAL}", capsys.readouterr().out)


def test_classes_and_sets_with_too_few_images_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, **write_files(tmp_path / "rare", 40, ("dog", "cat", "yak"), rare=3))
    assert text.count("fewer than 20 images") == 1
    assert re.search(r"intervals say little: yak$", text, re.MULTILINE)
    text = printed(capsys, **write_files(tmp_path / "small", 5))
    assert "too few images (5)" in text


def test_one_image_has_no_interval_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_files(tmp_path, 1)
    text = printed(capsys, **one)
    assert "single image" in text
    assert not re.search(rf"mAP [\d.]+ \({INTERVAL}", text)


def test_images_that_are_all_equal_leave_no_doubt(tmp_path: Path) -> None:
    files = write_files(tmp_path, 25, ("dog",))
    box = {"category_id": 1, "bbox": [10.0, 10.0, 40.0, 40.0], "score": 0.5}
    Path(files["detections"]).write_text(json.dumps([{"image_id": i, **box} for i in range(1, 26)]))
    content = report_of(tmp_path, **files)
    assert content["interval"] == [1.0, 1.0]


def test_a_set_without_objects_has_map_0_and_classes_without_intervals(tmp_path: Path) -> None:
    files = write_files(tmp_path, 25)
    truth = json.loads(Path(files["data"]).read_text())
    Path(files["data"]).write_text(json.dumps({**truth, "annotations": []}))
    content = report_of(tmp_path, **files)
    assert content["interval"] == [0.0, 0.0]
    assert [row["interval"] for row in content["classes"]] == [None, None]


def test_resamples_without_a_class_are_defined(tmp_path: Path) -> None:
    """A class on one image of 25 is in no image of a third of the resamples."""
    for protocol in ("coco", "voc07"):
        content = report_of(tmp_path, **write_files(tmp_path, 25, rare=1), protocol=protocol)
        assert content["interval"][0] <= content["map"] <= content["interval"][1]
        low, high = content["classes"][1]["interval"]
        assert low <= content["classes"][1]["ap"] <= high


def test_intervals_are_left_out_with_the_way_to_get_them_where_they_would_take_longer() -> None:
    coco, old = get_protocol("coco"), get_protocol("ultralytics-8.3")
    assert affordable(100_000, 20, coco, [AVERAGE_PRECISION])
    assert affordable(1_000_000, 20, coco, [AVERAGE_PRECISION])
    assert not affordable(1_000_000, 20, coco, [get_metric("f1")])
    assert not affordable(100_000, 20, coco, [AVERAGE_PRECISION] * 6)
    assert affordable(100_000, 80, get_protocol("voc12"), [AVERAGE_PRECISION, get_metric("f1")])
    assert not affordable(10_000, 80, old, [AVERAGE_PRECISION])


def test_what_was_left_out_is_said(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepgrad.cli.certainty.affordable", lambda *_: False)
    text = printed(capsys, **files)
    assert "note: no intervals: for 60 detections they take longer than the evaluation; --resamples 1000" in text
    assert re.search(rf"mAP [\d.]+ \({INTERVAL}", printed(capsys, **files, resamples=1000))


GROUPS = {
    "json": '{"clip0_1.jpg": "x", "2": 7, "clip1_0": "x"}',
    "csv": "image,group\n1,x\nclip0_2.jpg,7\n\nclip1_0,x\n",
}


@pytest.mark.parametrize("kind", GROUPS)
def test_groups_come_from_a_file_by_id_or_file_name(kind: str, tmp_path: Path) -> None:
    dataset = load_dataset(write_files(tmp_path, 3)["data"], need_images=False)
    (tmp_path / f"groups.{kind}").write_text(GROUPS[kind])
    assert read_groups(str(tmp_path / f"groups.{kind}"), dataset) == ["x", "7", "x"]


def test_frames_of_a_clip_are_drawn_together(files: dict[str, str], tmp_path: Path) -> None:
    """Clips of three frames: as many units as clips, and the same groups by pattern and by file are the same intervals."""
    content = report_of(tmp_path, **files, group=r"(clip\d+)_")
    assert content["resampling"]["units"] == 11
    by_file = {str(i): i // 3 for i in range(1, 31)}
    (tmp_path / "groups.json").write_text(json.dumps(by_file))
    assert report_of(tmp_path, **files, group=str(tmp_path / "groups.json"))["interval"] == content["interval"]
    alone = report_of(tmp_path, **files)
    assert alone["map"] == content["map"]
    assert alone["interval"] != content["interval"]


BAD_GROUPS = {
    "no brackets": ("clip", None, ConfigError, "clip in brackets"),
    "no expression": ("(clip", None, ConfigError, "is none"),
    "no match": ("(dog)", None, ConfigError, "finds no clip in the name of image 'clip0_1.jpg'"),
    "no file": ("nowhere.json", None, DataError, "no such file"),
    "no json": ("g.json", "{", DataError, "cannot be read as groups"),
    "a list": ("g.json", "[1]", DataError, "expected an object"),
    "no name": ("g.json", '{"1": [2]}', DataError, "group of image '1'"),
    "missing": ("g.json", '{"1": "a"}', DataError, "no group for image 2 .clip0_2.jpg."),
    "columns": ("g.csv", "1,a\n2\n", DataError, "line 2: expected `image,group` but got 1"),
    "twice": ("g.csv", "1,a\n1,b\n", DataError, "image '1' is in the groups 'a' and 'b'"),
}


@pytest.mark.parametrize("case", BAD_GROUPS)
def test_bad_groups_are_named_with_the_way_out(files: dict[str, str], case: str, tmp_path: Path) -> None:
    given, content, error, message = BAD_GROUPS[case]
    if content is not None:
        (tmp_path / given).write_text(content)
        given = str(tmp_path / given)
    with pytest.raises(error, match=message):
        evaluate(**files, group=given)
