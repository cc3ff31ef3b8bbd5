"""Steps of mAP in box coordinates: against brute force, against the metric itself, and under the symmetries of the plane."""

from __future__ import annotations

import doctest
import math
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from experiments.box_coordinates import steps as steps_module
from experiments.box_coordinates.steps import BoxMethod, BoxSteps, box_pseudogradient, box_steps
from stepgrad.reference.mean_ap import batch_ap
from tests.experiments.box_coordinates.brute_force import Coordinate, Taken, box_gradient, nearest_steps, with_boxes
from tests.oracles.options import Options
from tests.scenes import Array, Batch, over_seeds, random_batch, small_batch, with_empty_windows

OBJECT = [0.0, 0.0, 10.0, 10.0]
ELSEWHERE = [50.0, 50.0, 60.0, 60.0]


def one_image(scores: list[float], boxes: list[list[float]], objects: list[list[float]]) -> Batch:
    target = {"boxes": np.array(objects).reshape(-1, 4), "labels": np.zeros(len(objects), dtype=np.int64)}
    return Batch([np.array(scores)[:, None]], [np.array(boxes)], [target])


def gradient_of(batch: Batch, **options: Any) -> list[Array]:
    return [g.numpy() for g in box_pseudogradient(*batch.tensors(), **options)]


def assert_same(found: list[Array], expected: list[Array]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-12)


def numbers(steps: BoxSteps, at: Coordinate) -> list[float]:
    columns = (steps.up_at, steps.up_value, steps.down_at, steps.down_value)
    return [float(column[at.image][at.window, at.label, at.q]) for column in columns]


@over_seeds(8, 400)
def test_nearest_steps_are_those_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng([seed, 99])
    protocol = str(rng.choice(["voc07", "voc12", "coco", "voc12-devkit", "voc07-python"]))
    batch = small_batch(rng, crowds=protocol == "coco")
    nms_threshold = [0.3, 0.5, None, 0.0][int(rng.integers(4))]
    options = Options(protocol, nms_threshold, float(rng.choice([0.3, 0.5, 0.75])))
    reach = float(rng.choice([0.5, 1.0, math.inf]))
    found = box_steps(*batch.tensors(), **options.call(), reach=reach)  # type: ignore[arg-type]
    assert found.value.tolist() == batch_ap(batch, options)
    for i, b, c in batch.windows():
        for at in (Coordinate(i, b, c, q) for q in range(4)):
            (threshold,) = options.thresholds()
            steps = nearest_steps(batch, options, threshold, at, reach)
            expected = [steps.up_at, steps.up_value.rounded, steps.down_at, steps.down_value.rounded]
            assert numbers(found, at) == pytest.approx(expected, rel=1e-9, abs=1e-9), at


@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@over_seeds(1, 31)
def test_gradient_is_that_of_brute_force(seed: int, protocol: str, estimator: str) -> None:
    rng = np.random.default_rng([seed, 98])
    kind = (
        {"windows": 4, "images": 2, "objects": 4} if protocol == "coco" else {"windows": 7, "images": 2, "objects": 5}
    )
    ties, difficult = bool(rng.random() < 0.4), 0.25 * (rng.random() < 0.5)
    batch = random_batch(rng, **kind, K=2, ties=ties, difficult=difficult, per_class_boxes=bool(rng.random() < 0.5))
    how = Taken(estimator, radius=0.15, min_step=0.05, reach=0.8)
    found = gradient_of(batch, protocol=protocol, method=BoxMethod(*how))
    assert_same(found, box_gradient(batch, Options(protocol), how))


@over_seeds(2, 20)
def test_ap_is_constant_up_to_the_step_and_the_steps_value_beyond_it(seed: int) -> None:
    rng = np.random.default_rng([seed, 97])
    batch = random_batch(rng, windows=24, images=2, objects=8, K=1)
    batch = with_boxes(batch, [b + rng.normal(0, 0.3, b.shape) for b in batch.boxes])  # no longer whole numbers
    scores, boxes, targets = batch.tensors()
    steps = box_steps(scores, boxes, targets)
    seen = 0
    for i, b, _ in batch.windows():
        for q in range(4):
            x = float(boxes[i][b, q])
            up_at, up_value, down_at, down_value = numbers(steps, Coordinate(i, b, 0, q))
            for at, value in ((up_at, up_value), (down_at, down_value)):
                if math.isfinite(at):
                    seen += 1
                    for share, expected in ((rng.random(), float(steps.value)), (1 + 1e-7, value)):
                        moved = [box.clone() for box in boxes]
                        moved[i][b, q] = x + share * (at - x)
                        assert sg.mean_average_precision(scores, moved, targets).map == expected
    assert seen > 10


