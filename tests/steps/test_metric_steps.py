"""Steps and pseudogradients of the metrics detectors are deployed by, and of a user's own, against brute force."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import stepgrad as sg
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.protocol import COCO, VOC12, Protocol, get_protocol
from stepgrad.reference import estimators
from stepgrad.reference.class_ap import ClassScene, class_ap, describe_class
from stepgrad.reference.mean_ap import scene_of
from stepgrad.reference.metric_steps import cut_list, metric_curve, metric_steps
from stepgrad.reference.steps import step_function
from tests.metric.metric_cases import Slow, as_own, cases
from tests.oracles.options import Options
from tests.scenes import Batch, over_seeds, random_batch, small_batch
from tests.steps.test_map_steps import as_floats, at

# The metrics are single quotients but for the miss rate, a product of nine logs and exponentials of libm's.
CLOSE = {"rel": 1e-14, "abs": 1e-15}


def thresholds_of(batch: Batch) -> list[float]:
    """Scores that windows have, so that a threshold is often met exactly; and some between and beyond them."""
    scores = np.concatenate([s.ravel() for s in batch.scores])
    return [*scores.tolist(), float(np.median(scores)) + 0.0625, -1e6, 1e6]


def scenes(batch: Batch, options: Options, metric: ListMetric) -> Iterator[tuple[int, ClassScene]]:
    """The classes that have a value."""
    for c in range(batch.K):
        scene = scene_of(batch, c, options, options.thresholds()[0])
        if scene.P > 0 or not metric.needs_objects:
            yield c, scene


def assert_same_steps(batch: Batch, options: Options, metric: ListMetric, slow: Slow, exactly: ListMetric) -> None:
    """`metric` has the steps of `slow`: the same places to the last bit. `exactly` is the metric by its right name."""
    steps = sg.map_steps(*batch.tensors(), **options.call("through_nms"), metric=metric)
    fixed = options.through_nms == "none"
    for c, scene in scenes(batch, options, exactly):
        scores = batch.column(c)
        present = slow(cut_list(scene, scores, None, metric.threshold), scene.P, len(batch.scores))
        assert float(steps.value[c]) == pytest.approx(present.rounded, **CLOSE)
        for i, b in ((i, b) for i, b, label in batch.windows() if label == c):
            found = at(steps, i, b, c)
            wanted = as_floats(metric_steps(scene, scores, i, b, slow, metric.threshold, fixed).nearest_steps())
            assert (found[0], found[2]) == (wanted[0], wanted[2]), f"{metric}, image {i}, window {b}, class {c}"
            assert found == pytest.approx(wanted, **CLOSE), f"{metric}, image {i}, window {b}, class {c}"


@pytest.mark.parametrize("nms_threshold", [None, 0.3, 0.5])
@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@over_seeds(4, 60)
def test_steps_of_every_metric_equal_brute_force(seed: int, protocol: str, nms_threshold: float | None) -> None:
    rng = np.random.default_rng([seed, 120])
    for _ in range(3):
        batch = small_batch(rng, crowds=protocol == "coco")
        options = Options(protocol, nms_threshold, 0.5)
        for metric, slow in cases(get_protocol(protocol), rng, thresholds_of(batch)).items():
            assert_same_steps(batch, options, metric, slow, metric)


@pytest.mark.parametrize("protocol", ["ultralytics-unlimited", "torchmetrics"])
@over_seeds(2, 30)
def test_steps_under_the_rules_of_other_tools_equal_brute_force(seed: int, protocol: str) -> None:
    rng = np.random.default_rng([seed, 129])
    batch = small_batch(rng, crowds=True)
    options = Options(protocol, [0.3, None][seed % 2], 0.5)
    for metric, slow in cases(get_protocol(protocol), rng, thresholds_of(batch)).items():
        assert_same_steps(batch, options, metric, slow, metric)


@over_seeds(3, 30)
def test_steps_of_an_own_function_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng([seed, 121])
    protocol = ["voc12", "coco", "voc07"][seed % 3]
    batch = small_batch(rng, crowds=protocol == "coco")
    options = Options(protocol, [0.3, None, 0.5][seed % 3], 0.5, through_nms=["exact", "exact", "none"][seed % 3])
    for metric, slow in cases(get_protocol(protocol), rng, thresholds_of(batch)).items():
        if metric.needs_objects:
            own = as_own(metric, len(batch.scores), get_protocol(protocol))
            assert_same_steps(batch, options, own, slow, metric)


@pytest.mark.parametrize("base", [VOC12, COCO], ids=lambda p: p.name)
@over_seeds(2, 30)
def test_steps_with_a_limit_on_detections_equal_brute_force(seed: int, base: Protocol) -> None:
    rng = np.random.default_rng([seed, 122])
    for _ in range(3):
        protocol = replace(base, name="limited", max_detections=int(rng.integers(1, 5)))
        batch = small_batch(rng)
        options = Options(protocol, 0.3 if rng.random() < 0.5 else None, 0.5)
        for metric, slow in cases(protocol, rng, thresholds_of(batch)).items():
            assert_same_steps(batch, options, metric, slow, metric)


@over_seeds(2, 30)
def test_steps_with_the_kept_windows_held_fixed_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng([seed, 123])
    for _ in range(3):
        batch = small_batch(rng)
        options = Options("voc12", 0.3, 0.5, through_nms="none")
        for metric, slow in cases(VOC12, rng, thresholds_of(batch)).items():
            assert_same_steps(batch, options, metric, slow, metric)


@over_seeds(2, 30)
def test_chains_of_overlapping_windows_cascade_across_a_threshold(seed: int) -> None:
    """Each window overlaps the next two: one that leaves frees the next, which removes the one after, and so on."""
    rng = np.random.default_rng([seed, 124])
    left = np.arange(8.0) * 2
    boxes = np.stack([left, np.zeros(8), left + 6, np.full(8, 6.0)], axis=1)
    for _ in range(4):
        targets = [{"boxes": boxes[rng.choice(8, size=3, replace=False)], "labels": np.zeros(3, dtype=np.int64)}]
        batch = Batch([rng.permutation(8).astype(np.float64)[:, None]], [boxes], targets)
        for metric, slow in cases(VOC12, rng, [0.0, 2.5, 3.0, 4.5, 7.0]).items():
            assert_same_steps(batch, Options("voc12", 0.3), metric, slow, metric)


@pytest.mark.parametrize("estimator", ["radius", "mee", "sde"])
@over_seeds(2, 40)
def test_pseudogradients_equal_their_definitions_for_every_metric(seed: int, estimator: str) -> None:
    rng = np.random.default_rng([seed, 125])
    batch = small_batch(rng)
    options = Options("voc12", 0.3, estimator=estimator, radius=float(rng.choice([0.5, 1.0, 2.125])), min_step=0.1)
    for metric, slow in cases(VOC12, rng, thresholds_of(batch)).items():
        found = sg.map_pseudogradient(*batch.tensors(), **options.for_gradient(), metric=metric)
        for c, scene in scenes(batch, options, metric):
            for i, b in ((i, b) for i, b, label in batch.windows() if label == c):
                wanted = slow_slope(scene, batch.column(c), i, b, slow, metric, options)
                if wanted is not None:
                    share = counted(batch, options, metric)
                    assert float(found[i][b, c]) * share == pytest.approx(wanted, rel=1e-11, abs=1e-13), metric


def counted(batch: Batch, options: Options, metric: ListMetric) -> int:
    """Classes that the mean is over: an error has no natural value for a class without objects."""
    return batch.K if metric.higher_is_better else len(list(scenes(batch, options, metric)))


def slow_slope(
    scene: ClassScene, scores: list[list[float]], i: int, b: int, slow: Slow, metric: ListMetric, options: Options
) -> float | None:
    """The estimator by its definition on rounded values, as a miss rate has no exact ones; None where it says nothing."""

    def rounded(*arguments: object) -> object:
        value = slow(*arguments)  # type: ignore[arg-type]
        return replace(value, exact=estimators.Fraction(value.rounded)) if metric.name == "miss_rate" else value

    curve = metric_curve(scene, scores, i, b, rounded, metric.threshold)  # type: ignore[arg-type]
    steps = metric_steps(scene, scores, i, b, rounded, metric.threshold)  # type: ignore[arg-type]
    if options.estimator == "radius":
        return float(estimators.radius(curve, scores[i][b], options.radius))
    if options.estimator == "sde":
        return float(estimators.sde(scores[i][b], steps.nearest_steps(), options.min_step))
    found = estimators.mee(steps, options.min_step)
    return None if found is None else float(found)


def test_a_score_crosses_a_threshold_where_it_is_met() -> None:
    """Score 0.5 passes the threshold 0.5; the next lower float does not, nor does a lower threshold move the step."""
    boxes = np.array([[0.0, 0, 10, 10]])
    target = {"boxes": boxes, "labels": np.array([0])}
    for score, up_at, down_at in ((0.5, math.inf, 0.5), (np.nextafter(0.5, 0), 0.5, -math.inf), (0.7, math.inf, 0.5)):
        batch = Batch([np.array([[score]])], [boxes], [target])
        steps = sg.map_steps(*batch.tensors(), metric="f1@threshold=0.5")
        assert (float(steps.up_at[0]), float(steps.down_at[0])) == (up_at, down_at)
        assert float(steps.value) == (1.0 if score >= 0.5 else 0.0)


def test_a_suppressed_window_enters_above_a_threshold_with_its_suppressor_gone() -> None:
    """The upper window misses the object and suppresses the one on it: raised past it, that one is a hit."""
    boxes = np.array([[0.0, 0, 10, 4], [0, 0, 10, 10]])
    target = {"boxes": boxes[1:], "labels": np.array([0])}
    batch = Batch([np.array([[3.0], [1.0]])], [boxes], [target])
    steps = sg.map_steps(*batch.tensors(), metric=sg.metrics.Cost(2.0, false_alarm=1.0, miss=10.0))
    assert at(steps, 0, 1, 0)[:2] == (3.0, 0.0)
    assert float(steps.value) == 11.0
    assert at(steps, 0, 0, 0)[2:] == (2.0, 10.0)  # below the threshold the false alarm costs nothing


@over_seeds(2, 40)
def test_hundreds_of_true_positives_are_passed_over_in_blocks_exactly(seed: int) -> None:
    rng = np.random.default_rng([seed, 126])
    batch = random_batch(rng, windows=400, images=3, objects=300, clusters=20, difficult=0.05, ties=seed % 2 == 1)
    options = Options("voc12", None, 0.5)
    scene = scene_of(batch, 0, options, 0.5)
    chosen = rng.permutation(batch.windows())[:3].tolist()
    for metric, slow in cases(VOC12, rng, thresholds_of(batch)).items():
        steps = sg.map_steps(*batch.tensors(), **options.call(), metric=metric)
        for i, b, _ in chosen:
            curve = metric_curve(scene, batch.column(0), i, b, slow, metric.threshold)
            found = at(steps, i, b, 0)
            # Brute force over 400 breakpoints takes minutes: look at both sides of the step, and half way to it.
            check_sides(curve, float(batch.scores[i][b, 0]), found, float(steps.value))


def check_sides(curve: object, x: float, found: tuple[float, ...], present: float) -> None:
    for where, beyond, sign in ((found[0], found[1], 1), (found[2], found[3], -1)):
        if math.isinf(where):
            assert curve(x + sign * 1e6).rounded == pytest.approx(present, **CLOSE)  # type: ignore[operator]
            continue
        past = curve(where + sign * 2.0**-20).rounded  # type: ignore[operator]
        before = curve(where - sign * 2.0**-20).rounded  # type: ignore[operator]
        assert past == pytest.approx(beyond, **CLOSE)
        assert past != present
        if (where - x) * sign > 2.0**-20:
            assert before == pytest.approx(present, **CLOSE)


AREAS = [(0.0, 36.0), (36.0, 64.0), (50.0, 1e10)]


# Objects that are not there, and the first of equal overlaps: areas must be those of the same objects.
OTHER_WAY_ROUND = replace(COCO, name="other way round", difficult="drop", crowds="drop", equal_overlaps="first")


def sparse_batch(rng: np.random.Generator) -> Batch:
    """More windows than objects: many of another size lie on none."""
    ties = bool(rng.random() < 0.4)
    return random_batch(rng, windows=12, images=2, K=1, objects=int(rng.integers(1, 4)), ties=ties, clusters=3)


@pytest.mark.parametrize("base", [COCO, OTHER_WAY_ROUND], ids=lambda p: p.name)
@pytest.mark.parametrize("nms_threshold", [None, 0.3])
@over_seeds(4, 60)
def test_steps_of_ap_of_some_sizes_equal_brute_force(seed: int, nms_threshold: float | None, base: Protocol) -> None:
    rng = np.random.default_rng([seed, 127])
    protocol = replace(base, match_thresholds=(0.5,), max_detections=int(rng.choice([3, 100])))
    for few in (False, False, True):
        batch = sparse_batch(rng) if few else small_batch(rng, crowds=True, most_windows=10)
        area = AREAS[rng.integers(3)]
        steps = sg.map_steps(
            *batch.tensors(), protocol=protocol, nms_threshold=nms_threshold, metric=sg.metrics.AP(area=area)
        )
        for c in range(batch.K):
            scene = describe_class(batch.boxes, batch.targets, c, protocol, 0.5, nms_threshold, area)
            if scene.P == 0:
                continue
            assert float(steps.value[c]) == class_ap(scene, batch.column(c)).rounded
            for i, b in ((i, b) for i, b, label in batch.windows() if label == c):
                wanted = as_floats(step_function(scene, batch.column(c), i, b).nearest_steps())
                assert at(steps, i, b, c) == wanted, f"image {i}, window {b}, class {c}, {area}"


@pytest.mark.parametrize("nms_threshold", [None, 0.3])
@over_seeds(4, 60)
def test_slopes_at_a_radius_of_ap_of_some_sizes_equal_brute_force(seed: int, nms_threshold: float | None) -> None:
    rng = np.random.default_rng([seed, 129])
    protocol = replace(COCO, match_thresholds=(0.5, 0.7), max_detections=int(rng.choice([3, 100])))
    batch, area, radius = sparse_batch(rng), AREAS[rng.integers(3)], float(rng.choice([0.25, 1.0]))
    slopes = sg.map_pseudogradient(
        *batch.tensors(),
        protocol=protocol,
        nms_threshold=nms_threshold,
        estimator="radius",
        radius=radius,
        metric=sg.metrics.AP(area=area),
    )
    lists = [describe_class(batch.boxes, batch.targets, 0, protocol, t, nms_threshold, area) for t in (0.5, 0.7)]
    for i, b, _ in batch.windows():
        values = []
        for moved in (radius, -radius):
            column = [scores.copy() for scores in batch.column(0)]
            column[i][b] += moved
            values.append(sum(class_ap(scene, column).rounded for scene in lists) / 2)
        wanted = (values[0] - values[1]) / (2 * radius) if lists[0].P else 0.0
        assert float(slopes[i][b, 0]) == pytest.approx(wanted, rel=1e-12, abs=1e-13), f"image {i}, window {b}, {area}"


def test_partial_ap_up_to_recall_one_has_the_steps_of_ap() -> None:
    batch = random_batch(np.random.default_rng(128), windows=30, images=2, K=2, objects=9)
    whole, part = (sg.map_steps(*batch.tensors(), metric=m) for m in ("ap", sg.metrics.AP(max_recall=1.0)))
    for name in ("up_at", "up_value", "down_at", "down_value"):
        assert all((a == b).all() for a, b in zip(getattr(whole, name), getattr(part, name), strict=True))
