"""From tensors per image to flat arrays: types, offsets and what an empty batch looks like."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stepgrad.errors import InputError, NonFiniteError
from stepgrad.metric.batch import make_batch

BOX = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
NOTHING = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.float16, np.float32),
        (torch.bfloat16, np.float32),
        (torch.float32, np.float32),
        (torch.float64, np.float64),
    ],
)
def test_scores_keep_the_narrowest_type_that_holds_them_and_boxes_are_double(dtype: torch.dtype, kept: type) -> None:
    batch = make_batch([torch.ones(1, 2, dtype=dtype)], [BOX.to(dtype)], [NOTHING])
    assert batch.scores.dtype == kept
    assert batch.boxes.dtype == np.float64


def test_boxes_in_double_precision_stay_what_they_are() -> None:
    box = torch.tensor([[0.1, 0.2, 10.3, 10.7]], dtype=torch.float64)
    assert make_batch([torch.ones(1, 1)], [box], [NOTHING]).boxes.tolist() == box.tolist()


def test_images_are_found_by_their_offsets() -> None:
    scores = [torch.ones(n, 2) for n in (3, 0, 2)]
    boxes = [BOX.expand(n, 4) for n in (3, 0, 2)]
    batch = make_batch(scores, boxes, [NOTHING, NOTHING, {"boxes": BOX, "labels": torch.tensor([1])}])
    assert batch.offsets.tolist() == [0, 3, 3, 5]
    assert (batch.images, batch.num_classes, batch.boxes_by_class) == (3, 2, False)
    assert (batch.object_images.tolist(), batch.object_labels.tolist()) == ([2], [1])


@pytest.mark.parametrize("classes", [None, 4])
def test_a_batch_without_images_has_the_classes_it_is_told(classes: int | None) -> None:
    batch = make_batch([], [], [], classes)
    assert (batch.images, batch.scores.shape, batch.boxes.shape) == (0, (0, classes or 0), (0, 4))


def test_boxes_of_one_image_by_class_make_all_of_them_so() -> None:
    by_class = torch.arange(8.0).reshape(1, 2, 4)
    batch = make_batch([torch.ones(1, 2)] * 2, [BOX, by_class], [NOTHING] * 2)
    assert batch.boxes.tolist() == [[BOX[0].tolist()] * 2, by_class[0].tolist()]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_wrong_is_named_by_image_and_number(place: int) -> None:
    """The first image has no windows, the third has two."""
    scores, boxes = [torch.ones(n, 2) for n in (0, 1, 2)], [BOX.repeat(n, 1) for n in (0, 1, 2)]
    image, index = [(1, 0), (2, 0), (2, 1)][place]
    wrong_scores, wrong_boxes, swapped = ([t.clone() for t in given] for given in (scores, boxes, boxes))
    wrong_scores[image][index, 1] = torch.nan
    wrong_boxes[image][index, 3] = torch.inf
    swapped[image][index] = torch.tensor([5.0, 0.0, 4.0, 1.0])
    with pytest.raises(NonFiniteError, match=rf"image {image}: .*scores\[{index}, 1\] is nan"):
        make_batch(wrong_scores, boxes, [NOTHING] * 3)
    with pytest.raises(NonFiniteError, match=rf"image {image}: .*boxes\[{index}\] is \[0.0, 0.0, 10.0, inf\]"):
        make_batch(scores, wrong_boxes, [NOTHING] * 3)
    with pytest.raises(InputError, match=rf"image {image}: .*boxes\[{index}\] is \[5.0, 0.0, 4.0, 1.0\]"):
        make_batch(scores, swapped, [NOTHING] * 3)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("side", [2, 3])
def test_an_object_that_cannot_be_is_named_by_image_and_number(side: int, place: int) -> None:
    target = {"boxes": BOX.repeat(3, 1), "labels": torch.tensor([0, 1, 1])}
    without_area = target | {"boxes": target["boxes"].clone()}
    without_area["boxes"][place, side] = 0.0
    outside = target | {"labels": target["labels"].clone()}
    outside["labels"][place] = 2 if side == 2 else -1
    not_finite = target | {"boxes": target["boxes"].clone()}
    not_finite["boxes"][place, side] = torch.nan
    scores, boxes = [torch.ones(1, 2)] * 2, [BOX] * 2
    with pytest.raises(InputError, match=rf"image 1: .*x2 > x1 and y2 > y1 but object {place} is"):
        make_batch(scores, boxes, [NOTHING, without_area])
    with pytest.raises(InputError, match=rf"image 1: .*labels in \[0, 2\).*object {place} has label"):
        make_batch(scores, boxes, [NOTHING, outside])
    with pytest.raises(NonFiniteError, match=rf"image 1: .*but object {place} is"):
        make_batch(scores, boxes, [NOTHING, not_finite])


@pytest.mark.parametrize(
    ("target", "got"),
    [
        (None, "NoneType"),
        ([1], "list"),
        ({"boxes": BOX}, r"\['boxes'\]"),
        ({"labels": BOX, "a": 1}, r"\['a', 'labels'\]"),
    ],
    ids=str,
)
def test_a_target_without_boxes_and_labels_is_refused_with_what_it_has(target: object, got: str) -> None:
    with pytest.raises(
        InputError, match=rf"image 0: expected targets to be a dict with 'boxes' and 'labels' but got {got}"
    ):
        make_batch([torch.ones(1, 1)], [BOX], [target])  # type: ignore[list-item]


def test_flags_are_one_per_object_and_false_where_they_are_missing() -> None:
    two = {"boxes": BOX.repeat(2, 1), "labels": torch.zeros(2, dtype=torch.int64)}
    flags = two | {"difficult": torch.tensor([False, True]), "iscrowd": torch.tensor([1, 0])}
    batch = make_batch([torch.ones(1, 1)] * 2, [BOX] * 2, [two, flags])
    assert batch.difficult.tolist() == [False, False, False, True]
    assert batch.crowd.tolist() == [False, False, True, False]
    for key in ("difficult", "iscrowd"):
        with pytest.raises(InputError, match=rf"image 1: expected 2 values in targets\['{key}'\].*but got 1"):
            make_batch([torch.ones(1, 1)] * 2, [BOX] * 2, [two, two | {key: torch.ones(1)}])