def mirrored(boxes: Array, width: float = 64.0) -> Array:
    flipped = boxes.copy()
    flipped[..., 0], flipped[..., 2] = width - boxes[..., 2], width - boxes[..., 0]
    return flipped


def transformed(batch: Batch, change: Any) -> Batch:
    targets = [{**t, "boxes": change(t["boxes"])} for t in batch.targets]
    return Batch(batch.scores, [change(b) for b in batch.boxes], targets)


def medium_batch(seed: int, **kind: Any) -> Batch:
    kind = {"windows": 20, "images": 2, "K": 2, "objects": 8, "ties": True} | kind
    return random_batch(np.random.default_rng([seed, 96]), **kind)


@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
@over_seeds(2, 20)
def test_a_mirrored_scene_has_the_mirrored_gradient(seed: int, estimator: str) -> None:
    batch, method = medium_batch(seed), BoxMethod(estimator)
    there = gradient_of(transformed(batch, mirrored), method=method)
    back = [np.stack([-g[:, 2], g[:, 1], -g[:, 0], g[:, 3]], axis=1) for g in there]
    here = gradient_of(batch, method=method)
    assert any(np.abs(g).max() > 0 for g in here)
    assert_same(back, here)


@over_seeds(2, 20)
def test_exchanged_axes_exchange_the_gradient(seed: int) -> None:
    batch, axes = medium_batch(seed), [1, 0, 3, 2]
    there = gradient_of(transformed(batch, lambda b: b[..., axes]))
    assert_same([g[:, axes] for g in there], gradient_of(batch))


@over_seeds(2, 20)
def test_a_scene_moved_elsewhere_keeps_its_gradient(seed: int) -> None:
    batch = medium_batch(seed)
    assert_same(gradient_of(transformed(batch, lambda b: b + np.array([96.0, -32.0] * 2))), gradient_of(batch))


@over_seeds(2, 20)
def test_a_scene_twice_as_large_has_half_the_gradient(seed: int) -> None:
    batch = medium_batch(seed)
    assert_same([2 * g for g in gradient_of(transformed(batch, lambda b: 2 * b))], gradient_of(batch))


@over_seeds(2, 20)
def test_a_longer_reach_finds_the_same_steps_and_more(seed: int) -> None:
    batch = medium_batch(seed)
    near, far = (box_steps(*batch.tensors(), reach=reach) for reach in (0.4, math.inf))
    found = [0, 0]
    for name in ("up_at", "down_at"):
        for a, b in zip(getattr(near, name), getattr(far, name), strict=True):
            finite = a.isfinite()
            assert torch.equal(a[finite], b[finite])
            found = [found[0] + int(finite.sum()), found[1] + int(b.isfinite().sum())]
    assert 0 < found[0] < found[1]


def test_a_window_just_short_of_a_free_object_is_pulled_onto_it() -> None:
    x1, y1, x2, y2 = gradient_of(one_image([1.0], [[4.0, 0.0, 14.0, 10.0]], [OBJECT]))[0][0]  # too far to the right
    assert x1 == pytest.approx(-0.5 / 1.0)  # from x1 = 3 on IoU >= 0.5 and AP 1
    assert x2 == pytest.approx(-0.5 / 2.0)  # and up to x2 = 12
    assert (y1, y2) == (0.0, 0.0)


def test_a_window_that_suppresses_a_true_positive_is_pushed_off_it() -> None:
    batch = one_image([2.0, 1.0], [[0.0, 0.0, 10.0, 3.5], OBJECT], [OBJECT])  # IoU 0.35 with what it suppresses
    x1, y1, x2, y2 = gradient_of(batch, method=BoxMethod(reach=0.3))[0][0]
    assert x1 > 0 > x2  # a smaller window lets the other live
    assert y1 > 0 > y2


def test_no_step_within_reach_is_no_gradient() -> None:
    on_object = one_image([1.0], [OBJECT], [OBJECT])
    assert np.abs(gradient_of(on_object, method=BoxMethod(reach=0.49))).max() == 0.0
    assert np.abs(gradient_of(on_object, method=BoxMethod(reach=0.51))).max() > 0.0
    below = one_image([2.0, 1.0], [OBJECT, ELSEWHERE], [OBJECT])
    assert np.abs(gradient_of(below, method=BoxMethod(reach=math.inf))[0][1]).max() == 0.0


def test_a_box_that_only_just_finds_its_object_has_a_step_where_it_is() -> None:
    steps = box_steps(*one_image([1.0], [[0.0, 0.0, 5.0, 10.0]], [OBJECT]).tensors())  # IoU 0.5, which is enough
    assert steps.value.tolist() == [1.0]
    assert steps.down_at[0][0, 0].tolist()[2] == 5.0
    assert steps.down_value[0][0, 0].tolist()[2] == 0.0


