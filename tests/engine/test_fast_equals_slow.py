"""Large scenes: AP of every class, and the steps of a sample of windows, bit-equal to the oracles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import stepgrad as sg
from stepgrad.metric.protocol import COCO, VOC07, VOC12, Protocol
from stepgrad.reference.class_ap import class_ap
from stepgrad.reference.mean_ap import scene_of
from stepgrad.reference.steps import curve_of_score
from tests.oracles.insertion import Insertion
from tests.oracles.options import Options
from tests.scenes import Batch, over_seeds, random_batch
from tests.steps.test_map_steps import as_floats, at

PROTOCOLS = ("voc12", "voc07", "coco")


def large_batch(rng: np.random.Generator, most: int) -> Batch:
    """Up to `most` windows and 20 classes; sizes are spread evenly on a logarithmic scale."""
    windows = int(np.exp(rng.uniform(np.log(10), np.log(most))))
    K = int(rng.integers(1, 21))
    return random_batch(
        rng,
        windows=windows,
        images=int(rng.integers(1, 9)),
        K=K,
        objects=min(8 * K, windows),
        ties=bool(rng.random() < 0.25),
        difficult=float(rng.choice([0.0, 0.2])),
        clusters=int(rng.integers(2, 12)),
    )


def check(batch: Batch, options: Options, rng: np.random.Generator, sample: int) -> None:
    """AP of all classes, steps of `sample` windows of two classes."""
    steps = sg.map_steps(*batch.tensors(), **options.call("through_nms"))
    insertions = {}
    for c in rng.permutation(batch.K)[:6].tolist():
        scene = scene_of(batch, c, options, 0.5)
        assert float(steps.value[c]) == class_ap(scene, batch.column(c)).rounded
        if len(insertions) < 2 and scene.P > 0:
            insertions[c] = Insertion(scene, batch.column(c))
    places = [(i, b) for i, s in enumerate(batch.scores) for b in range(len(s))]
    for c, insertion in insertions.items():
        for j in rng.permutation(len(places))[:sample].tolist():
            i, b = places[j]
            expected = as_floats(insertion.nearest_steps(i, b))
            assert at(steps, i, b, c) == expected, f"image {i}, window {b}, class {c}"


@pytest.mark.parametrize("nms_threshold", [None, 0.3])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@over_seeds(11, 280)
def test_medium_scenes(seed: int, protocol: str, nms_threshold: float | None) -> None:
    rng = np.random.default_rng([seed, 50])
    for _ in range(3):
        check(large_batch(rng, most=200), Options(protocol, nms_threshold, 0.5), rng, sample=12)


LIMITED = replace(COCO, max_detections=12)


@pytest.mark.parametrize("protocol", ["voc12", "coco", LIMITED], ids=["voc12", "coco", "coco with 12 detections"])
@over_seeds(3, 100)
def test_every_window_of_a_crowded_image(seed: int, protocol: str | Protocol) -> None:
    """Cascades that reach beyond the first 64 windows; every window is checked, so nothing may linger from the last."""
    rng = np.random.default_rng([seed, 55])
    batch = random_batch(rng, windows=200, objects=40, clusters=4, difficult=0.1, ties=seed % 2 == 1)
    check(batch, Options(protocol, 0.3, 0.5), rng, sample=200)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@over_seeds(2, 50)
def test_two_thousand_windows_of_twenty_classes(seed: int, protocol: str) -> None:
    rng = np.random.default_rng([seed, 51])
    batch = random_batch(rng, windows=2000, images=8, K=20, objects=160, clusters=30, difficult=0.1, ties=seed % 2 == 1)
    check(batch, Options(protocol, 0.3, 0.5), rng, sample=5)


def many_objects(rng: np.random.Generator, windows: int) -> Batch:
    """One class with hundreds of true positives: more than may be added up one by one."""
    return random_batch(
        rng, windows=windows, images=3, objects=windows * 3 // 4, clusters=windows // 20, difficult=0.05
    )


@pytest.mark.parametrize("nms_threshold", [None, 0.5])
@pytest.mark.parametrize("protocol", [VOC12, VOC07, replace(COCO, max_detections=None)], ids=lambda p: p.name)
@over_seeds(2, 100)
def test_hundreds_of_true_positives(seed: int, protocol: Protocol, nms_threshold: float | None) -> None:
    rng = np.random.default_rng([seed, 52])
    batch = many_objects(rng, windows=400)
    options = Options(protocol, nms_threshold, 0.5)
    assert len(class_ap(scene_of(batch, 0, options, 0.5), batch.column(0)).precisions) > 60
    check(batch, options, rng, sample=6)


@pytest.mark.parametrize("through_nms", ["exact", "none"])
@over_seeds(2, 50)
def test_radius_with_hundreds_of_true_positives(seed: int, through_nms: str) -> None:
    rng = np.random.default_rng([seed, 53])
    batch = many_objects(rng, windows=400)
    options = Options("voc12", 0.5, 0.5, through_nms, "radius", radius=20.0625)
    gradient = sg.map_pseudogradient(*batch.tensors(), **options.for_gradient())
    scene = scene_of(batch, 0, options, 0.5)
    for i, b, _ in rng.permutation(batch.windows())[:12].tolist():
        curve = curve_of_score(scene, batch.column(0), i, b, fixed_kept=through_nms == "none")
        x = float(batch.scores[i][b, 0])
        difference = (curve(x + options.radius).rounded - curve(x - options.radius).rounded) / (2 * options.radius)
        assert float(gradient[i][b, 0]) == pytest.approx(difference, rel=1e-12, abs=1e-15)


@over_seeds(3, 100)
def test_boxes_that_are_not_on_a_grid(seed: int) -> None:
    rng = np.random.default_rng([seed, 54])
    batch = random_batch(rng, windows=150, images=2, K=2, objects=40, clusters=5)

    def off_grid(boxes: np.ndarray) -> np.ndarray:
        return boxes + rng.uniform(-0.4, 0.4, size=boxes.shape)

    targets = [t | {"boxes": off_grid(t["boxes"])} for t in batch.targets]
    batch = replace(batch, boxes=[off_grid(b) for b in batch.boxes], targets=targets)
    check(batch, Options("voc12", 0.3, 0.5), rng, sample=10)
