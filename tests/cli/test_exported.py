"""`stepgrad evaluate --model`: an exported model judged, and two compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepgrad.cli.evaluate import evaluate
from stepgrad.cli.explain import explain
from stepgrad.data import load_dataset
from stepgrad.data.convert import convert
from stepgrad.errors import ConfigError, LikelyMistakeWarning
from tests.data.builders import shared_data
from tests.models.exported.graphs import colour_detector, quantised


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("exported")
    convert("shapes:val,length=5,size=80", folder / "data", "coco")
    names = load_dataset("shapes:val,length=1").class_names
    file = colour_detector(folder / "plain.onnx", names)
    return {"data": folder / "data", "model": file, "other": colour_detector(folder / "other.onnx", names, seed=3)}


def test_a_model_alone_is_judged_as_its_saved_detections_are(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "found.json"
    common = {"data": given["data"], "protocol": "voc12", "resamples": 0}
    assert evaluate(model=given["model"], save_detections=saved, report=tmp_path / "a.json", **common) == 0
    assert "size 64x64, kernel linear" in capsys.readouterr().err
    assert evaluate(detections=saved, report=tmp_path / "b.json", **common) == 0
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert a["map"] == b["map"]
    assert "model" in a["provenance"]["files"]


def test_two_models_are_compared_and_the_difference_split(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn, report = tmp_path / "first.png", tmp_path / "n.json"
    options = {"data": given["data"], "resamples": 20, "draw": drawn, "report": report, "protocol": "voc12"}
    recipes = {"recipe": ["colour=bgr"], "against_recipe": ["nms=0.3"]}
    assert evaluate(model=given["model"], against=given["other"], **options, **recipes) == 0
    text = capsys.readouterr().out
    content = json.loads(report.read_text())
    causes = content["causes"]
    assert [part["cause"] for part in causes["parts"]] == ["colour", "boxes", "scores", "nms"]
    assert causes["points"] == pytest.approx(-100 * content["comparisons"][0]["difference"])
    assert sum(part["points"] for part in causes["parts"]) == pytest.approx(causes["points"])
    assert "first image that differs" in text
    assert drawn.stat().st_size > 1000


def test_the_same_file_with_two_recipes_differs_around_the_network_only(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"data": given["data"], "resamples": 20}
    assert evaluate(model=given["model"], against=given["model"], recipe=["kernel=nearest"], **options) == 0
    text = capsys.readouterr().out
    assert "plain.onnx (kernel=nearest)" in text
    assert "plain.onnx (as usual)" in text
    assert "network" not in text


def test_a_model_is_compared_with_a_file_of_detections(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"data": given["data"], "resamples": 20, "model": given["model"]}
    assert evaluate(**options, save_detections=tmp_path / "found.json") == 0
    assert evaluate(**options, against=tmp_path / "found.json") == 0
    assert "0.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"detections": Path("a.json")}, "detections: is not for --model"),
        ({"task": "masks"}, "task: is not for --model"),
        ({"draw": Path("a.png"), "against": Path("a.json")}, "draw: needs two models"),
        ({"against": Path("a.json"), "against_recipe": ["nms=0.3"]}, r"against-recipe: needs a model \(.onnx or .pt\)"),
        ({"against_recipe": ["nms"]}, r"against-recipe: needs a model \(.onnx or .pt\)"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(model=given["model"], **{"data": given["data"], **options})


def test_without_a_model_its_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="recipe: needs --model"):
        evaluate(detections=Path("a.json"), data=Path("b.json"), recipe=["nms=0.3"])
    with pytest.raises(ConfigError, match="Expected --data"):
        evaluate(model=Path("a.onnx"))


def test_a_real_model_in_float_and_in_int8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """YOLOv8n quantised as a whole: boxes in pixels and scores share the step of one tensor, so no score is left."""
    from PIL import Image

    from stepgrad.models.exported.pixels import prepare
    from stepgrad.models.exported.recipe import Recipe

    file = shared_data("weights") / "yolov8n_coco_fp32.onnx"
    source = shared_data("VOC2012-320")
    ids = (source / "ImageSets/Main/val.txt").read_text().split()[:3]
    for folder, suffix in (("Annotations", ".xml"), ("JPEGImages", ".jpg"), ("ImageSets/Main", "")):
        (tmp_path / "voc" / folder).mkdir(parents=True)
        for name in ids if suffix else []:
            (tmp_path / "voc" / folder / f"{name}{suffix}").write_bytes(
                (source / folder / f"{name}{suffix}").read_bytes()
            )
    (tmp_path / "voc/ImageSets/Main/val.txt").write_text("\n".join(ids) + "\n")
    pictures = [Image.open(tmp_path / f"voc/JPEGImages/{name}.jpg").convert("RGB") for name in ids[:2]]
    int8 = quantised(file, tmp_path / "int8.onnx", pictures=[prepare(p, Recipe())[0][None] for p in pictures])
    report = tmp_path / "n.json"
    options = {"data": tmp_path / "voc", "split": "val", "protocol": "coco", "resamples": 20, "report": report}
    with pytest.warns(LikelyMistakeWarning, match=r"int8\.onnx on voc val: has no detections"):
        evaluate(model=int8, against=file, **options)
    causes = json.loads(report.read_text())["causes"]
    assert {part["group"] for part in causes["parts"]} == {"quantisation"}
    assert causes["map"] > 0.3
    points = {part["cause"]: part["points"] for part in causes["parts"]}
    assert np.isclose(sum(points.values()), causes["points"])
    assert min(points, key=lambda cause: points[cause]) == "activations: scores"
    assert "first image that differs" in capsys.readouterr().out


def test_a_model_is_explained_as_its_saved_detections_are(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, common = tmp_path / "found.json", {"data": given["data"], "protocol": "voc12"}
    assert evaluate(model=given["model"], save_detections=saved, resamples=0, **common) == 0
    assert explain(model=given["model"], report=tmp_path / "a.json", plot=tmp_path / "ladder.png", **common) == 0
    assert explain(detections=saved, report=tmp_path / "b.json", **common) == 0
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert a["rungs"] == b["rungs"]
    assert "model" in a["provenance"]["files"]
    capsys.readouterr()
    assert explain(model=given["model"], nms=0.7, report=tmp_path / "c.json", **common) == 0
    with_windows = {rung["name"]: rung["map"] for rung in json.loads((tmp_path / "c.json").read_text())["rungs"]}
    assert "perfect NMS" in with_windows
    assert "perfect NMS" in capsys.readouterr().out
    assert explain(model=given["model"], recipe=["max_detections=3000"], report=tmp_path / "d.json", **common) == 0
    without_limit = json.loads((tmp_path / "d.json").read_text())
    assert with_windows["now"] == pytest.approx(without_limit["rungs"][0]["map"])


def test_a_model_is_explained_alone(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--model with --data"):
        explain(model=given["model"])
    with pytest.raises(ConfigError, match="without --detections"):
        explain(model=given["model"], data=given["data"], detections=Path("found.json"))
    with pytest.raises(ConfigError, match="are for --model"):
        explain(data=given["data"], detections=Path("found.json"), recipe=["nms=0.5"])
