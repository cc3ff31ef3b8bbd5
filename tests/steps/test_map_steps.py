"""The nearest steps of every score against brute force over the whole metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.metric.protocol import COCO, VOC12, Protocol
from stepgrad.reference.map_loss import batch_gradient, batch_steps
from stepgrad.reference.mean_ap import batch_ap
from stepgrad.reference.steps import NearestSteps
from tests.oracles.options import Options
from tests.scenes import Batch, over_seeds, random_batch, small_batch

FIELDS = ("up_at", "up_value", "down_at", "down_value")


def library_steps(batch: Batch, options: Options) -> sg.Steps:
    return sg.map_steps(*batch.tensors(), **options.call("through_nms"))


def as_floats(steps: NearestSteps) -> tuple[float, float, float, float]:
    return steps.up_at, steps.up_value.rounded, steps.down_at, steps.down_value.rounded


def at(steps: sg.Steps, i: int, b: int, c: int) -> tuple[float, ...]:
    return tuple(float(getattr(steps, name)[i][b, c]) for name in FIELDS)


def assert_same_steps(batch: Batch, options: Options) -> None:
    """Locations and values equal to the last bit."""
    steps = library_steps(batch, options)
    assert [float(v) for v in steps.value] == batch_ap(batch, options)
    for (i, b, c), expected in batch_steps(batch, options).items():
        assert at(steps, i, b, c) == as_floats(expected), f"image {i}, window {b}, class {c}, {options}"


@pytest.mark.parametrize("nms_threshold", [None, 0.3, 0.5])
@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@over_seeds(6, 112)
def test_exact_steps_equal_brute_force(seed: int, protocol: str, nms_threshold: float | None) -> None:
    rng = np.random.default_rng([seed, 20])
    for _ in range(10):
        batch = small_batch(rng, crowds=protocol == "coco")
        threshold = float(rng.choice([0.5, 0.5, 0.7]))
        assert_same_steps(batch, Options(protocol, nms_threshold, match_threshold=threshold))


@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@over_seeds(3, 40)
def test_steps_with_the_kept_windows_held_fixed_equal_brute_force(seed: int, protocol: str) -> None:
    rng = np.random.default_rng([seed, 21])
    for _ in range(10):
        batch = small_batch(rng)
        assert_same_steps(batch, Options(protocol, 0.3, match_threshold=0.5, through_nms="none"))


@pytest.mark.parametrize("nms_threshold", [None, 0.3])
@pytest.mark.parametrize("base", [VOC12, COCO], ids=lambda p: p.name)
@over_seeds(3, 40)
def test_steps_with_a_limit_on_detections_equal_brute_force(
    seed: int, base: Protocol, nms_threshold: float | None
) -> None:
    rng = np.random.default_rng([seed, 22])
    for _ in range(10):
        protocol = replace(base, name="limited", max_detections=int(rng.integers(1, 5)))
        assert_same_steps(small_batch(rng), Options(protocol, nms_threshold, match_threshold=0.5))


def test_a_window_that_suppresses_two_detections_lets_one_from_beyond_the_limit_in() -> None:
    boxes = [[3, 9, 8, 14], [3, 8, 8, 13], [3, 9, 6, 13], [3, 8, 9, 12], [4, 10, 8, 12], [2, 10, 6, 14]]
    scores = np.array([3.0, -1.0, -1.0, 2.0, 3.0, 1.0])[:, None]
    target = {"boxes": np.array([[3.0, 9.0, 7.0, 13.0]]), "labels": np.array([0])}
    batch = Batch([scores], [np.array(boxes, dtype=np.float64)], [target])
    options = Options(replace(VOC12, name="four", max_detections=4), 0.5, match_threshold=0.7)
    # window 1 on top removes windows 0 and 3, and window 2, which finds the object, becomes the fourth detection
    assert at(library_steps(batch, options), 0, 1, 0)[:2] == (3.0, 0.25)
    assert_same_steps(batch, options)


@over_seeds(3, 40)
def test_estimators_under_a_limit_on_detections(seed: int) -> None:
    rng = np.random.default_rng([seed, 28])
    for estimator in ("mee", "sde", "radius"):
        for base in (VOC12, COCO):
            protocol = replace(base, name="limited", max_detections=int(rng.integers(1, 5)))
            batch = small_batch(rng, most_windows=12)
            options = Options(protocol, 0.3, 0.5, estimator=estimator, min_step=0.1)
            ours = sg.map_pseudogradient(*batch.tensors(), **options.for_gradient())
            for g, e in zip(ours, batch_gradient(batch, options), strict=True):
                defined = ~np.isnan(e)
                np.testing.assert_allclose(g.numpy()[defined], e[defined], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["voc07-devkit", "voc12-devkit", "voc07-python"])
@over_seeds(2, 20)
def test_steps_of_the_devkit_protocols_equal_brute_force(name: str, seed: int) -> None:
    rng = np.random.default_rng([seed, 23])
    for _ in range(10):
        assert_same_steps(small_batch(rng), Options(name, None))


@over_seeds(3, 40)
def test_chains_of_overlapping_windows_cascade_exactly(seed: int) -> None:
    """Each window overlaps the next two, so removing one frees the next, which removes the one after, and so on."""
    rng = np.random.default_rng([seed, 24])
    left = np.arange(8.0) * 2
    boxes = np.stack([left, np.zeros(8), left + 6, np.full(8, 6.0)], axis=1)
    for _ in range(10):
        objects = boxes[rng.choice(8, size=3, replace=False)]
        targets = [{"boxes": objects, "labels": np.zeros(3, dtype=np.int64)}]
        scores = rng.permutation(8).astype(np.float64)[:, None]
        assert_same_steps(Batch([scores], [boxes], targets), Options("voc12", 0.3))


@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
def test_many_detections_of_few_objects_trade_places_exactly(protocol: str) -> None:
    """No NMS and tight jitter: nearly every window is a duplicate of some object."""
    rng = np.random.default_rng(25)
    for _ in range(10):
        batch = random_batch(rng, windows=9, images=1, objects=3, clusters=1, difficult=0.3)
        assert_same_steps(batch, Options(protocol, None, match_threshold=0.4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_steps_are_float64_whatever_the_scores_are(dtype: torch.dtype) -> None:
    batch = random_batch(np.random.default_rng(26), windows=8, images=2, K=2, objects=5, ties=True)
    narrow, wide = (sg.map_steps(*batch.tensors(d), **Options().call()) for d in (dtype, torch.float64))
    for name in FIELDS:
        for a, b in zip(getattr(narrow, name), getattr(wide, name), strict=True):
            assert a.dtype == torch.float64
            assert torch.equal(a, b)


def differing(steps: Sequence[torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    return torch.cat([s != values for s in steps])


@over_seeds(10, 200)
def test_a_step_changes_ap_and_no_step_means_the_value_stays(seed: int) -> None:
    batch = random_batch(np.random.default_rng([seed, 27]), windows=60, images=3, K=3, objects=15, difficult=0.1)
    steps = library_steps(batch, Options())
    assert torch.equal(differing(steps.up_value, steps.value), torch.cat([torch.isfinite(u) for u in steps.up_at]))
    assert torch.equal(differing(steps.down_value, steps.value), torch.cat([torch.isfinite(d) for d in steps.down_at]))
    for s, up, down in zip(batch.tensors()[0], steps.up_at, steps.down_at, strict=True):
        assert (down <= s).all()
        assert (s <= up).all()


def test_several_thresholds_at_once_are_refused() -> None:
    batch = random_batch(np.random.default_rng(0))
    with pytest.raises(sg.errors.StepgradError, match="threshold"):
        sg.map_steps(*batch.tensors(), protocol="coco", nms_threshold=0.5)
