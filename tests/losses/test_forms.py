"""Windows as lists, as one tensor of all images, or of one class without its dimension: the same loss and the same gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import InputError

B, N = 3, 12
LOSSES: dict[str, Callable[[int], torch.nn.Module]] = {
    "map": lambda K: sg.MAPLoss(K),
    "f1": lambda K: sg.DetectionLoss(K, metric="f1"),
    "distributed": lambda K: sg.DistributedMAPLoss(K),
}


def scene(K: int, seed: int = 0) -> tuple[Tensor, Tensor, list[dict[str, Tensor]]]:
    generator = torch.Generator().manual_seed(seed)
    corner = 40 * torch.rand(B, N, 2, generator=generator, dtype=torch.float64)
    size = 10 + 10 * torch.rand(B, N, 2, generator=generator, dtype=torch.float64)
    boxes = torch.cat([corner, corner + size], dim=2)
    scores = torch.randn(B, N, K, generator=generator, dtype=torch.float64)
    targets = [{"boxes": b[:3] + 1.0, "labels": torch.arange(3) % K} for b in boxes]
    return scores, boxes, targets


def loss_and_gradient(
    loss_fn: torch.nn.Module, scores: Tensor, form: Callable[[Tensor], Any], *more: Any
) -> tuple[float, Tensor]:
    leaf = scores.clone().requires_grad_()
    loss = loss_fn(form(leaf), *more)
    loss.backward()
    assert leaf.grad is not None
    assert leaf.grad.count_nonzero() > 0
    return loss.item(), leaf.grad


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("by_class", [False, True])
def test_one_tensor_of_all_images_is_the_list_of_them(name: str, by_class: bool) -> None:
    K = 2
    loss_fn = LOSSES[name](K)
    scores, boxes, targets = scene(K)
    if by_class:
        boxes = torch.stack([boxes, boxes + 1.0], dim=2)
    value, gradient = loss_and_gradient(loss_fn, scores, list, list(boxes), targets)
    same_value, same_gradient = loss_and_gradient(loss_fn, scores, lambda s: s, boxes, targets)
    assert same_value == value
    assert torch.equal(same_gradient, gradient)


@pytest.mark.parametrize("name", LOSSES)
def test_what_fills_up_a_tensor_changes_nothing_and_has_no_gradient(name: str) -> None:
    K, counts = 2, [12, 7, 0]
    loss_fn = LOSSES[name](K)
    scores, boxes, targets = scene(K)
    mask = torch.arange(N) < torch.tensor(counts)[:, None]
    scores[~mask] = torch.nan  # neither read
    boxes[~mask] = -1.0  # nor counted
    shorter = [b[:n] for b, n in zip(boxes, counts, strict=True)]
    value, gradient = loss_and_gradient(
        loss_fn, scores, lambda s: [s[i, :n] for i, n in enumerate(counts)], shorter, targets
    )
    same_value, same_gradient = loss_and_gradient(loss_fn, scores, lambda s: s, boxes, targets, mask)
    assert same_value == value
    assert torch.equal(same_gradient, gradient)
    assert not same_gradient[~mask].any()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("form", [list, lambda s: s], ids=["list", "tensor"])
def test_scores_of_one_class_need_no_dimension_for_it(name: str, form: Callable[[Tensor], Any]) -> None:
    loss_fn = LOSSES[name](1)
    scores, boxes, targets = scene(1)
    value, gradient = loss_and_gradient(loss_fn, scores, list, list(boxes), targets)
    same_value, same_gradient = loss_and_gradient(loss_fn, scores[..., 0], form, form(boxes), targets)
    assert same_value == value
    assert torch.equal(same_gradient, gradient[..., 0])


BAD = {
    "one dimension of several classes": (
        lambda s, b: (list(s[..., 0]), list(b)),
        2,
        r"image 0: expected scores .*\(N, 2\)",
    ),
    "an image without its list": (lambda s, b: (s[0], b[0]), 2, "a list with one entry per image"),
    "an image of one class without its list": (lambda s, b: (s[0, :, 0], b[0]), 1, "a list with one entry per image"),
    "a tensor beside a list": (lambda s, b: (s, list(b)), 2, r"boxes as list"),
    "a list beside a tensor": (lambda s, b: (list(s), b), 2, "Expected boxes to be a list"),
    "boxes of fewer windows": (lambda s, b: (s, b[:, :5]), 2, r"got scores \(3, 12, 2\) and boxes \(3, 5, 4\)"),
    "other classes than said": (lambda s, b: (s, b), 3, r"a tensor \(B, N, 3\)"),
    "a number": (lambda s, b: (s.sum(), b), 2, r"got scores \(\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_shape_is_answered_by_what_was_expected(case: str) -> None:
    change, K, message = BAD[case]
    scores, boxes, targets = scene(min(K, 2))
    with pytest.raises(InputError, match=message):
        sg.MAPLoss(K)(*change(scores, boxes), targets)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(B, N), r"torch.bool and shape \(3, 12\)"),
        (torch.ones(B, 2, dtype=torch.bool), r"torch.bool \(3, 2\)"),
        ([True] * N, "got list"),
    ],
)
def test_a_mask_says_of_every_window_whether_it_is_one(mask: Any, message: str) -> None:
    scores, boxes, targets = scene(2)
    with pytest.raises(InputError, match=message):
        sg.MAPLoss(2)(scores, boxes, targets, mask)


def test_lists_take_no_mask() -> None:
    scores, boxes, targets = scene(2)
    with pytest.raises(InputError, match="no mask with lists"):
        sg.MAPLoss(2)(list(scores), list(boxes), targets, torch.ones(B, N, dtype=torch.bool))


def test_a_loss_shows_the_settings_that_decide_what_is_trained_for() -> None:
    shown = repr(sg.MAPLoss(20, "voc07", l4=1e-6, balance="none"))
    for part in ("20", "voc07", "nms_threshold=0.3", "match_threshold=0.5", "radius=3.0", "l4=1e-06", "balance='none'"):
        assert part in shown
    assert "clip" not in shown
    assert "radius" not in repr(sg.MAPLoss.paper(20))
    assert "metric='f1'" in repr(sg.DetectionLoss(2, metric="f1"))
    ranking = repr(sg.NDCGLoss(k=10, radius=0.5))
    assert ranking == (
        "NDCGLoss(k=10, gains='exponential', estimator='radius', radius=0.5, balance='query', log=False, "
        "reduction='mean', empty='skip')"
    )
    assert repr(sg.ranking.RecallAtKLoss(k=3)).startswith("RecallAtKLoss(k=3, estimator='mee', balance='none'")
