"""What a ranked list is worth: against the slow twins, and the laws that each metric obeys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError, NonFiniteError
from stepgrad.metric.list_metric import ListMetric, area_range
from stepgrad.metric.options import EXAMPLES, get_metric
from stepgrad.metric.over_classes import OverClasses
from stepgrad.metric.protocol import (
    COCO,
    LVIS,
    TORCHMETRICS,
    ULTRALYTICS_OLD,
    ULTRALYTICS_UNLIMITED,
    VOC07,
    VOC12,
    Protocol,
)
from tests.metric.metric_cases import M, cases

RANKED = [M.F1(), M.RecallAtPrecision(0.6), M.PrecisionAtRecall(0.4), M.LogAverageMissRate(), M.AP(0.7)]
AT_THRESHOLD = [M.F1(0.5), M.Cost(0.5, 2.0, 3.0)]
lists = st.lists(st.booleans(), max_size=30)
more_objects = st.integers(0, 5)
PROTOCOLS = [VOC12, VOC07, COCO, TORCHMETRICS, ULTRALYTICS_UNLIMITED]


def value(metric: ListMetric, hits: list[bool], objects: int, protocol: Protocol = VOC12, images: int = 3) -> float:
    return metric.of_list(np.array(hits, dtype=bool), objects, images, protocol)


def gain(metric: ListMetric, *arguments: object) -> float:
    """Larger is better."""
    return value(metric, *arguments) * (1 if metric.higher_is_better else -1)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.name)
def test_values_of_random_lists_equal_the_slow_twins(protocol: Protocol) -> None:
    rng = np.random.default_rng(0)
    for _ in range(150):
        hits = (rng.random(rng.integers(0, 25)) < rng.random()).tolist()
        P, images = sum(hits) + int(rng.integers(0, 4)), int(rng.integers(1, 120))
        for metric, slow in cases(protocol, rng, [0.5]).items():
            if P > 0 or not metric.needs_objects:
                expected = slow(hits, P, images).rounded
                assert value(metric, hits, P, protocol, images) == pytest.approx(expected, rel=1e-15, abs=0), metric


@pytest.mark.parametrize("metric", [*RANKED, *AT_THRESHOLD], ids=lambda m: m.name)
@given(hits=lists, missed=more_objects, data=st.data())
def test_no_metric_gets_worse_when_a_hit_trades_places_with_the_false_alarm_above_it(
    metric: ListMetric, hits: list[bool], missed: int, data: st.DataObject
) -> None:
    swaps = [i for i in range(len(hits) - 1) if not hits[i] and hits[i + 1]]
    if swaps:
        i = data.draw(st.sampled_from(swaps))
        better = [*hits[:i], True, False, *hits[i + 2 :]]
        P = sum(hits) + missed
        assert gain(metric, better, P) >= gain(metric, hits, P)


@pytest.mark.parametrize("metric", RANKED, ids=lambda m: m.name)
@given(hits=lists, missed=more_objects, extra=st.integers(1, 5))
def test_false_alarms_below_the_last_hit_change_no_metric_of_the_whole_list(
    metric: ListMetric, hits: list[bool], missed: int, extra: int
) -> None:
    P = sum(hits) + missed
    if P > 0:
        assert value(metric, hits + [False] * extra, P) == value(metric, hits, P)


@given(hits=lists, missed=more_objects)
def test_recall_at_precision_zero_is_the_recall_of_the_whole_list(hits: list[bool], missed: int) -> None:
    P = sum(hits) + missed
    if P > 0:
        assert value(M.RecallAtPrecision(0.0), hits, P) == sum(hits) / P


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.name)
@given(hits=lists, missed=more_objects)
def test_partial_ap_up_to_recall_one_is_ap(protocol: Protocol, hits: list[bool], missed: int) -> None:
    P = sum(hits) + missed
    if P > 0:
        whole, norm = protocol.level_counts(P)
        counts, own_norm = M.AP(1.0).levels(P, protocol)
        assert np.array_equal(counts * norm, whole * own_norm)
        assert M.AP(1.0) == M.AP()


@pytest.mark.parametrize(
    ("metric", "protocol", "message"),
    [
        (M.AP(0.5), ULTRALYTICS_OLD, "continues to recall 1"),
        (M.LogAverageMissRate(), LVIS, "every class in every image"),
        (M.AP(area=(0.0, 9.0)), TORCHMETRICS, "as COCO does"),
        (M.AP(area=(0.0, 9.0)), ULTRALYTICS_UNLIMITED, "as COCO does"),
    ],
)
def test_a_metric_refuses_rules_it_says_nothing_about(metric: ListMetric, protocol: Protocol, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        metric.check_protocol(protocol)


@given(hits=lists, missed=more_objects)
def test_precision_at_recall_zero_is_the_best_precision_of_all(hits: list[bool], missed: int) -> None:
    P = sum(hits) + missed
    if sum(hits):
        found = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        assert value(M.PrecisionAtRecall(0.0), hits, P) == found[np.array(hits)].max()


@given(hits=lists, missed=more_objects)
def test_a_cost_without_a_price_of_misses_counts_false_alarms_only(hits: list[bool], missed: int) -> None:
    P = sum(hits) + missed
    assert value(M.Cost(0.0, 1.0, 0.0), hits, P) == len(hits) - sum(hits)
    assert value(M.Cost(0.0, 0.0, 1.0), hits, P) == missed


@given(hits=lists, missed=more_objects)
def test_the_best_f1_is_the_largest_f1_of_any_cut(hits: list[bool], missed: int) -> None:
    P = sum(hits) + missed
    if P > 0:
        cuts = [value(M.F1(0.5), hits[:n], P) for n in range(len(hits) + 1)]
        assert value(M.F1(), hits, P) == max(cuts)


@given(hits=lists, missed=more_objects)
def test_precision_and_recall_at_each_other_are_two_views_of_one_curve(hits: list[bool], missed: int) -> None:
    P = sum(hits) + missed
    if sum(hits):
        recall = value(M.RecallAtPrecision(0.5), hits, P)
        assert recall == 0.0 or value(M.PrecisionAtRecall(recall), hits, P) >= 0.5


@pytest.mark.parametrize("protocol", [VOC07, COCO, ULTRALYTICS_UNLIMITED], ids=lambda p: p.name)
def test_no_recall_level_beyond_the_largest_recall_counts(protocol: Protocol) -> None:
    hits = [True] * 57 + [False] * 43 + [True] * 43  # precision falls after a recall of 0.57
    levels = protocol.recall_levels or 0
    for recall in (0.5, 0.56, 0.566, 0.569):
        assert value(M.AP(recall), hits, 100, protocol) == 1.0
    beyond = (int(0.57 * (levels - 1)) + 1) / (levels - 1)  # the first level that needs more than the first 57
    assert value(M.AP(beyond), hits, 100, protocol) < 1.0


def test_perfect_lists_are_worth_the_most_there_is() -> None:
    perfect = [True] * 4
    assert [value(m, perfect, 4) for m in RANKED if m.higher_is_better] == [1.0] * 4
    assert value(M.LogAverageMissRate(), perfect, 4) == pytest.approx(1e-10)
    assert value(M.Cost(0.5), perfect, 4) == 0.0


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_metric_is_read_back_from_its_name(name: str) -> None:
    assert get_metric(name).name == name
    assert get_metric(get_metric(name)) == get_metric(name)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("recal@precision=0.5", "Did you mean 'recall'"),
        ("F1", "Did you mean 'f1'"),
        ("recall", "recall@precision=0.95"),
        ("recall@precision=high", "name=number"),
        ("recall@recall=0.5", r"numbers for \['precision'\]"),
        ("recall@precision=1.5", r"in \[0, 1\]"),
        ("ap@max_recall=0", r"\(0, 1\]"),
        ("ap@area=tiny", "one of"),
        ("cost@threshold=0.5,miss=0,false_alarm=0", "both are 0"),
        (M.F1, "call it"),
        (3, "Expected a metric"),
    ],
)
def test_what_is_no_metric_is_refused_with_the_way_out(wrong: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_metric(wrong)  # type: ignore[arg-type]


def test_a_threshold_must_be_a_score() -> None:
    for threshold in (float("nan"), float("inf"), "high"):
        with pytest.raises(ConfigError):
            M.F1(threshold)
    with pytest.raises(ConfigError, match="threshold"):
        M.Cost(None)  # type: ignore[arg-type]


def test_an_own_function_must_return_a_finite_number() -> None:
    with pytest.raises(InputError, match="return a number"):
        value(M.OwnMetric(lambda hits, objects: "many"), [True], 1)  # type: ignore[arg-type,return-value]
    with pytest.raises(NonFiniteError, match="finite"):
        value(M.OwnMetric(lambda hits, objects: float("nan")), [True], 1)


def test_an_own_function_may_write_into_what_it_is_given() -> None:
    def vandal(hits: np.ndarray, objects: int) -> float:
        hits[:] = False
        return 0.0

    hits = np.array([True])
    assert sg.metrics.OwnMetric(vandal).of_list(hits, 1, 1, VOC12) == 0.0
    assert hits.tolist() == [True]


def test_sizes_are_those_of_pycocotools() -> None:
    params = pytest.importorskip("pycocotools.cocoeval").Params(iouType="bbox")
    theirs = {word: tuple(bounds) for word, bounds in zip(params.areaRngLbl, params.areaRng, strict=True)}
    assert {word: area_range(word) for word in theirs} == theirs


def test_class_weights_count_by_their_shares_however_large_they_are() -> None:
    for scale in (1.0, 1e-300, 5e307):
        joined = OverClasses("mean", (scale, 3 * scale, scale), "skip").join(
            get_metric("ap"), [0.2, 0.6, 0.9], [1, 1, 0]
        )
        assert joined.value == pytest.approx((0.2 + 3 * 0.6) / 4)
