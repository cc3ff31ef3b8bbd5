"""Lists that differ from class to class: what is not a candidate does not exist."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError, NonFiniteError
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss

K = 3


def scene(seed: int, images: int = 3, windows: int = 25) -> tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]:
    g = torch.Generator().manual_seed(seed)
    scores, boxes, targets = [], [], []
    for _ in range(images):
        corner = torch.rand(windows, K, 2, generator=g) * 40
        boxes.append(torch.cat([corner, corner + 10 + torch.rand(windows, K, 2, generator=g) * 10], dim=-1).double())
        scores.append(torch.randn(windows, K, generator=g, dtype=torch.float64).requires_grad_())
        rows = torch.randint(0, windows, (4,), generator=g)
        labels = torch.randint(0, K - 1, (4,), generator=g)  # the last class has no objects
        targets.append({"boxes": boxes[-1][rows, labels] + 1.0, "labels": labels})
    return scores, boxes, targets


def candidates_of(scores: list[Tensor], boxes: list[Tensor], taken: list[Tensor]) -> ScoredPairs:
    image = torch.cat([torch.full((int(t.sum()),), i) for i, t in enumerate(taken)])
    return ScoredPairs(
        torch.cat([s[t] for s, t in zip(scores, taken, strict=True)]),
        torch.cat([b[t] for b, t in zip(boxes, taken, strict=True)]),
        image,
        torch.cat([torch.where(t)[1] for t in taken]),
    )


OPTIONS = [
    {"estimator": "mee"},
    {"estimator": "sde", "balance": "none", "log": False, "absent_classes": "skip"},
    {"estimator": "radius", "radius": 0.7, "balance": "class+scale", "clip": 0.05, "l4": 1e-3},
    {"estimator": "mee", "protocol": "coco", "nms_threshold": None},
    {"estimator": "mee", "through_nms": "paper", "protocol": "voc07"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v) for v in o.values()))
@pytest.mark.parametrize("seed", range(3))
def test_all_pairs_as_candidates_give_the_loss_of_the_rectangle(seed: int, options: dict[str, object]) -> None:
    scores, boxes, targets = scene(seed)
    loss_fn = sg.MAPLoss(K, **options)
    expected = loss_fn(scores, boxes, targets)
    expected_gradients = torch.autograd.grad(expected, scores)
    metrics = dict(loss_fn.metrics)
    everything = [torch.ones_like(s, dtype=torch.bool) for s in scores]
    loss = ragged_map_loss(loss_fn, candidates_of(scores, boxes, everything), targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-14)
    for found, wanted in zip(torch.autograd.grad(loss, scores), expected_gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)
    assert wanted.any()
    assert loss_fn.metrics["map"] == metrics["map"]
    assert loss_fn.metrics["nonzero"] == metrics["nonzero"]


@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
@pytest.mark.parametrize("seed", range(3))
def test_each_class_ranks_its_own_candidates_only(seed: int, estimator: str) -> None:
    scores, boxes, targets = scene(seed)
    g = torch.Generator().manual_seed(seed)
    taken = [torch.rand(s.shape, generator=g) < 0.6 for s in scores]
    loss_fn = sg.MAPLoss(K, estimator=estimator, radius=1.0, balance="none", absent_classes="skip", eps=0.01)
    loss = ragged_map_loss(loss_fn, candidates_of(scores, boxes, taken), targets)
    gradients = torch.autograd.grad(loss, scores)
    aps, slopes = [], {}
    for c in range(K - 1):
        own = [t[:, c] for t in taken]
        column = (
            [s.detach()[rows, c : c + 1] for s, rows in zip(scores, own, strict=True)],
            [b[rows, c] for b, rows in zip(boxes, own, strict=True)],
            [{"boxes": t["boxes"][t["labels"] == c], "labels": t["labels"][t["labels"] == c] * 0} for t in targets],
        )
        aps.append(sg.mean_average_precision(*column).map)
        slopes[c] = sg.map_pseudogradient(*column, estimator=estimator, radius=1.0, min_step=0.1)
    mean = sum(aps) / len(aps)
    assert loss.item() == pytest.approx(-math.log(mean + 0.01), rel=1e-12)
    for i, (gradient, rows) in enumerate(zip(gradients, taken, strict=True)):
        assert not gradient[~rows].any()
        for c, slope in slopes.items():
            wanted = -slope[i][:, 0] / (mean + 0.01) / len(aps)
            torch.testing.assert_close(gradient[rows[:, c], c], wanted, rtol=1e-10, atol=1e-14)


def test_given_overlaps_and_neighbours_give_the_loss_of_the_rectangle_with_them() -> None:
    scores, boxes, targets = scene(4)
    scores = [s[:, :1].detach().requires_grad_() for s in scores]  # one class, so candidates are windows
    boxes = [b[:, :1] for b in boxes]
    targets = [{**target, "labels": 0 * target["labels"]} for target in targets]
    g = torch.Generator().manual_seed(0)
    overlaps = [torch.rand(25, 4, generator=g, dtype=torch.float64) for _ in scores]
    near = [(torch.rand(25, 25, generator=g) < 0.1).triu(1).nonzero() for _ in scores]
    loss_fn = sg.MAPLoss(1)
    expected = loss_fn(scores, [b[:, 0] for b in boxes], targets, overlaps=overlaps, neighbours=near)
    kept = loss_fn.metrics["kept"]
    everything = candidates_of(scores, boxes, [torch.ones_like(s, dtype=torch.bool) for s in scores])
    found = ragged_map_loss(loss_fn, replace(everything, overlaps=overlaps, neighbours=near), targets)
    assert found.item() == pytest.approx(expected.item(), rel=1e-14)
    assert loss_fn.metrics["kept"] == kept < 75
    for a, b in zip(torch.autograd.grad(found, scores), torch.autograd.grad(expected, scores), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)
    outside = replace(everything, neighbours=[*near[:2], torch.tensor([[0, 25]])])
    with pytest.raises(InputError, match=r"image 2: expected neighbours among 25 candidates"):
        ragged_map_loss(loss_fn, outside, targets)


def test_no_candidates_and_no_objects_give_a_loss_on_the_graph() -> None:
    loss_fn = sg.MAPLoss(K)
    scores = torch.zeros(0, requires_grad=True)
    nothing = ScoredPairs(scores, torch.zeros(0, 4), torch.zeros(0).long(), torch.zeros(0).long())
    for target in (
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long()},
        {"boxes": torch.tensor([[0.0, 0.0, 1.0, 1.0]]), "labels": torch.tensor([1])},
    ):
        loss = ragged_map_loss(loss_fn, nothing, [target])
        loss.backward()
        assert loss.item() == pytest.approx(-math.log(0.01))


@pytest.mark.parametrize(
    ("score", "box", "kind", "words"),
    [
        (math.nan, [0.0, 0.0, 1.0, 1.0], NonFiniteError, "image 1.*finite scores.*class 2"),
        (0.0, [0.0, math.inf, 1.0, 1.0], NonFiniteError, "image 1.*finite boxes"),
        (0.0, [2.0, 0.0, 1.0, 1.0], InputError, "image 1.*x2 >= x1"),
        (0.0, [0.0, 2.0, 1.0, 1.0], InputError, "image 1.*y2 >= y1"),
    ],
)
def test_bad_candidates_are_named(score: float, box: list[float], kind: type[Exception], words: str) -> None:
    target = {"boxes": torch.tensor([[0.0, 0.0, 1.0, 1.0]]), "labels": torch.tensor([2])}
    bad = ScoredPairs(torch.tensor([score]), torch.tensor([box]), torch.tensor([1]), torch.tensor([2]))
    with pytest.raises(kind, match=words):
        ragged_map_loss(sg.MAPLoss(K), bad, [target, target])


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v) for v in o.values()))
def test_a_floor_makes_pairs_below_it_vanish(options: dict[str, object]) -> None:
    for seed, floor in ((0, -9.0), (1, 0.0), (2, 0.5), (3, 9.0)):
        scores, boxes, targets = scene(seed)
        plain, floored = sg.MAPLoss(K, **options), sg.MAPLoss(K, score_floor=floor, **options)
        taken = [s >= floor for s in scores]
        expected = ragged_map_loss(plain, candidates_of(scores, boxes, taken), targets)
        loss = floored(scores, boxes, targets)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-14)
        gradients, wanted = (torch.autograd.grad(value, scores) for value in (loss, expected))
        for gradient, own, above in zip(gradients, wanted, taken, strict=True):
            torch.testing.assert_close(gradient, own, rtol=1e-12, atol=0.0)
            assert not gradient[~above].any()


def test_a_floor_takes_shared_boxes_and_batches_without_windows() -> None:
    scores, boxes, targets = scene(5)
    shared = [b[:, 0] for b in boxes]
    loss_fn = sg.MAPLoss(K, score_floor=-9.0)
    assert loss_fn(scores, shared, targets).item() == pytest.approx(sg.MAPLoss(K)(scores, shared, targets).item())
    assert math.isfinite(loss_fn([s[:0] for s in scores], [b[:0] for b in shared], targets).item())
    assert math.isfinite(loss_fn([], [], []).item())


def test_a_floor_is_a_number_and_not_for_several_processes() -> None:
    with pytest.raises(ConfigError, match="score_floor"):
        sg.MAPLoss(K, score_floor="low")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="score_floor"):
        sg.DistributedMAPLoss(K, score_floor=0.0)


def test_classes_without_objects_keep_no_windows() -> None:
    """Those of the last class are not even ranked, so nothing of it is counted."""
    scores, boxes, targets = scene(0)
    loss_fn = sg.MAPLoss(K, absent_classes="skip")
    everything = [torch.ones_like(s, dtype=torch.bool) for s in scores]
    ragged_map_loss(loss_fn, candidates_of(scores, boxes, everything), targets)
    present = sg.MAPLoss(K - 1)
    present([s[:, :-1] for s in scores], [b[:, :-1] for b in boxes], targets)
    assert loss_fn.metrics["kept"] == present.metrics["kept"]
