"""What makes the difference between two models: every part is a difference of results that stand by themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.errors import ConfigError
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import get_protocol
from stepgrad.models.exported.causes import Views, stages_between
from stepgrad.models.exported.difference import difference
from stepgrad.models.exported.draw import draw_first_image
from stepgrad.models.exported.network import ONNXNetwork
from stepgrad.models.exported.pipeline import detect_all, open_pipeline
from stepgrad.models.exported.unrounded import without_rounded_activations
from tests.models.exported.graphs import SIZE, colour_detector, onnx, picture, quantised, saying

DATA = load_dataset("shapes:val,length=6,size=80")
CLASSES = DATA.class_names
EASY = replace(get_protocol("voc12"), match_thresholds=(0.1,))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {"plain": colour_detector(folder / "plain.onnx", CLASSES)}
    made["bigger"] = colour_detector(folder / "bigger.onnx", CLASSES, bigger=1.7)
    made["other"] = colour_detector(folder / "other.onnx", CLASSES, seed=3)
    made["louder"] = colour_detector(folder / "louder.onnx", CLASSES, seed=3, bigger=1.4)
    made["int8"] = quantised(made["plain"], folder / "int8.onnx")
    made["few"] = saying(
        folder / "few.onnx", {"output0": [[[8, 8, 60, 60, 0.9, 1], [0, 0, 30, 30, 0.3, 0]]]}, names=CLASSES
    )
    return made


def judged(pipeline: Any) -> float:
    return evaluate_under(evidence_from(DATA, detect_all(pipeline, DATA)), EASY).map


WAYS: list[Any] = [
    ("plain", [], "plain", ["colour=bgr", "kernel=nearest", "nms=0.3", "min_score=0.2"]),
    ("plain", ["resize=stretch"], "louder", ["max_detections=7", "agnostic=true"]),
    ("plain", ["normalise=imagenet"], "int8", ["nms=0.5"]),
    ("int8", [], "plain", ["multi_label=false"]),
    ("few", [], "plain", ["colour=bgr"]),
    ("plain", ["scale=200"], "few", []),
]


@pytest.mark.parametrize(("a", "first", "b", "second"), WAYS)
def test_the_parts_lead_from_the_one_result_to_the_other(
    a: str, first: list[str], b: str, second: list[str], files: dict[str, Path]
) -> None:
    start, end = open_pipeline(files[a], CLASSES, first), open_pipeline(files[b], CLASSES, second)
    found = difference(start, end, DATA, EASY)
    assert found.map == judged(start)
    assert found.parts[-1].map == judged(end)
    assert sum(part.points for part in found.parts) == pytest.approx(found.points, abs=1e-9)
    assert sum(found.groups().values()) == pytest.approx(100 * (judged(end) - judged(start)), abs=1e-9)
    assert f"{found.points:+.2f} points" in str(found)
    again = found.to_dict()
    assert [part["cause"] for part in again["parts"]] == [part.cause for part in found.parts]


@pytest.mark.parametrize(
    "word",
    [
        "colour=bgr",
        "kernel=nearest",
        "resize=stretch",
        "scale=200",
        "normalise=imagenet",
        "nms=0.3",
        "max_detections=5",
    ],
)
def test_what_differs_alone_has_the_whole_difference(word: str, files: dict[str, Path]) -> None:
    start, end = open_pipeline(files["plain"], CLASSES), open_pipeline(files["plain"], CLASSES, [word])
    found = difference(start, replace(end, network=start.network), DATA, EASY)
    assert [part.cause for part in found.parts] == [word.partition("=")[0]]
    assert found.parts[0].after == word.partition("=")[2]


@pytest.mark.parametrize(("other", "cause"), [("bigger", "boxes"), ("other", "scores")])
def test_networks_that_differ_in_boxes_or_in_scores_alone_say_so(
    other: str, cause: str, files: dict[str, Path]
) -> None:
    found = difference(open_pipeline(files["plain"], CLASSES), open_pipeline(files[other], CLASSES), DATA, EASY)
    changes = {part.cause: part.points for part in found.parts}
    assert set(changes) == {"boxes", "scores"}
    assert changes[cause] == pytest.approx(found.points)
    assert found.points != 0.0


def test_a_model_and_itself_differ_in_nothing(files: dict[str, Path]) -> None:
    one = open_pipeline(files["plain"], CLASSES)
    found = difference(one, one, DATA, EASY)
    assert (found.parts, found.first, found.points) == ((), None, 0.0)
    assert "nothing differs" in str(found)
    with pytest.raises(ConfigError, match="differ in no image"):
        draw_first_image(found, DATA)


@pytest.mark.parametrize(
    ("way", "causes"), [((0, 1), ["weights", "activations"]), ((1, 0), ["activations", "weights"])]
)
def test_quantisation_is_split_into_weights_and_activations(
    way: tuple[int, int], causes: list[str], files: dict[str, Path]
) -> None:
    both = [open_pipeline(files[name], CLASSES) for name in ("plain", "int8")]
    stages = stages_between(both[way[0]], both[way[1]])
    assert {stage.group for stage in stages[1:]} == {"quantisation"}
    assert [stage.cause for stage in stages[1:]] == [f"{c}: {part}" for c in causes for part in ("boxes", "scores")]


def test_without_rounded_activations_a_graph_computes_with_its_rounded_weights(files: dict[str, Path]) -> None:
    model = onnx.load(str(files["plain"]))
    values = {v.name: onnx.numpy_helper.to_array(v) for v in onnx.load(str(files["int8"])).graph.initializer}
    rounded, scale, zero = (values[f"weight_{part}"] for part in ("quantized", "scale", "zero_point"))
    weight = (rounded.astype(np.float32) - zero) * scale
    (old,) = (v for v in model.graph.initializer if v.name == "weight")
    old.CopyFrom(onnx.numpy_helper.from_array(weight.astype(np.float32), "weight"))
    content = without_rounded_activations(files["int8"])
    assert content is not None
    unrounded, expected = (ONNXNetwork(files["int8"], c) for c in (content, model.SerializeToString()))
    pixels = np.random.default_rng(0).random((3, SIZE, SIZE)).astype(np.float32)
    outputs = [network(pixels, (SIZE, SIZE))["output0"] for network in (unrounded, expected)]
    np.testing.assert_allclose(*outputs, rtol=1e-3, atol=1e-4)  # the bias is rounded, too
    assert without_rounded_activations(files["plain"]) is None


def test_the_first_image_has_a_detection_that_only_one_of_both_makes(files: dict[str, Path], tmp_path: Path) -> None:
    start, end = (open_pipeline(files[name], CLASSES, ["nms=0.3"]) for name in ("plain", "other"))
    found = difference(start, end, DATA, EASY)
    first = found.first
    assert first is not None
    assert first.image_id == DATA.ids[first.index]
    assert first.cause == "scores"
    has, has_not = first.found if first.only == "plain.onnx" else first.found[::-1]
    rows = [i for i in range(len(has.scores)) if tuple(has.boxes[i].tolist()) == first.box]
    assert first.score in has.scores[rows].tolist()
    label = CLASSES.index(first.class_name)
    from stepgrad.reference.boxes import iou

    same = has_not.boxes[has_not.labels == label]
    assert len(same) < (has.labels == label).sum() or iou(np.array([first.box]), same).max(initial=0.0) < 0.5
    draw_first_image(found, DATA, tmp_path / "first.png")
    assert (tmp_path / "first.png").stat().st_size > 1000


def test_each_network_is_asked_once_for_each_input(files: dict[str, Path]) -> None:
    start, end = (
        open_pipeline(files["plain"], CLASSES),
        open_pipeline(files["other"], CLASSES, ["colour=bgr", "nms=0.2"]),
    )
    views = Views(picture(80, 80))
    for stage in stages_between(start, end):
        stage.detect(views)
    assert len(views.known) == 3  # the first as usual and in bgr, the other in bgr