def test_another_object_becoming_the_best_overlapped_is_a_step() -> None:
    lower = [0.0, 2.0, 10.0, 12.0]
    batch = one_image([2.0, 1.0], [OBJECT, [0.0, 0.5, 10.0, 10.5]], [OBJECT, lower])  # both windows are on the first
    steps = box_steps(*batch.tensors(), nms_threshold=None)
    at = Coordinate(0, 1, 0, 1)  # y1 of the second: (10 - y) / 10.5 = 8.5 / (12 - y) at y = 1.5
    assert steps.value.tolist() == [0.5]
    assert numbers(steps, at)[:2] == pytest.approx([1.5, 1.0])


def test_equal_rivals_do_not_hide_a_step() -> None:
    twins = one_image([2.0, 1.0], [[0.0, 0.0, 10.0, 8.0], [0.0, 2.0, 10.0, 10.0]], [OBJECT, OBJECT])
    for protocol in ("voc12", "coco"):
        options = Options(protocol, None, 0.5)
        found = box_steps(*twins.tensors(), **options.call(), reach=math.inf)  # type: ignore[arg-type]
        for at in (Coordinate(0, b, 0, q) for b in (0, 1) for q in range(4)):
            steps = nearest_steps(twins, options, 0.5, at, math.inf)
            expected = [steps.up_at, steps.up_value.rounded, steps.down_at, steps.down_value.rounded]
            assert numbers(found, at) == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
@over_seeds(1, 20)
def test_boxes_without_a_side_get_no_gradient_and_leave_that_of_others_alone(seed: int, estimator: str) -> None:
    rng = np.random.default_rng([seed, 125])
    batch = with_empty_windows(rng, random_batch(rng, windows=6, images=1, objects=4, K=1), share=0.5)
    how = Taken(estimator, radius=0.15, min_step=0.05, reach=0.8)
    (found,) = box_pseudogradient(*batch.tensors(), method=BoxMethod(*how))
    empty = (batch.boxes[0][:, 2:] == batch.boxes[0][:, :2]).any(axis=1)
    assert empty.any()
    assert (found.numpy()[empty] == 0.0).all()
    without = Batch([batch.scores[0][~empty]], [batch.boxes[0][~empty]], batch.targets)
    scores = batch.scores[0].copy()
    scores[empty] = scores.min() - 1.0 - np.arange(empty.sum())[:, None]  # below the others they change no precision
    (among,) = box_pseudogradient(*batch.with_scores([scores]).tensors(), method=BoxMethod(*how))
    np.testing.assert_allclose(among.numpy()[~empty], box_gradient(without, Options(), how)[0], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("by_class", [False, True])
def test_empty_is_ordinary(by_class: bool) -> None:
    window = torch.zeros(0, 2, 4) if by_class else torch.zeros(0, 4)
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    (gradient,) = box_pseudogradient([torch.zeros(0, 2)], [window], [nothing])
    assert gradient.shape == window.shape
    found = torch.tensor([OBJECT]) if not by_class else torch.tensor([[OBJECT, OBJECT]])
    (gradient,) = box_pseudogradient([torch.ones(1, 2)], [found], [nothing])
    assert gradient.abs().sum() == 0
    assert box_pseudogradient([], [], []) == []
    assert box_steps([], [], []).up_at == []


@pytest.mark.parametrize(
    "options",
    [{"estimator": "me"}, {"radius": 1.0}, {"radius": 0.0}, {"min_step": -1.0}, {"reach": 0.0}, {"reach": math.nan}],
)
def test_impossible_methods_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(sg.errors.ConfigError, match="Expected"):
        BoxMethod(**options)


@pytest.mark.parametrize("name", ["radius", "min_step", "reach"])
def test_lengths_of_a_box_method_are_plain_floats_or_refused(name: str) -> None:
    assert type(getattr(BoxMethod(**{name: torch.tensor(0.5)}), name)) is float
    for wrong in ("0.5", 10**400, None, True):
        with pytest.raises(sg.errors.ConfigError, match=name):
            BoxMethod(**{name: wrong})  # type: ignore[arg-type]


def test_steps_of_several_thresholds_at_once_are_refused() -> None:
    with pytest.raises(sg.errors.ConfigError, match="one at a time"):
        box_steps(*one_image([1.0], [OBJECT], [OBJECT]).tensors(), protocol="coco")


def test_examples_in_the_docstrings_are_true() -> None:
    outcome = doctest.testmod(steps_module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
