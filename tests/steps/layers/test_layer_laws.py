"""What holds for layers on rows of any length: order of the inputs, batches, ties, nothing to change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import stepgrad as sg
from stepgrad.reference.nms import neighbour_sets
from tests.oracles.steps import with_coordinate
from tests.oracles.steps_layers import keep_mask
from tests.scenes import clustered_boxes, over_seeds

HOW = [{"estimator": "mee"}, {"estimator": "sde", "min_step": 0.1}, {"estimator": "radius", "radius": 0.7}]
ROW_LAYERS = {
    "ArgmaxOneHot": sg.layers.ArgmaxOneHot,
    "TopKMask": lambda **how: sg.layers.TopKMask(3, **how),
    "Ranks": sg.layers.Ranks,
    "Round": sg.layers.Round,
    "Sign": sg.layers.Sign,
}
row_layers = pytest.mark.parametrize("make", ROW_LAYERS.values(), ids=ROW_LAYERS.keys())
rows = st.lists(st.floats(-5.0, 5.0, width=32), min_size=1, max_size=30, unique=True)


def pulled(layer: Any, x: Tensor, outer: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    value = layer(leaf, *more)
    value.backward(outer)
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@row_layers
@settings(max_examples=40, deadline=None)
@given(x=rows, seed=st.integers(0, 10**6))
def test_permuting_the_inputs_permutes_outputs_and_gradient(make: Any, x: list[float], seed: int) -> None:
    row = torch.tensor(x, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    order, outer = torch.randperm(len(x), generator=generator), torch.randn(len(x), generator=generator).double()
    for how in HOW:
        value, gradient = pulled(make(**how), row, outer)
        value_permuted, gradient_permuted = pulled(make(**how), row[order], outer[order])
        assert torch.equal(value_permuted, value[order])
        torch.testing.assert_close(gradient_permuted, gradient[order], rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_permuting_windows_permutes_the_mask_and_its_gradient(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    boxes = torch.tensor(clustered_boxes(rng, rng.integers(6, 30, size=(3, 2)), n, jitter=4))
    scores, outer = torch.tensor(rng.permutation(n) / 4.0), torch.tensor(rng.normal(size=n))
    order = torch.tensor(rng.permutation(n))
    for how in HOW:
        value, gradient = pulled(sg.layers.NMSLayer(0.3, **how), scores, outer, boxes)
        value_permuted, gradient_permuted = pulled(
            sg.layers.NMSLayer(0.3, **how), scores[order], outer[order], boxes[order]
        )
        assert torch.equal(value_permuted, value[order])
        torch.testing.assert_close(gradient_permuted, gradient[order], rtol=1e-9, atol=1e-9)


@row_layers
def test_a_batch_is_its_rows(make: Any) -> None:
    x, outer = torch.randn(2, 2, 3, 7, generator=torch.Generator().manual_seed(0)).double()
    for how in HOW:
        value, gradient = pulled(make(**how), x, outer)
        for index in np.ndindex(2, 3):
            one = pulled(make(**how), x[index], outer[index])
            assert torch.equal(value[index], one[0])
            torch.testing.assert_close(gradient[index], one[1], rtol=1e-12, atol=1e-12)


@row_layers
@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_nothing_in_nothing_out(make: Any, shape: tuple[int, ...]) -> None:
    value, gradient = pulled(make(), torch.zeros(shape), torch.zeros(shape))
    assert value.shape == gradient.shape == shape


@pytest.mark.parametrize(
    "layer", [sg.layers.ArgmaxOneHot(), sg.layers.Ranks(), sg.layers.TopKMask(1), sg.layers.TopKMask(9)], ids=repr
)
def test_one_number_has_nobody_to_trade_places_with(layer: Any) -> None:
    value, gradient = pulled(layer, torch.tensor([2.0]), torch.ones(1))
    assert value.tolist() == [1.0]
    assert gradient.tolist() == [0.0]


def test_k_of_at_least_n_lets_all_in_and_has_no_gradient() -> None:
    for k in (4, 5, 100):
        value, gradient = pulled(sg.layers.TopKMask(k), torch.randn(4), torch.randn(4))
        assert value.tolist() == [1.0] * 4
        assert gradient.tolist() == [0.0] * 4


@row_layers
@pytest.mark.parametrize("how", HOW, ids=str)
def test_ties_give_finite_gradients(make: Any, how: dict[str, Any]) -> None:
    _, gradient = pulled(make(**how), torch.zeros(6), torch.arange(6.0))
    assert gradient.isfinite().all()


def test_of_equal_numbers_the_earlier_ranks_higher() -> None:
    x = torch.tensor([1.0, 2.0, 2.0, 1.0])
    assert sg.layers.ArgmaxOneHot()(x).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert sg.layers.TopKMask(3)(x).tolist() == [1.0, 1.0, 1.0, 0.0]
    assert sg.layers.Ranks()(x).tolist() == [3.0, 1.0, 2.0, 4.0]
    assert sg.layers.Ranks(descending=False)(x).tolist() == [1.0, 3.0, 4.0, 2.0]


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_the_mean_envelope_of_a_quantiser_is_the_straight_through_estimator(x: float, step: float) -> None:
    _, gradient = pulled(
        sg.layers.UniformQuantizer(step), torch.tensor([x], dtype=torch.float64), torch.ones(1).double()
    )
    assert gradient.item() == pytest.approx(1.0, rel=1e-6)


def test_windows_apart_are_all_kept_and_have_no_gradient() -> None:
    boxes = torch.arange(5.0)[:, None] * 20 + torch.tensor([0.0, 0.0, 10.0, 10.0])
    value, gradient = pulled(sg.layers.NMSLayer(), torch.randn(5), torch.randn(5), boxes)
    assert value.tolist() == [1.0] * 5
    assert gradient.tolist() == [0.0] * 5


@over_seeds(5, 100)
def test_the_mask_is_that_of_nms_in_every_class(seed: int) -> None:
    rng = np.random.default_rng([seed, 90])
    n = int(rng.integers(1, 200))
    boxes = torch.tensor(clustered_boxes(rng, rng.integers(6, 60, size=(6, 2)), n, jitter=4))
    scores = torch.tensor(rng.integers(0, 60, size=(n, 3)) / 4.0)
    mask = sg.layers.NMSLayer(0.3)(scores, boxes)
    for c in range(3):
        keep, _ = sg.nms(boxes, scores[:, c], 0.3)
        assert mask[:, c].nonzero().flatten().tolist() == sorted(keep.tolist())


def test_classes_do_not_touch_each_other() -> None:
    rng = np.random.default_rng(91)
    boxes = torch.tensor(clustered_boxes(rng, np.array([[6, 6], [12, 12]]), 90, jitter=4))
    scores, outer = torch.tensor(rng.normal(size=(90, 2))), torch.tensor(rng.normal(size=(90, 2)))
    _, both = pulled(sg.layers.NMSLayer(), scores, outer, boxes)
    for c in range(2):
        _, one = pulled(sg.layers.NMSLayer(), scores[:, c], outer[:, c], boxes)
        assert torch.equal(both[:, c], one)


@over_seeds(3, 60)
def test_mask_of_more_windows_than_a_word_has_bits_is_that_of_replays(seed: int) -> None:
    """Move a score just past each other one: NMS run again changes the mask as the gradient says, and nowhere nearer."""
    rng = np.random.default_rng([seed, 92])
    n = 150
    boxes = clustered_boxes(rng, rng.integers(6, 30, size=(5, 2)), n, jitter=4)
    close, scores, outer = neighbour_sets(boxes, 0.3), rng.permutation(n) * 1.0, rng.normal(size=n)
    value, gradient = pulled(sg.layers.NMSLayer(0.3), torch.tensor(scores), torch.tensor(outer), torch.tensor(boxes))
    kept = keep_mask(close)
    for b in rng.choice(n, 8, replace=False):
        slopes = [(math.inf, 0.0)]
        for k in {int(scores[c]) for c in close[b]}:
            side = 1.0 if k > scores[b] else -1.0
            rise = outer @ (np.array(kept(with_coordinate(scores.tolist(), b, k + side / 2))) - value.numpy())
            if rise != 0.0:
                slopes.append((abs(k - scores[b]), side * rise))
        distance, rise = min(slopes)
        assert gradient[b].item() == pytest.approx(0.5 * rise / distance, abs=1e-9)


def test_ranks_look_one_unit_of_score_either_way_unless_told() -> None:
    slopes = []
    for layer in (sg.layers.Ranks(estimator="radius"), sg.layers.Ranks(estimator="radius", radius=1.0)):
        x = torch.tensor([0.0, 0.7, 1.5, 4.0], dtype=torch.float64, requires_grad=True)
        layer(x)[1].backward()
        slopes.append(x.grad)
    assert torch.equal(slopes[0], slopes[1])
    assert slopes[0].any()
