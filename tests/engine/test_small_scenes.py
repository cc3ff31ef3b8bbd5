"""Small scenes, each made to reach a corner of the kernels, against brute force: seconds even when nothing is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import stepgrad as sg
from stepgrad.metric.protocol import COCO, VOC12, Protocol
from stepgrad.reference.mean_ap import batch_ap, batch_map, scene_of, shown_ap
from tests.oracles.insertion import Insertion
from tests.oracles.options import Options
from tests.scenes import Batch, random_batch, small_batch
from tests.steps.test_map_steps import as_floats, assert_same_steps, at, library_steps
from tests.steps.test_pseudogradient import assert_same_gradient


def scene(boxes: Any, scores: Any, objects: Any) -> Batch:
    target = {"boxes": np.array(objects, dtype=np.float64), "labels": np.zeros(len(objects), dtype=np.int64)}
    return Batch([np.array(scores, dtype=np.float64)[:, None]], [np.array(boxes, dtype=np.float64)], [target])


def test_a_window_stopped_by_many_is_freed_by_the_last_of_them() -> None:
    """Eighteen strips stop the window below them."""
    strips = [[x, 0, x + 1, 20] for x in range(18)]
    below, over_all, over_two = [0, 0, 18, 10], [0, 10, 18, 20], [0, 10, 2, 20]
    batch = scene([*strips, over_all, over_two, below], [*range(40, 22, -1), 3, 2, 1], [below])
    options = Options("voc12", nms_threshold=0.05)
    kept = sg.nms(batch.tensors()[1][0], batch.tensors()[0][0][:, 0], 0.05)[0]
    assert kept.tolist() == list(range(18))
    steps = library_steps(batch, options)
    assert at(steps, 0, 18, 0)[:2] == (40.0, 0.5)  # on top of all strips it removes them: the window below is second
    assert at(steps, 0, 19, 0)[0] == np.inf  # two lost stoppers of eighteen free nobody
    assert_same_steps(batch, options)


def test_hits_that_move_up_keep_a_precision_of_one() -> None:
    """With 30 objects and 11 levels no level asks for a second hit: the first of two may sink, and the second stands in."""
    objects = [[20 * x, 0, 20 * x + 10, 10] for x in range(30)]
    nowhere = [[20 * x, 50, 20 * x + 10, 60] for x in range(3)]
    windows = [*objects[:2], nowhere[0], *objects[2:4], nowhere[1], *objects[4:8], nowhere[2]]
    batch = scene(windows, range(len(windows), 0, -1), objects)
    assert at(library_steps(batch, Options("voc07", None)), 0, 0, 0)[2] < 9.0  # it passes the miss at 9 without loss
    assert_same_steps(batch, Options("voc07", None))


@pytest.mark.parametrize("protocol", [VOC12, replace(COCO, max_detections=12)], ids=["voc12", "coco with 12"])
@pytest.mark.parametrize("seed", range(2))
def test_steps_across_words_of_64_windows(seed: int, protocol: Protocol) -> None:
    rng = np.random.default_rng([seed, 80])
    batch = random_batch(rng, windows=90, objects=16, clusters=2, difficult=0.1, crowd=0.1, ties=seed % 2 == 1)
    options = Options(protocol, 0.3, 0.5)
    steps = library_steps(batch, options)
    assert [float(v) for v in steps.value] == batch_ap(batch, options)
    insertion = Insertion(scene_of(batch, 0, options, 0.5), batch.column(0))
    for b in rng.permutation(90)[:30].tolist():
        assert at(steps, 0, b, 0) == as_floats(insertion.nearest_steps(0, b)), f"window {b}"


@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@pytest.mark.parametrize("nms_threshold", [None, 0.3])
def test_steps_of_small_batches(protocol: str, nms_threshold: float | None) -> None:
    rng = np.random.default_rng(81)
    for _ in range(12):
        assert_same_steps(small_batch(rng, crowds=protocol == "coco"), Options(protocol, nms_threshold, 0.5))


@pytest.mark.parametrize("through_nms", ["exact", "none"])
@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
def test_gradients_of_small_batches(estimator: str, through_nms: str) -> None:
    rng = np.random.default_rng(82)
    for protocol in ("voc07", "voc12", "coco"):
        for min_step in (0.0, 0.5):
            options = Options(protocol, 0.3, 0.5, through_nms, estimator, 1.0, min_step)
            assert_same_gradient(small_batch(rng, crowds=protocol == "coco"), options)


@pytest.mark.parametrize("radius", [0.5, 2.0, 30.0])
def test_radius_under_a_limit_on_detections(radius: float) -> None:
    """A false positive that leaves lets another detection in, which a limit of one or two makes count."""
    rng = np.random.default_rng(84)
    for i in range(12):
        protocol = replace((VOC12, COCO)[i % 2], name="limited", max_detections=1 + i % 3)
        batch = small_batch(rng, most_windows=12)
        assert_same_gradient(batch, Options(protocol, 0.3, 0.5, estimator="radius", radius=radius))


@pytest.mark.parametrize("absent", ["zero", "skip"])
def test_average_precision_of_small_batches(absent: str) -> None:
    rng = np.random.default_rng(85)
    for protocol in ("voc07", "voc12", "coco"):
        batch = random_batch(rng, windows=12, images=2, K=4, objects=5, difficult=0.3)  # some class has no object
        options = Options(protocol, 0.3, 0.5, absent_classes=absent)
        result = sg.mean_average_precision(*batch.tensors(), **options.call("absent_classes"))
        np.testing.assert_array_equal(result.ap, shown_ap(batch, options))
        assert result.map == pytest.approx(batch_map(batch, options), rel=1e-14)


@pytest.mark.parametrize("estimator", ["mee", "sde"])
def test_paper_mode_of_small_batches(estimator: str) -> None:
    """Some with an object that only suppressed windows reach, whose pushes are the paper's second rule."""
    rng = np.random.default_rng(83)
    for i in range(20):
        assert_same_gradient(
            small_batch(rng), Options("voc12", 0.3 + 0.2 * (i % 2), 0.5, "paper", estimator, min_step=0.25)
        )


@pytest.mark.parametrize("estimator", ["radius", "mee"])
def test_gradients_at_several_thresholds_under_a_limit_on_detections(estimator: str) -> None:
    """Lists of two thresholds may be equal though a window reaches an object at only one of them."""
    rng = np.random.default_rng(86)
    for i in range(60):
        thresholds = tuple(sorted(rng.choice([0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.8], 3, replace=False).tolist()))
        protocol = replace(COCO, name="limited", match_thresholds=thresholds, max_detections=1 + i % 7)
        batch = random_batch(rng, windows=6 + i % 15, images=1 + i % 3, objects=2 + i % 6, crowd=0.2, ties=i % 2 == 1)
        assert_same_gradient(batch, Options(protocol, 0.2, None, estimator=estimator, radius=(0.5, 2.0, 30.0)[i % 3]))


def test_an_object_of_another_size_forgives_one_detection_and_no_more() -> None:
    small, large = [0, 0, 7, 7], [50, 50, 70, 70]
    batch = scene([[0, 0, 7, 8], [0, 0, 8, 7], large], [3, 2, 1], [small, large])
    protocol = replace(COCO, match_thresholds=(0.5,))
    steps = sg.map_steps(
        *batch.tensors(), protocol=protocol, nms_threshold=None, metric=sg.metrics.AP(area=(50.0, 1e4))
    )
    assert float(steps.value[0]) == 0.5  # ignored, false positive, true positive
