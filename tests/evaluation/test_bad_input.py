"""Nothing that cannot be judged gets in, and the message names the image and the way out."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from stepgrad.errors import ConfigError, InputError, LikelyMistakeWarning, MissingDependencyError, NonFiniteError
from stepgrad.evaluation import Evaluator
from tests.evaluation.datasets import boxes_at, pred, target

GOOD_PRED, GOOD_TARGET = pred(boxes_at(0, 30), [0.9, 0.8]), target(boxes_at(0))
NAN, INF = float("nan"), float("inf")
LABELLED = {"image_id": "000123"}


def spoiled(entry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**entry, **changes}


BAD_PREDS = {
    "NaN score": ({"scores": torch.tensor([0.9, NAN])}, NonFiniteError, r"finite scores but scores\[1\] is nan"),
    "infinite score": ({"scores": torch.tensor([INF, 0.8])}, NonFiniteError, r"scores\[0\] is inf"),
    "NaN box": ({"boxes": boxes_at(0, NAN)}, NonFiniteError, r"finite boxes but boxes\[1\] is \[nan"),
    "reversed box": (
        {"boxes": boxes_at(0, 30, width=-1)},
        InputError,
        "no negative width and height but detection 0 is .*swap its corners",
    ),
    "endless area": (
        {"boxes": boxes_at(0, 30, width=1e155, height=1e154)},
        InputError,
        r"areas double precision can hold but detection 0 is \[0.0, 0.0, 1e\+155, 1e\+154\]",
    ),
    "label too large": (
        {"labels": torch.tensor([0, 2])},
        InputError,
        r"labels in \[0, 2\) but detection 1 has label 2",
    ),
    "negative label": ({"labels": torch.tensor([-1, 0])}, InputError, "detection 0 has label -1"),
    "float labels": ({"labels": torch.tensor([0.0, 1.0])}, InputError, "integer labels but got torch.float32"),
    "missing scores": (
        {"scores": torch.tensor([0.9])},
        InputError,
        "as many boxes as scores as labels but got 2 boxes",
    ),
    "boxes of five": ({"boxes": torch.zeros(2, 5)}, InputError, r"boxes of shape \(N, 4\).*got \(2, 5\)"),
    "scores on no device": (
        {"scores": GOOD_PRED["scores"].to("meta")},
        InputError,
        "scores in the predictions: .*meta device",
    ),
    "sparse scores": (
        {"scores": GOOD_PRED["scores"].to_sparse()},
        InputError,
        "scores in the predictions: .*dense tensor",
    ),
    "scores that are a dict": (
        {"scores": {}},
        InputError,
        "expected scores in the predictions to be a tensor.* got dict",
    ),
    "scores of 71 bits": ({"scores": 2**70}, InputError, "expected scores in the predictions to be a tensor.* got int"),
    "ragged scores": (
        {"scores": [[1], [1, 2]]},
        InputError,
        "expected scores in the predictions to be a tensor.* got list",
    ),
    "labels on no device": (
        {"labels": GOOD_PRED["labels"].to("meta")},
        InputError,
        "labels in the predictions: .*meta device",
    ),
    "sparse labels": (
        {"labels": GOOD_PRED["labels"].to_sparse()},
        InputError,
        "labels in the predictions: .*dense tensor",
    ),
    "labels that are a dict": (
        {"labels": {}},
        InputError,
        "expected labels in the predictions to be a tensor.* got dict",
    ),
    "labels of 71 bits": ({"labels": 2**70}, InputError, "expected labels in the predictions to be a tensor.* got int"),
    "ragged labels": (
        {"labels": [[1], [1, 2]]},
        InputError,
        "expected labels in the predictions to be a tensor.* got list",
    ),
    "scores by class": ({"scores": torch.zeros(2, 3)}, InputError, r"scores of shape \(N,\).*got \(2, 3\)"),
}
BAD_TARGETS = {
    "NaN box": ({"boxes": boxes_at(NAN)}, NonFiniteError, r"finite target boxes but target boxes\[0\]"),
    "empty box": ({"boxes": boxes_at(0, width=0)}, InputError, "object 0 is .*fix or drop the annotation"),
    "endless area": (
        {"boxes": boxes_at(0, width=1e155, height=1e154)},
        InputError,
        r"areas double precision can hold but object 0 is \[0.0, 0.0, 1e\+155, 1e\+154\]; are these pixels",
    ),
    "vanishing area": ({"boxes": boxes_at(0, width=1e-200, height=1e-200)}, InputError, "can hold but object 0 is"),
    "area that is no number": ({"area": torch.tensor([NAN])}, InputError, "areas of at least 0 but .* object 0 is nan"),
    "negative area": ({"area": torch.tensor([-5.0])}, InputError, "areas of at least 0 but .* object 0 is -5.0; fix"),
    "area on no device": ({"area": torch.ones(1).to("meta")}, InputError, "area in the targets: .*meta device"),
    "sparse area": ({"area": torch.ones(1).to_sparse()}, InputError, "area in the targets: .*dense tensor"),
    "area that are a dict": ({"area": {}}, InputError, "expected area in the targets to be a tensor.* got dict"),
    "area of 71 bits": ({"area": 2**70}, InputError, "expected area in the targets to be a tensor.* got int"),
    "ragged area": ({"area": [[1], [1, 2]]}, InputError, "expected area in the targets to be a tensor.* got list"),
    "label": ({"labels": torch.tensor([7])}, InputError, "object 0 has label 7; labels that count background"),
    "difficult": (
        {"difficult": torch.tensor([True, False])},
        InputError,
        "as many boxes as difficult but got 1 boxes, 2",
    ),
}


def test_boxes_up_to_a_quarter_of_the_largest_double_are_judged() -> None:
    """Two of them, and their sum, are still numbers."""
    side = (torch.finfo(torch.float64).max / 4.0) ** 0.5
    for share, fits in ((0.999, True), (1.001, False)):
        box = torch.tensor([[0.0, 0.0, side * share, side]], dtype=torch.float64)
        evaluator = Evaluator(1, "voc12")
        if fits:
            evaluator.update([pred(box, [0.5])], [target(box)])
            assert evaluator.compute().map == 1.0
        else:
            with pytest.raises(InputError, match="double precision"):
                evaluator.update([pred(box, [0.5])], [target(box)])


def test_of_several_wrong_rows_the_first_is_shown() -> None:
    boxes = boxes_at(0, 50, 100, 150)
    for name, wrong, message in (
        ("scores", [0.5, NAN, float("inf"), 0.1], r"scores\[1\] is nan"),
        ("boxes", [0, 50, NAN, float("inf")], r"boxes\[2\] is \[nan, "),
        ("labels", [0, 1, 8, 9], "detection 2 has label 8"),
    ):
        given = pred(boxes, [0.4, 0.3, 0.2, 0.1], [0, 1, 0, 1])
        given[name] = boxes_at(*wrong) if name == "boxes" else torch.tensor(wrong)
        with pytest.raises(InputError, match=message):
            Evaluator(3).update([given], [GOOD_TARGET])


@pytest.mark.parametrize("case", BAD_PREDS)
def test_bad_detections_are_refused_with_the_image(case: str) -> None:
    changes, error, message = BAD_PREDS[case]
    evaluator = Evaluator(2)
    with pytest.raises(error, match=f"image 000123: .*{message}"):
        evaluator.update([GOOD_PRED, spoiled(GOOD_PRED, **changes)], [GOOD_TARGET, spoiled(GOOD_TARGET, **LABELLED)])
    assert evaluator.compute().images == 0  # nothing of the bad batch was kept


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_bad_objects_are_refused_with_the_image(case: str) -> None:
    changes, error, message = BAD_TARGETS[case]
    evaluator = Evaluator(2)
    evaluator.update([GOOD_PRED], [GOOD_TARGET])
    with pytest.raises(error, match=f"image 000123: .*{message}"):
        evaluator.update([GOOD_PRED], [spoiled(GOOD_TARGET, **changes, **LABELLED)])
    assert evaluator.compute().images == 1


def test_labels_of_one_image_may_be_unsigned_and_of_another_signed() -> None:
    evaluator, expected = Evaluator(2), Evaluator(2)
    unsigned = spoiled(GOOD_PRED, labels=GOOD_PRED["labels"].to(torch.uint16))
    evaluator.update([GOOD_PRED, unsigned], [GOOD_TARGET] * 2)
    expected.update([GOOD_PRED] * 2, [GOOD_TARGET] * 2)
    assert evaluator.compute().map == expected.compute().map


def test_images_without_id_are_named_by_their_number() -> None:
    evaluator = Evaluator(1)
    evaluator.update([GOOD_PRED], [GOOD_TARGET])
    with pytest.raises(NonFiniteError, match="image 1: "):
        evaluator.update([pred(boxes_at(0), [NAN])], [GOOD_TARGET])


def test_inclusive_protocols_accept_boxes_of_one_pixel() -> None:
    one = boxes_at(5, width=0, height=0)
    evaluator = Evaluator(1, "voc07-devkit")
    evaluator.update([pred(one, [0.9])], [target(one)])
    assert evaluator.compute().map == 1.0
    with pytest.raises(InputError, match="no negative width"):
        evaluator.update([pred(boxes_at(5, width=-1.5), [0.9])], [target(one)])
    with pytest.raises(InputError, match="positive width"):
        evaluator.update([pred(one, [0.9])], [target(boxes_at(5, width=-1))])


def test_empty_detections_are_refused_on_request() -> None:
    evaluator = Evaluator(2, empty_boxes="error")
    with pytest.raises(InputError, match=r'positive width and height but detection 0 is .*empty_boxes="count"'):
        evaluator.update([pred(boxes_at(0, 30, height=0), [0.9, 0.8])], [GOOD_TARGET])


def test_image_that_comes_again_is_warned_of_once() -> None:
    evaluator, labelled = Evaluator(2), spoiled(GOOD_TARGET, **LABELLED)
    evaluator.update([GOOD_PRED, GOOD_PRED], [labelled, GOOD_TARGET])
    evaluator.update([GOOD_PRED], [spoiled(GOOD_TARGET, image_id=1)])  # 1 is only where the one without id stands
    with pytest.warns(LikelyMistakeWarning, match=r"image 000123 was given before.*counts twice; call reset\(\)"):
        evaluator.update([GOOD_PRED], [labelled])
    evaluator.update([GOOD_PRED], [labelled])
    evaluator.reset()
    evaluator.update([GOOD_PRED], [labelled])
    with pytest.warns(LikelyMistakeWarning, match="image 7 was given before"):
        evaluator.update([GOOD_PRED] * 2, [spoiled(GOOD_TARGET, image_id=torch.tensor([7]))] * 2)


def test_boxes_beyond_the_areas_of_coco_are_warned_of() -> None:
    """pycocotools leaves out objects and unmatched detections of more than 1e10 square pixels."""
    wide = boxes_at(0, width=2e5, height=1e5)
    evaluator = Evaluator(2, "coco")
    evaluator.update([pred(wide, [0.9])], [spoiled(target(wide), **LABELLED)])
    for call in (evaluator.compute, evaluator.coco_numbers):
        with pytest.warns(
            LikelyMistakeWarning, match=r"1 objects and 1 detections have areas beyond 1e\+10 .*of image 000123"
        ):
            call()
    everything = {"all": (0.0, 1e12), "large": (9216.0, 1e12)}
    assert evaluator.coco_numbers(areas=everything)["AP"] == pytest.approx(1.0)
    voc = Evaluator(2, "voc12")
    voc.update([pred(wide, [0.9])], [target(wide)])
    assert voc.compute().of_class(0).ap == 1.0


@pytest.mark.parametrize(
    ("preds", "targets", "message"),
    [
        (GOOD_PRED, [GOOD_TARGET], "preds to be a list with one dict per image but got dict"),
        ([GOOD_PRED], torch.zeros(1), "targets to be a list .* but got Tensor"),
        ([GOOD_PRED, GOOD_PRED], [GOOD_TARGET], "as many preds as targets but got 2 and 1"),
        ([{"boxes": boxes_at(0)}], [GOOD_TARGET], r"predictions to be a dict with 'scores' but got \['boxes'\]"),
        ([GOOD_PRED], [boxes_at(0)], "targets to be a dict with 'boxes' but got Tensor"),
    ],
)
def test_wrong_containers_are_refused(preds: Any, targets: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Evaluator(2).update(preds, targets)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 0}, "num_classes to be an integer of at least 1 but got 0"),
        ({"num_classes": 2, "protocol": "voc7"}, "Did you mean 'voc07'"),
        ({"num_classes": 2, "protocol": ["coco", "coco"]}, "different names"),
        ({"num_classes": 2, "protocol": []}, "one or more protocols"),
        ({"num_classes": 2, "class_names": ["a"]}, "2 class names"),
        ({"num_classes": 2, "boxes": "pixels"}, "boxes to be one of"),
        ({"num_classes": 2, "empty_boxes": "drop"}, "empty_boxes to be one of"),
    ],
)
def test_bad_options_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Evaluator(**arguments)


def test_asking_for_what_is_not_there_names_what_is() -> None:
    result = Evaluator(2, "voc12", ["cat", "dog"]).compute()
    with pytest.raises(ConfigError, match="Did you mean 'dog'"):
        result.of_class("dig")
    with pytest.raises(ConfigError, match=r"protocol to be one of \['voc12'\]"):
        result["coco"]
    with pytest.raises(InputError, match="label in"):
        result.of_class(2)
    with pytest.raises(ConfigError, match="thresholds"):
        result.map_at(0.75)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_detections": (10, 1, 100)}, "three increasing max_detections"),
        ({"max_detections": (1, 100)}, "three increasing max_detections"),
        ({"areas": {"tiny": (0, 10)}}, "areas among"),
    ],
)
def test_bad_options_of_the_twelve_numbers_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Evaluator(1).coco_numbers(**options)


def test_missing_packages_are_named_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Evaluator(1).compute()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r'pip install .*\[train\]"'):
        result.plot()
