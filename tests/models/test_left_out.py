"""Windows in regions that nobody judges, against a count of pixels; and a model's loss that does not see them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy, softplus

from stepgrad.evaluation import Evaluator
from stepgrad.losses.detection import MAPLoss
from stepgrad.losses.functional import mean_average_precision
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss
from stepgrad.metric.protocol import get_protocol
from stepgrad.models.left_out import LEAST_SHARE, covered_shares, hidden_pairs, hide, judged, judged_pairs, split_crowds


def some_boxes(count: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 12, (count, 2, 2), generator=g).double().sort(dim=1).values.flatten(1)


def test_shares_of_windows_in_regions_are_those_counted_by_pixels() -> None:
    boxes, regions = some_boxes(20, seed=0).split(10)
    centres = torch.stack(torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij"), dim=-1).flatten(0, 1) + 0.5

    def inside(box: torch.Tensor) -> torch.Tensor:
        return ((centres > box[:2]) & (centres < box[2:])).all(dim=1)

    for box, shares in zip(boxes, covered_shares(boxes, regions), strict=True):
        pixels = inside(box)
        expected = [float((pixels & inside(r)).sum() / max(1, int(pixels.sum()))) for r in regions]
        assert shares.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("regions", [0, 1, 6])
@pytest.mark.parametrize("by_class", [False, True])
def test_pairs_are_hidden_by_regions_of_their_class(regions: int, by_class: bool) -> None:
    N, K = 30, 3
    boxes = some_boxes(N * K, seed=1).view(N, K, 4) if by_class else some_boxes(N, seed=1)
    places = some_boxes(regions, seed=2)
    columns = torch.randint(0, K, (regions,), generator=torch.Generator().manual_seed(3))
    found = hidden_pairs(boxes, places, columns, K)
    for n in range(N):
        for k in range(K):
            own = (boxes[n, k] if by_class else boxes[n])[None]
            expected = any(
                float(covered_shares(own, place[None])) >= LEAST_SHARE
                for place, column in zip(places, columns.tolist(), strict=True)
                if column == k
            )
            assert bool(found[n, k]) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_hidden_logits_cost_nothing_where_they_should_be_low(dtype: torch.dtype) -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    hidden = torch.tensor([[True, True, True], [False, True, True], [False, False, False], [True, False, True]])
    apart = softplus(hide(logits, hidden))
    assert (apart[hidden] < 1e-6).all()
    assert hide(logits, hidden).sigmoid().log().isfinite().all()
    (gradient,) = torch.autograd.grad(apart.sum(), logits)
    assert torch.equal(gradient == 0, hidden)
    background = torch.nn.functional.pad(hide(logits, hidden), (1, 0))
    loss = cross_entropy(background, torch.zeros(4, dtype=torch.long), reduction="none")
    assert loss[0] == 0
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.equal(gradient == 0, hidden)


@pytest.mark.parametrize("protocol", ["voc12", "voc07", "coco"])
def test_windows_in_regions_are_neither_right_nor_wrong_by_any_protocol(protocol: str) -> None:
    """mAP of the lists that are left is that of lists from which an obvious loop has taken the windows in regions."""
    objects, regions = torch.tensor([[0, 0, 10, 10], [40, 0, 50, 10.0]]), torch.tensor([[20, 0, 60, 30.0]])
    target = {
        "boxes": torch.cat([objects, regions, regions]),
        "labels": torch.tensor([0, 0, 0, 1]),
        "iscrowd": torch.tensor([False, False, True, True]),
    }
    boxes = torch.tensor(
        [[0, 0, 10, 10], [22, 2, 32, 12], [40, 0, 50, 10], [0, 20, 10, 30], [15, 0, 24, 9], [12, 0, 22, 9.0]]
    )
    scores = torch.tensor([0.5, 0.9, 0.3, 0.4, 0.8, 0.7])
    outside = [0, 2, 3, 4, 5]  # the second window alone lies in the region by half and finds nothing
    rules = get_protocol(protocol)
    pairs = ScoredPairs(scores.requires_grad_(), boxes, *(torch.zeros(6, dtype=torch.long) for _ in range(2)))
    loss_fn = MAPLoss(2, protocol=protocol, nms_threshold=None, absent_classes="skip")
    ragged_map_loss(loss_fn, *judged_pairs(pairs, [target], rules)).backward()
    by_loop = mean_average_precision(
        [scores.detach()[outside, None].expand(-1, 2)],
        [boxes[outside]],
        [{"boxes": objects, "labels": torch.tensor([0, 0])}],
        protocol=protocol,
        nms_threshold=None,
        absent_classes="skip",
    )
    assert loss_fn.metrics["map"] == pytest.approx(by_loop.map)
    assert loss_fn.metrics["objects"] == 2
    assert scores.grad[1] == 0
    evaluator = Evaluator(2, replace(rules, absent_classes="skip"))
    found = {"boxes": boxes, "scores": scores.detach(), "labels": torch.zeros(6, dtype=torch.long)}
    left, there = judged(found, target, rules)
    evaluator.update([left], [there])
    assert evaluator.compute().map == pytest.approx(by_loop.map)


def test_a_mask_that_finds_an_object_counts_wherever_it_lies() -> None:
    box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    target = {
        "boxes": torch.cat([box, 2 * box]),
        "labels": torch.tensor([0, 0]),
        "iscrowd": torch.tensor([False, True]),
    }
    zero = torch.zeros(2, dtype=torch.long)
    tables = [torch.tensor([[0.1, 1.0], [0.9, 1.0]])]
    pairs = ScoredPairs(torch.tensor([0.9, 0.8]), box.repeat(2, 1), zero, zero, overlaps=tables)
    left, there = judged_pairs(pairs, [target], get_protocol("voc12"))
    assert left.scores.tolist() == pytest.approx([0.8])
    assert left.overlaps[0].tolist() == [pytest.approx([0.9])]
    assert there[0]["labels"].tolist() == [0]


def test_masks_as_run_lengths_are_divided_like_tensors() -> None:
    runs = [{"size": [2, 2], "counts": [0, 4]}, {"size": [2, 2], "counts": [1, 3]}]
    target = {
        "boxes": torch.zeros(2, 4),
        "labels": torch.tensor([0, 1]),
        "masks": runs,
        "iscrowd": torch.tensor([1, 0]),
    }
    objects, crowds = split_crowds(target)
    assert (objects["masks"], crowds["masks"]) == (runs[1:], runs[:1])
