"""The same detection, however an exported model writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepgrad.errors import ConfigError, DataError, LikelyMistakeWarning
from stepgrad.models.exported.pipeline import open_pipeline
from tests.models.exported.graphs import PLACES, SIZE, picture, saying, v8_rows

NAMES = ("cat", "dog", "person")
BOX = (16.0, 8.0, 48.0, 40.0)  # of a picture as large as the input
CENTRE = (32.0, 24.0, 32.0, 32.0)
SCORE = 0.75
LOGIT = np.log(SCORE / (1 - SCORE))


def v5() -> Any:
    rows = np.zeros((1, 3 * PLACES, 8), dtype=np.float32)
    rows[..., 2:4] = 1.0
    rows[0, 7] = [*CENTRE, 0.9375, 0, 0.8, 0]
    return {"output": rows}


def segmentation() -> Any:
    rows = v8_rows([CENTRE], [[0, SCORE, 0, *[0.3] * 5]])
    return {"output0": rows, "output1": np.zeros((1, 5, 16, 16))}


def queries(columns: int, spread: bool) -> Any:
    logits = np.full((1, 4, columns), -20.0)
    logits[0, 2, 1] = LOGIT
    if spread:  # softmax over the classes and nothing
        logits[0, :, -1] = 0.0
    boxes = np.full((1, 4, 4), 0.5)
    boxes[0, 2] = np.array(CENTRE) / SIZE
    return {"logits": logits, "pred_boxes": boxes}


LAYOUTS: dict[str, Any] = {
    "v5": v5(),
    "v8": {"output0": v8_rows([CENTRE], [[0, SCORE, 0]])},
    "v8 with masks": segmentation(),
    "v8 with keypoints": {"output0": v8_rows([CENTRE], [[0, SCORE, 0, *[9.0] * 51]])},
    "end to end": {"output0": [[[*BOX, SCORE, 1], *[[0, 0, 1, 1, 0, 0]] * 299]]},
    "torchvision": {"boxes": [BOX], "labels": [2], "scores": [SCORE]},
    "DETR": queries(4, spread=True),
    "DETR with a sigmoid each": queries(3, spread=False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_detection_however_it_is_written(layout: str, tmp_path: Path) -> None:
    model = saying(tmp_path / "m.onnx", LAYOUTS[layout], names=NAMES)
    found = open_pipeline(model, ["dog", "cat", "person"]).detect(picture())
    assert found.labels.tolist() == [0]
    assert found.scores == pytest.approx([SCORE], rel=1e-6)
    np.testing.assert_allclose(found.boxes, [BOX], rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_boxes_are_those_of_the_picture_whatever_its_shape(layout: str, tmp_path: Path) -> None:
    """Twice as wide and high as the input, or stretched."""
    model = saying(tmp_path / "m.onnx", LAYOUTS[layout], names=NAMES)
    pipeline = open_pipeline(model, NAMES, ["resize=stretch"])
    found = pipeline.detect(picture(2 * SIZE, 3 * SIZE))
    np.testing.assert_allclose(found.boxes, [np.array(BOX) * (2, 3, 2, 3)], rtol=1e-5)


def test_the_letterbox_is_undone(tmp_path: Path) -> None:
    model = saying(tmp_path / "m.onnx", LAYOUTS["v8"], names=NAMES)
    found = open_pipeline(model, NAMES).detect(picture(2 * SIZE, SIZE))  # half of its size, with 16 rows above it
    np.testing.assert_allclose(found.boxes, [[32.0, 0.0, 96.0, 48.0]], rtol=1e-5)


def test_a_model_that_is_told_the_size_of_the_picture_answers_in_its_pixels(tmp_path: Path) -> None:
    """RT-DETR and its kin; labels count from 0."""
    from tests.models.exported.graphs import onnx

    file = saying(tmp_path / "m.onnx", {"boxes": [[BOX]], "labels": [[1]], "scores": [[SCORE]]}, names=NAMES)
    model = onnx.load(str(file))
    model.graph.input.append(onnx.helper.make_tensor_value_info("orig_target_sizes", onnx.TensorProto.INT64, [1, 2]))
    onnx.save(model, str(file))
    found = open_pipeline(file, NAMES).detect(picture(2 * SIZE, 3 * SIZE))
    assert found.labels.tolist() == [1]
    np.testing.assert_allclose(found.boxes, [BOX])


@pytest.mark.parametrize(
    "outputs",
    [
        {"output0": np.zeros((1, 7, 99))},
        {"logits": np.zeros((1, 4, 3))},
        {"boxes": np.zeros((4, 4)), "scores": np.zeros(4)},
        {"probabilities": np.zeros((1, 1000))},
    ],
)
def test_another_output_is_refused_with_what_was_expected_and_what_came(outputs: Any, tmp_path: Path) -> None:
    name, value = next(iter(outputs.items()))
    with pytest.raises(DataError, match=r"m\.onnx: unknown output; expected one of: v5 .*; but got") as caught:
        open_pipeline(saying(tmp_path / "m.onnx", outputs, names=NAMES), NAMES)
    assert f"{name} {np.shape(value)}" in str(caught.value)


def test_inputs_that_are_no_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected one input of pixels .* but got images \[1, 12\]"):
        open_pipeline(saying(tmp_path / "m.onnx", LAYOUTS["v8"], shape=[1, 12]), NAMES)


def test_more_names_than_scores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="expected scores of 4 classes, as the model's names say, but its output has room for 3"
    ):
        open_pipeline(saying(tmp_path / "m.onnx", LAYOUTS["v8"], names=[*NAMES, "cow"]), NAMES)


def test_a_model_without_names_has_the_classes_of_the_data_if_there_are_as_many(tmp_path: Path) -> None:
    model = saying(tmp_path / "m.onnx", LAYOUTS["v8"])
    assert open_pipeline(model, ["a", "b", "c"]).detect(picture()).labels.tolist() == [1]
    with pytest.raises(DataError, match=r"names no classes and has 3, but the data has 2 .* --model-classes FILE"):
        open_pipeline(model, ["a", "b"])
    assert open_pipeline(model, ["b", "a"], model_classes=["a", "b", "c"]).detect(picture()).labels.tolist() == [0]


def test_classes_are_found_by_name_also_in_vocs_spelling(tmp_path: Path) -> None:
    model = saying(tmp_path / "m.onnx", LAYOUTS["v8"], names=["cat", "potted plant", "tv"])
    with pytest.warns(
        LikelyMistakeWarning, match="does not know sheep of the data; objects of 1 such class are missed"
    ):
        pipeline = open_pipeline(model, ["tvmonitor", "pottedplant", "sheep", "cat"])
    assert pipeline.labels.tolist() == [3, 1, 0]
    with pytest.raises(DataError, match=r"expected classes of the data \(cow\) but it has cat, potted plant, tv"):
        open_pipeline(model, ["cow"])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("kernal=linear", "expected NAME=VALUE with one of .* Did you mean 'kernel'"),
        ("colour=grey", "recipe: colour: expected one of rgb, bgr but got 'grey'"),
        ("nms=2", "recipe: nms: expected a number from 0 to 1 but got '2'"),
        ("size=32", "takes pictures of 64 x 64 pixels only"),
        ("resize=rect", "resize=rect needs an input of any size"),
        ("nms", "expected NAME=VALUE"),
    ],
)
def test_a_wrong_word_of_the_recipe_is_named(word: str, message: str, tmp_path: Path) -> None:
    model = saying(tmp_path / "m.onnx", LAYOUTS["v8"], names=NAMES)
    with pytest.raises(ConfigError, match=message):
        open_pipeline(model, NAMES, [word])


def test_files_that_are_no_models_are_named(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"not a graph")
    with pytest.raises(DataError, match="cannot load it"):
        open_pipeline(tmp_path / "m.onnx", NAMES)
    with pytest.raises(DataError, match="no such file"):
        open_pipeline(tmp_path / "other.onnx", NAMES)
    with pytest.raises(
        DataError, match=r"expected an exported model \.onnx, or weights \.pt of ultralytics, but got \.engine"
    ):
        open_pipeline(tmp_path / "m.engine", NAMES)
