"""Bad numbers and malformed input: an error that names image and index, or a finite answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError, NonFiniteError
from tests.scenes import random_batch

Arguments = tuple[list[torch.Tensor], list[torch.Tensor], list[dict[str, torch.Tensor]]]
Spoil = Callable[[Arguments], None]
NAN, INF = float("nan"), float("inf")

CALLS: dict[str, Callable[[Arguments], Any]] = {
    "MAPLoss": lambda a: sg.MAPLoss(2)(*a),
    "mean_average_precision": lambda a: sg.mean_average_precision(*a, protocol="voc12", nms_threshold=0.3),
    "map_steps": lambda a: sg.map_steps(*a, protocol="voc12", nms_threshold=0.3),
    "map_pseudogradient": lambda a: sg.map_pseudogradient(*a, protocol="voc12", nms_threshold=0.3),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


def good() -> Arguments:
    """Two images of five windows and three objects each."""
    scores, boxes, targets = [], [], []
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        corner, size = torch.rand(5, 2, generator=generator) * 20, torch.rand(5, 2, generator=generator) * 10 + 5
        scores.append(torch.randn(5, 2, generator=generator))
        boxes.append(torch.cat([corner, corner + size], dim=1))
        targets.append({"boxes": boxes[-1][:3].clone(), "labels": torch.tensor([0, 1, 0])})
    return scores, boxes, targets


def put(part: int, place: tuple[int, int], value: float) -> Spoil:
    """Write one number into scores (0) or boxes (1) of image 1."""

    def spoil(arguments: Arguments) -> None:
        arguments[part][1][place] = value  # type: ignore[index]

    return spoil


def put_target(place: tuple[int, int], value: float) -> Spoil:
    def spoil(arguments: Arguments) -> None:
        arguments[2][1]["boxes"][place] = value

    return spoil


NON_FINITE = {
    "nan score": (put(0, (3, 1), NAN), "3"),
    "+inf score": (put(0, (3, 1), INF), "3"),
    "-inf score": (put(0, (3, 1), -INF), "3"),
    "nan window": (put(1, (4, 2), NAN), "4"),
    "inf window": (put(1, (4, 2), INF), "4"),
    "-inf window": (put(1, (4, 0), -INF), "4"),
    "nan object": (put_target((2, 0), NAN), "2"),
    "inf object": (put_target((2, 3), INF), "2"),
}


@calls
@pytest.mark.parametrize(("spoil", "index"), NON_FINITE.values(), ids=NON_FINITE.keys())
def test_non_finite_numbers_are_refused_with_image_and_index(
    spoil: Spoil, index: str, call: Callable[[Arguments], Any]
) -> None:
    arguments = good()
    spoil(arguments)
    with pytest.raises(NonFiniteError) as caught:
        call(arguments)
    assert names(str(caught.value), image=1, index=index)


def names(message: str, image: int, index: str | None = None) -> bool:
    """The message tells which image, and which window or object."""
    found = re.search(rf"image {image}\b", message, flags=re.IGNORECASE)
    return bool(found) and (index is None or bool(re.search(rf"\b{index}\b", message.replace(found.group(), ""))))


def flip_window(arguments: Arguments) -> None:
    arguments[1][1][4] = torch.tensor([5.0, 5.0, 4.0, 9.0])


def flip_object(arguments: Arguments) -> None:
    arguments[2][1]["boxes"][2] = torch.tensor([5.0, 5.0, 9.0, 4.0])


def flatten_object(arguments: Arguments) -> None:
    arguments[2][1]["boxes"][2] = torch.tensor([5.0, 5.0, 9.0, 5.0])


def label_too_large(arguments: Arguments) -> None:
    arguments[2][1]["labels"][2] = 2


def label_negative(arguments: Arguments) -> None:
    arguments[2][1]["labels"][2] = -1


@calls
@pytest.mark.parametrize(
    ("spoil", "index"),
    [(flip_window, "4"), (flip_object, "2"), (flatten_object, "2"), (label_too_large, "2"), (label_negative, "2")],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_impossible_boxes_and_labels_are_refused_with_image_and_index(
    spoil: Spoil, index: str, call: Callable[[Arguments], Any]
) -> None:
    arguments = good()
    spoil(arguments)
    with pytest.raises(InputError) as caught:
        call(arguments)
    assert names(str(caught.value), image=1, index=index)


def replace_part(part: int, change: Callable[[Any], Any]) -> Spoil:
    def spoil(arguments: Arguments) -> None:
        arguments[part][1] = change(arguments[part][1])

    return spoil


def change_target(key: str, change: Callable[[torch.Tensor], Any]) -> Spoil:
    return replace_part(2, lambda t: t | {key: change(t[key])})


def add_flags(make: Callable[[torch.Tensor], Any]) -> Spoil:
    return replace_part(2, lambda t: t | {"difficult": make(t["labels"])})


UNREADABLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "without numbers": lambda t: t.to("meta"),
    "that are sparse": lambda t: t.to_sparse(),
    "of eight bits": lambda t: t.to(torch.float8_e4m3fn),
    "of complex numbers": lambda t: t.to(torch.complex64),
    "beyond 63 bits": lambda t: torch.full_like(t, 2**63, dtype=torch.uint64),
    "that are None": lambda t: None,
    "that are a string": lambda t: "x",
    "that are a dict": lambda t: {},
    "that are an array of objects": lambda t: np.array([None, "x"], dtype=object),
    "that are a ragged list": lambda t: [[1], [1, 2]],
    "that are an int of 71 bits": lambda t: 2**70,
    "that are an int of 400 digits": lambda t: 10**400,
}
"""What no tensor of numbers can be made of."""
WRONG_SHAPES: dict[str, Spoil] = {
    "scores of one dimension": replace_part(0, lambda s: s[:, 0]),
    "scores with another number of classes": replace_part(0, lambda s: s[:, :1]),
    "scores of integers": replace_part(0, lambda s: s.long()),
    "scores of complex numbers": replace_part(0, lambda s: s.to(torch.complex64)),
    "scores that are a list": replace_part(0, lambda s: s.tolist()),
    "boxes of three numbers": replace_part(1, lambda b: b[:, :3]),
    "boxes of another image": replace_part(1, lambda b: b[:4]),
    "boxes for another number of classes": replace_part(1, lambda b: b[:, None].repeat(1, 3, 1)),
    "boxes of truth values": replace_part(1, lambda b: b.bool()),
    "object boxes of one dimension": change_target("boxes", lambda b: b.flatten()),
    "labels of another length": change_target("labels", lambda v: v[:2]),
    "labels that are fractions": change_target("labels", lambda v: v + 0.5),
    "target without boxes": replace_part(2, lambda t: {"labels": t["labels"]}),
    "target without labels": replace_part(2, lambda t: {"boxes": t["boxes"]}),
    "target that is a list": replace_part(2, lambda t: [t]),
    **{f"object boxes {kind}": change_target("boxes", make) for kind, make in UNREADABLE.items()},
    **{f"labels {kind}": change_target("labels", make) for kind, make in UNREADABLE.items()},
    **{f"difficult {kind}": add_flags(make) for kind, make in UNREADABLE.items()},
    "difficult of another length": replace_part(2, lambda t: t | {"difficult": torch.zeros(2, dtype=torch.bool)}),
}


@calls
@pytest.mark.parametrize("spoil", WRONG_SHAPES.values(), ids=WRONG_SHAPES.keys())
def test_wrong_shapes_and_types_are_refused_with_the_image(spoil: Spoil, call: Callable[[Arguments], Any]) -> None:
    arguments = good()
    spoil(arguments)
    with pytest.raises(InputError) as caught:
        call(arguments)
    assert names(str(caught.value), image=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.uint16, torch.uint64])
def test_flags_of_every_type_are_flags(dtype: torch.dtype) -> None:
    scores, boxes, targets = good()
    difficult = torch.tensor([True, False, False])
    expected = sg.mean_average_precision(scores, boxes, [t | {"difficult": difficult} for t in targets])
    found = sg.mean_average_precision(scores, boxes, [t | {"difficult": difficult.to(dtype)} for t in targets])
    assert float(found) == float(expected) != float(sg.mean_average_precision(scores, boxes, targets))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_boxes_of_one_image_mix_with_signed_ones_of_another(dtype: torch.dtype) -> None:
    scores, boxes, targets = good()
    whole = [b.long() for b in boxes]
    mixed = [whole[0], whole[1].to(dtype)]
    assert float(sg.mean_average_precision(scores, mixed, targets)) == float(
        sg.mean_average_precision(scores, whole, targets)
    )


@calls
@pytest.mark.parametrize("part", [0, 1, 2], ids=["scores", "boxes", "targets"])
def test_lists_of_different_length_are_refused(part: int, call: Callable[[Arguments], Any]) -> None:
    arguments = good()
    del arguments[part][1]
    with pytest.raises(InputError, match=r"\b1\b"):
        call(arguments)


@calls
def test_a_single_tensor_instead_of_a_list_is_refused(call: Callable[[Arguments], Any]) -> None:
    scores, boxes, targets = good()
    with pytest.raises(InputError):
        call((scores[0], boxes[0], targets[0]))  # type: ignore[arg-type]


def test_a_good_batch_is_accepted_by_every_call() -> None:
    for call in CALLS.values():
        call(good())


@pytest.mark.parametrize("loss", [sg.MAPLoss(2), sg.DistributedMAPLoss(2)], ids=lambda loss: type(loss).__name__)
def test_detections_as_torchmetrics_takes_them_are_refused_with_the_way_out(loss: Any) -> None:
    _, boxes, targets = good()
    detections = [{"boxes": b, "scores": torch.rand(len(b)), "labels": torch.zeros(len(b)).long()} for b in boxes]
    for arguments in ((detections, targets), (detections, boxes, targets)):
        with pytest.raises(InputError, match=r"before NMS.*Evaluator"):
            loss(*arguments)


def test_a_call_without_targets_is_refused() -> None:
    scores, boxes, _ = good()
    with pytest.raises(InputError, match="targets to be a list"):
        sg.MAPLoss(2)(scores, boxes)


def as_bounding_boxes(boxes: torch.Tensor, form: str = "XYXY", canvas: tuple[int, int] = (40, 40)) -> Any:
    from torchvision.tv_tensors import BoundingBoxes

    return BoundingBoxes(boxes, format=form, canvas_size=canvas)


@calls
@pytest.mark.parametrize("form", ["XYWH", "CXCYWH"])
def test_boxes_that_say_they_are_no_corners_are_refused(form: str, call: Callable[[Arguments], Any]) -> None:
    scores, boxes, targets = good()
    with pytest.raises(InputError, match=f"image 1: expected boxes.*{form}.*convert_bounding_box_format"):
        call((scores, [boxes[0], as_bounding_boxes(boxes[1], form)], targets))
    targets[1]["boxes"] = as_bounding_boxes(targets[1]["boxes"], form)
    with pytest.raises(InputError, match=f"image 1: expected target boxes.*{form}"):
        call((scores, boxes, targets))


@calls
def test_bounding_boxes_of_corners_are_plain_boxes(call: Callable[[Arguments], Any]) -> None:
    scores, boxes, targets = good()
    wrapped = [{**t, "boxes": as_bounding_boxes(t["boxes"])} for t in targets]
    call((scores, [as_bounding_boxes(b) for b in boxes], wrapped))


@calls
def test_boxes_and_targets_of_two_frames_are_refused(call: Callable[[Arguments], Any]) -> None:
    scores, boxes, targets = good()
    targets[1]["boxes"] = as_bounding_boxes(targets[1]["boxes"], canvas=(480, 640))
    with pytest.raises(InputError, match=r"image 1.*\(40, 40\) and \(480, 640\)"):
        call((scores, [boxes[0], as_bounding_boxes(boxes[1])], targets))


ESTIMATORS = pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])


def finite_loss(scores: list[torch.Tensor], estimator: str, **options: Any) -> list[torch.Tensor]:
    """Forward and backward on `good()` boxes; everything must be finite."""
    _, boxes, targets = good()
    leaves = [s.clone().requires_grad_() for s in scores]
    loss = sg.MAPLoss(2, estimator=estimator, radius=1.0, l4=None, **options)(leaves, boxes, targets)
    loss.backward()
    assert torch.isfinite(loss)
    for leaf in leaves:
        assert leaf.grad.dtype == leaf.dtype
        assert torch.isfinite(leaf.grad).all()
    return [leaf.grad for leaf in leaves]


@ESTIMATORS
@pytest.mark.parametrize("clip", [None, 0.1])
def test_all_scores_equal(estimator: str, clip: float | None) -> None:
    finite_loss([torch.full((5, 2), 0.5)] * 2, estimator, clip=clip)


@ESTIMATORS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_1e38_without_l4(estimator: str, dtype: torch.dtype) -> None:
    scores = [(s.to(dtype).sign() * 1e38) for s in good()[0]]
    finite_loss(scores, estimator, clip=None)


@ESTIMATORS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("extreme", ["largest", "smallest"])
def test_extreme_scores_of_every_type_give_a_finite_gradient(estimator: str, dtype: torch.dtype, extreme: str) -> None:
    """The largest numbers of the type, and its subnormal neighbours of zero: distances that do not survive 1 / d."""
    unit = torch.finfo(dtype).max if extreme == "largest" else torch.finfo(dtype).smallest_normal
    ranks = torch.arange(10.0, dtype=torch.float64).reshape(2, 5, 1).repeat(1, 1, 2) - 4
    scores = [(r / 5 * unit).to(dtype) for r in ranks.unbind(0)]
    assert all(torch.isfinite(s).all() for s in scores)
    finite_loss(scores, estimator, clip=None, min_step=0.0, balance="none")
    finite_loss(scores, estimator, clip=None, min_step=0.0, balance="class")


@pytest.mark.parametrize("estimator", ["mee", "sde"])
def test_one_ulp_between_scores_gives_a_finite_gradient(estimator: str) -> None:
    rng = np.random.default_rng(0)
    batch = random_batch(rng, windows=20, images=1, objects=6)
    order = np.argsort(np.argsort(batch.scores[0], axis=0), axis=0)
    close = batch.with_scores([1.0 + order * 2.0**-52])
    (gradient,) = sg.map_pseudogradient(*close.tensors(), protocol="voc12", nms_threshold=None, estimator=estimator)
    assert torch.isfinite(gradient).all()
    assert (gradient != 0).any()


@pytest.mark.parametrize("setting", [np.array([0.5]), torch.tensor([0.5])], ids=["numpy", "torch"])
def test_an_array_of_one_number_is_no_setting(setting: Any) -> None:
    """Some versions of NumPy take the number out, others warn or refuse."""
    with pytest.raises(ConfigError, match="Expected eps to be a finite number > 0"):
        sg.MAPLoss(1, eps=setting)


@pytest.mark.parametrize("setting", [np.array(0.5), np.float32(0.5), torch.tensor(0.5)], ids=["0-d", "numpy", "torch"])
def test_a_number_of_any_library_is_a_setting(setting: Any) -> None:
    assert sg.MAPLoss(1, eps=setting).objective.eps == 0.5
