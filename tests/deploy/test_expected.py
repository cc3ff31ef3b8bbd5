"""What thresholds promise: intervals against closed forms, laws of counting, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepgrad.deploy.chosen import choose
from stepgrad.deploy.expected import Estimate, Seen, estimate, expected_of, student_quantile
from stepgrad.deploy.ranked import RankedList
from stepgrad.deploy.wish import Wish, wish_of
from tests.scenes import over_seeds

F1, COST = wish_of("f1"), wish_of("cost@false_alarm=1,miss=5")


def seen_of(seed: int, units: int = 40) -> Seen:
    """Counts of units that find some of their objects; a few more detections pass within than beyond."""
    rng = np.random.default_rng([seed, 7])
    objects = rng.integers(0, 4, units)
    found = rng.binomial(objects, 0.6)
    alarms = rng.poisson(0.5, units)
    beyond = np.stack([found, found + alarms, objects]).astype(np.float64)
    within = beyond + np.array([[1.0], [1.0], [0.0]]) * (found < objects) * (rng.random(units) < 0.2)
    return Seen(within, beyond)


@pytest.mark.parametrize("freedom", [5, 10, 19, 30, 100])
@pytest.mark.parametrize("share", [0.75, 0.95, 0.975, 0.995])
def test_quantile_inverts_students_distribution(share: float, freedom: int) -> None:
    """The density is summed up to the quantile; the expansion leaves out terms of the fourth power of 1 / freedom."""
    z = student_quantile(share, freedom)
    x = np.linspace(0.0, z, 20_001)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    area = 0.5 + np.trapezoid(scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2), x)
    assert area == pytest.approx(share, abs=20.0 / freedom**4 + 1e-6)


def test_independent_detections_have_wilsons_interval() -> None:
    """One detection in each of n images, a share p of them right: the closed form with Student's quantile."""
    n, right = 100, 80
    hits = np.arange(n) < right
    counts = np.stack([hits, np.ones(n), hits]).astype(np.float64)
    number = expected_of([Seen(counts, counts)], F1, 0.9)[0]["precision"]
    z, p = student_quantile(0.95, n - 1), right / n
    m = n / (n / (n - 1))  # as many as would have the unbiased variance
    half = z * math.sqrt(p * (1 - p) / m + z * z / (4 * m * m)) / (1 + z * z / m)
    middle = (p + z * z / (2 * m)) / (1 + z * z / m)
    assert number.value == p
    assert list(number.interval) == pytest.approx([middle - half, middle + half])


@over_seeds(5, 40)
def test_intervals_hold_their_values_and_stay_possible(seed: int) -> None:
    for wish in (F1, COST):
        for expected in expected_of([seen_of(seed), seen_of(seed + 1000)], wish, 0.95):
            for name, number in expected.numbers.items():
                low, high = number.interval
                assert 0.0 <= low <= number.value <= high
                assert name == "cost" or high <= 1.0


@over_seeds(5, 40)
def test_images_twice_in_groups_of_two_say_no_more_than_once(seed: int) -> None:
    """Shares stay, and so do their pulls; only the number of detections, which is a lower bound of the width, doubles."""
    seen = seen_of(seed)
    twice = Seen(2 * seen.within, 2 * seen.beyond)
    for name in F1.numbers:
        one, other = estimate(name, seen, F1), estimate(name, twice, F1)
        assert other.value == pytest.approx(one.value)
        assert other.pulls == pytest.approx(one.pulls)
        assert other.apart == pytest.approx(one.apart)
        assert other.size == pytest.approx(2 * one.size)


@over_seeds(5, 40)
def test_the_mean_of_equal_classes_is_as_sure_as_each(seed: int) -> None:
    """Classes that rise and fall together: their mean has the pulls and the value of each."""
    seen = seen_of(seed)
    first, second, mean = expected_of([seen, seen], F1, 0.95)
    for name in F1.numbers:
        assert mean[name].value == pytest.approx(first[name].value)
        assert mean[name].interval.half_width <= first[name].interval.half_width + 1e-12
        assert second[name] == first[name]
    alike = Seen(
        seen.beyond, seen.beyond
    )  # where the two are apart, the sum of two classes is in less doubt than twice one
    once, _, total = expected_of([alike, alike], COST, 0.95)
    assert total["cost"].value == pytest.approx(2 * once["cost"].value)
    assert list(total["cost"].interval) == pytest.approx([2 * end for end in once["cost"].interval])


@over_seeds(5, 40)
def test_more_confidence_never_narrows_an_interval(seed: int) -> None:
    narrow, wide = (expected_of([seen_of(seed)], COST, level)[0] for level in (0.8, 0.99))
    for name in narrow:
        assert wide[name].interval.low <= narrow[name].interval.low
        assert wide[name].interval.high >= narrow[name].interval.high


def test_where_nothing_passes_recall_is_zero_for_sure_and_precision_unknown() -> None:
    counts = np.stack([np.zeros(9), np.zeros(9), np.ones(9)])
    expected, _ = expected_of([Seen(counts, counts)], COST, 0.95)
    assert math.isnan(expected["precision"].value)
    assert list(expected["recall"].interval) == list(expected["f1"].interval) == [0.0, 0.0]
    assert list(expected["cost"].interval) == [500.0, 500.0]


def drawn(rng: np.random.Generator, images: int) -> RankedList:
    """One class: images differ in how hard they are, so that detections of one image depend on each other."""
    ease = rng.normal(0.0, 0.7, images)
    objects = rng.poisson(0.8, images)
    unit = np.repeat(np.arange(images), objects)
    found = rng.random(len(unit)) < 1 / (1 + np.exp(-1.5 - ease[unit]))
    wrong = np.repeat(np.arange(images), rng.poisson(1.0, images))
    units = np.concatenate([unit[found], wrong]).astype(np.int32)
    hits = np.arange(len(units)) < np.count_nonzero(found)
    scores = rng.normal(np.where(hits, 1.0, -1.0) + 0.5 * ease[units], 1.0)
    order = np.argsort(-scores, kind="stable")
    return RankedList(scores[order], hits[order], units[order], unit.astype(np.int32))


def truth(world: RankedList, cut: float | None, wish: Wish, name: str, images: int) -> float:
    above, below = wish.sides(name, world.counts(world.passing(cut), images).sum(axis=1, keepdims=True))
    total = images / 100 if name == "cost" else float(below[0])
    return float(above[0]) / total


@pytest.mark.parametrize("wish", ["f1", "precision=0.8", "recall=0.6", "cost@false_alarm=1,miss=3"])
def test_promised_values_hold_as_often_as_promised(wish: str) -> None:
    """Of 300 samples with a probability of 95 % each; the bounds are more than four standard errors away. The same with more
    samples, sets and sizes: `python -m experiments.promises`."""
    rng, size, cases, wished = np.random.default_rng(34), 20_000, 300, wish_of(wish)
    world = drawn(rng, size)
    held = 0
    for _ in range(cases):
        one = drawn(rng, 100)
        chosen = choose([one], wished, rng.permutation(100) % 10, 0.95)
        low, high = chosen.by_class[0].interval
        held += low <= truth(world, chosen.cuts[0], wished, wished.aim, size) <= high
    assert 0.90 <= held / cases <= 0.995


def test_estimate_tells_how_far_within_and_beyond_are_apart() -> None:
    within, beyond = np.array([[8.0], [10.0], [20.0]]), np.array([[5.0], [10.0], [20.0]])
    found = estimate("precision", Seen(within, beyond), F1)
    assert isinstance(found, Estimate)
    assert (found.value, found.apart) == pytest.approx((0.6, 0.3))
