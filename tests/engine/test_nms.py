"""NMS against its oracle, and the laws of a greedy kept set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import InputError
from stepgrad.reference.boxes import iou
from stepgrad.reference.nms import by_score, nms
from tests.scenes import over_seeds, random_batch

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def crowded(seed: int, windows: int = 40, ties: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    batch = random_batch(np.random.default_rng(seed), windows=windows, clusters=4, ties=ties)
    return torch.tensor(batch.boxes[0]), torch.tensor(batch.scores[0][:, 0])


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("ties", [False, True])
@over_seeds(10, 300)
def test_nms_equals_the_oracle(seed: int, ties: bool, threshold: float) -> None:
    boxes, scores = crowded(seed, windows=1 + 5 * seed % 60, ties=ties)
    keep, suppressor = sg.nms(boxes, scores, threshold)
    expected_keep, expected_suppressor = nms(boxes.numpy(), scores.tolist(), threshold)
    assert keep.tolist() == expected_keep
    assert suppressor.tolist() == expected_suppressor


@over_seeds(20, 500)
def test_kept_windows_are_pairwise_within_the_threshold(seed: int) -> None:
    boxes, scores = crowded(seed)
    keep, _ = sg.nms(boxes, scores, 0.3)
    overlaps = iou(boxes[keep], boxes[keep])
    np.fill_diagonal(overlaps, 0.0)
    assert (overlaps <= 0.3).all()


@over_seeds(20, 500)
def test_nms_is_idempotent(seed: int) -> None:
    boxes, scores = crowded(seed, ties=seed % 2 == 0)
    keep, _ = sg.nms(boxes, scores, 0.3)
    again, suppressor = sg.nms(boxes[keep], scores[keep], 0.3)
    assert again.tolist() == list(range(len(keep)))
    assert (suppressor == -1).all()


@over_seeds(20, 500)
def test_every_suppressed_window_overlaps_a_kept_window_that_ranks_above_it(seed: int) -> None:
    boxes, scores = crowded(seed, ties=seed % 2 == 0)
    keep, suppressor = sg.nms(boxes, scores, 0.3)
    place = {b: rank for rank, b in enumerate(by_score(scores.tolist()))}
    for b in range(len(boxes)):
        d = int(suppressor[b])
        assert (d == -1) == (b in keep.tolist())
        if d >= 0:
            assert d in keep.tolist()
            assert place[d] < place[b]
            assert iou(boxes[b], boxes[d]).item() > 0.3


def test_equal_overlap_does_not_suppress() -> None:
    ten_wide, seven_of_them = [0.0, 0.0, 10.0, 1.0], [7.0, 0.0, 10.0, 1.0]  # IoU 3/10
    boxes = torch.tensor([ten_wide, seven_of_them], dtype=torch.float64)
    scores = torch.tensor([2.0, 1.0])
    assert sg.nms(boxes, scores, 0.3)[0].tolist() == [0, 1]
    assert sg.nms(boxes, scores, np.nextafter(0.3, 0.0))[0].tolist() == [0]
    # thresholds are compared in float64 whatever the dtype of the boxes
    assert sg.nms(boxes.float(), scores, 0.3)[0].tolist() == [0, 1]


def test_equal_scores_keep_the_lower_index() -> None:
    boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0]] * 5)
    keep, suppressor = sg.nms(boxes, torch.ones(5), 0.5)
    assert keep.tolist() == [0]
    assert suppressor.tolist() == [-1, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nms_takes_every_float_type(dtype: torch.dtype) -> None:
    boxes, scores = crowded(3, ties=True)
    keep, suppressor = sg.nms(boxes.to(dtype), scores.to(dtype), 0.3)
    expected = nms(boxes.to(dtype).double().numpy(), scores.to(dtype).tolist(), 0.3)
    assert (keep.tolist(), suppressor.tolist()) == expected


def test_nms_of_nothing_is_nothing() -> None:
    keep, suppressor = sg.nms(torch.zeros(0, 4), torch.zeros(0), 0.3)
    assert keep.shape == suppressor.shape == (0,)


@pytest.mark.parametrize("wrong", [None, 1, "x", [[0, 0, 1, 1]], np.zeros((2, 4))], ids=lambda v: type(v).__name__)
def test_nms_refuses_what_is_no_tensor(wrong: Any) -> None:
    with pytest.raises(InputError, match="Expected boxes to be a tensor"):
        sg.nms(wrong, torch.zeros(2), 0.3)
    with pytest.raises(InputError, match="Expected scores to be a tensor"):
        sg.nms(torch.zeros(2, 4), wrong, 0.3)


@pytest.mark.parametrize("make", [lambda t: t.to("meta"), lambda t: t.to_sparse(), lambda t: t.to(torch.float8_e4m3fn)])
def test_nms_refuses_tensors_without_readable_numbers(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(InputError, match="Expected a"):
        sg.nms(make(torch.ones(2, 4)), torch.zeros(2), 0.3)
    with pytest.raises(InputError, match="Expected a"):
        sg.nms(torch.ones(2, 4), make(torch.zeros(2)), 0.3)


@pytest.mark.parametrize("kind", [torch.tensor, np.float32, np.array], ids=lambda kind: kind.__name__)
def test_nms_takes_a_threshold_of_any_type_of_number(kind: Any) -> None:
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0]])
    keep, _ = sg.nms(boxes, torch.tensor([0.5, 0.25]), kind(0.25))
    assert keep.tolist() == [0]
