"""Protocols of ultralytics: equal to the numbers of its own functions, rule by rule and as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from packaging.version import Version

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.evaluation import Evaluator
from stepgrad.metric.protocol import COCO, PROTOCOLS, ULTRALYTICS, ULTRALYTICS_8_4, ULTRALYTICS_OLD, Protocol
from stepgrad.reference.average_precision import average_precision
from stepgrad.reference.class_ap import ranks_of_true_positives
from stepgrad.reference.matching import IGNORED, TRUE, describe_objects, match
from stepgrad.reference.other_tools import tail
from tests.evaluation.datasets import boxes_at, evaluate, pred, target
from tests.evaluation.ultralytics_numbers import CLASSES, HERE, Set, random_set, theirs
from tests.scenes import over_seeds

FILES = {"8.4.190": ULTRALYTICS, "8.4.60": ULTRALYTICS_8_4, "8.2.103": ULTRALYTICS_OLD}
EQUAL = 1e-12  # both are sums of at most 101 terms of at most 1 / 100 in double precision


def ours(data: Set, protocol: Protocol) -> dict[int, list[float]]:
    evaluator = Evaluator(CLASSES, protocol)
    evaluator.update(data.preds, data.targets)
    return {row.label: list(row.ap_by_threshold.values()) for row in evaluator.compute().classes if row.objects}


def assert_equal(mine: Mapping[int, Sequence[float]], other: Mapping[int, Sequence[float]]) -> None:
    assert mine.keys() == other.keys()
    for label, values in other.items():
        np.testing.assert_allclose(mine[label], values, rtol=0, atol=EQUAL)


@pytest.mark.parametrize("version", FILES)
def test_ap_equals_the_numbers_that_ultralytics_gave(version: str) -> None:
    content = json.loads((HERE / f"ultralytics-{version}.json").read_text())
    assert content["version"] == version
    for entry in content["sets"]:
        assert_equal(ours(Set.from_json(entry), FILES[version]), {int(c): row for c, row in entry["ap"].items()})


@over_seeds(50, 2000)
def test_ap_equals_that_of_the_installed_ultralytics(seed: int) -> None:
    ultralytics = pytest.importorskip("ultralytics", reason="not a dependency: pip install ultralytics")
    if Version(ultralytics.__version__) < Version("8.4.176"):
        pytest.skip("older versions leave the order of equal overlaps to an unstable sort")
    assert_equal(ours(data := random_set(seed), ULTRALYTICS), theirs(data))


def reference_ap(data: Set, protocol: Protocol, label: int) -> list[float]:
    """AP of a class at each threshold, by the slow twins."""
    values = []
    for threshold in protocol.match_thresholds:
        judged: list[tuple[float, int, str]] = []
        P = 0
        for i, (p, t) in enumerate(zip(data.preds, data.targets, strict=True)):
            of_class, there = p["labels"] == label, t["labels"] == label
            windows, boxes = (x.double().numpy() for x in (p["boxes"][of_class], t["boxes"][there]))
            flags = [False] * len(boxes)
            objects = describe_objects(windows, boxes, flags, flags, protocol)
            P += objects.countable
            verdicts = match(range(len(windows)), objects, protocol, threshold)
            judged += [(-float(s), i, v) for s, v in zip(p["scores"][of_class], verdicts, strict=True)]
        verdicts = [verdict for _, _, verdict in sorted(judged)]
        T, counted = verdicts.count(TRUE), sum(v != IGNORED for v in verdicts)
        ap = average_precision(ranks_of_true_positives(verdicts), P, protocol).rounded
        values.append(ap + tail(T, counted, P, protocol))
    return values


@pytest.mark.parametrize("name", ["torchmetrics", "ultralytics", "ultralytics-8.4", "ultralytics-old"])
@over_seeds(5, 100)
def test_ap_equals_the_reference(seed: int, name: str) -> None:
    data, protocol = random_set(seed), PROTOCOLS[name]
    mine = ours(data, protocol)
    assert_equal(mine, {label: reference_ap(data, protocol, label) for label in mine})


def test_a_perfect_detector_has_an_ap_of_0_995() -> None:
    """The last level cannot be passed, and weighs half."""
    for P in (1, 7, 100, 101):
        counts, norm = ULTRALYTICS.level_counts(P)
        assert counts.sum() / norm == 0.995
    found, there = pred(boxes_at(0, 30), [0.9, 0.8]), target(boxes_at(0, 30))
    assert evaluate("ultralytics", [found], [there]) == pytest.approx(0.995, abs=EQUAL)


def test_an_overlap_in_single_precision_reaches_its_threshold_in_single_precision() -> None:
    found, there = pred(boxes_at(0, height=6), [0.9]), target(boxes_at(0))  # IoU 0.6, and float32's 0.6 is more
    at_60 = replace(ULTRALYTICS, name="at 60", match_thresholds=ULTRALYTICS.match_thresholds[2:3])
    assert evaluate(at_60, [found], [there]) == pytest.approx(0.995, abs=EQUAL)
    assert evaluate(replace(at_60, overlaps="double"), [found], [there]) == 0.0


def test_the_best_object_still_free_or_the_best_object() -> None:
    objects = target(torch.tensor([[0.0, 0, 10, 10], [0, 2, 10, 12]]))
    both_on_the_first = pred(torch.tensor([[0.0, 0, 10, 10], [0, 0.5, 10, 10.5]]), [0.9, 0.8])
    new, old = (replace(p, name="at 50", match_thresholds=(0.5,)) for p in (ULTRALYTICS, ULTRALYTICS_8_4))
    assert evaluate(new, [both_on_the_first], [objects]) == pytest.approx(0.995, abs=EQUAL)
    assert evaluate(old, [both_on_the_first], [objects]) == pytest.approx(0.495, abs=EQUAL)


@pytest.mark.parametrize(("order", "found"), [("first", 1), ("last", 2)])
def test_of_equal_overlaps_the_first_or_the_last_is_taken(order: str, found: int) -> None:
    """One window between two objects, then one on the second alone: it is late if the second was taken."""
    objects = target(torch.tensor([[0.0, 0, 10, 10], [4, 0, 14, 10]]))
    windows = pred(torch.tensor([[2.0, 0, 12, 10], [5, 0, 15, 10]]), [0.9, 0.8])
    protocol = replace(COCO, name="p", match_thresholds=(0.6,), equal_overlaps=order)
    evaluator = Evaluator(1, protocol)
    evaluator.update([windows], [objects])
    assert int((evaluator.compute().classes[0].verdicts == 1).sum()) == 3 - found


@pytest.mark.parametrize("flag", ["difficult", "iscrowd"])
def test_what_label_files_cannot_hold_is_not_there(flag: str) -> None:
    found = pred(boxes_at(0, 30), [0.9, 0.8])
    there = target(boxes_at(0, 30), **{flag: [True, False]})
    assert evaluate("ultralytics", [found], [there]) == evaluate("ultralytics", [found], [target(boxes_at(30))])
    assert evaluate("coco", [found], [there]) == pytest.approx(1.0)


def test_limits_are_on_all_classes_of_an_image_and_leave_the_rest_ignored() -> None:
    two = replace(ULTRALYTICS, name="two", max_detections=2)
    found = pred(boxes_at(0, 30, 60, 90), [0.9, 0.8, 0.7, 0.0005], labels=[0, 0, 1, 1])
    evaluator = Evaluator(2, two)
    evaluator.update([found, pred(boxes_at(60), [0.6], labels=[1])], [target(boxes_at(0, 60), labels=[0, 1])] * 2)
    result = evaluator.compute()
    assert result.of_class(0).verdicts[0].tolist() == [1, 0]
    assert result.of_class(1).verdicts[0].tolist() == [2, 1, 2]  # one too many, one in the other image, one too low
    assert result.of_class(1).scores.tolist() == [0.7, 0.6, 0.0005]
    no_limit = Evaluator(2, replace(two, name="no limit", max_detections=None, min_score=None))
    no_limit.update([found], [target(boxes_at(0, 60), labels=[0, 1])])
    assert no_limit.compute().of_class(1).verdicts[0].tolist() == [1, 0]


@pytest.mark.parametrize("name", ["ultralytics", "ultralytics-8.4", "ultralytics-old"])
def test_losses_refuse_rules_of_final_detections_and_name_a_protocol_they_can_train_for(name: str) -> None:
    with pytest.raises(ConfigError, match="ultralytics-unlimited"):
        sg.MAPLoss(3, name)
    instead = sg.MAPLoss(2, "ultralytics-unlimited", nms_threshold=None)
    scores = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64, requires_grad=True)
    boxes = boxes_at(0, 30)
    loss = instead([scores], [boxes], [target(boxes_at(30, 0), labels=[0, 1])])
    loss.backward()
    assert instead.metrics["map"] < 0.995
    assert scores.grad is not None
    assert scores.grad.abs().sum() > 0


@pytest.mark.parametrize("value", ["best", None, 3])
def test_an_unknown_setting_of_a_new_field_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="interpolation"):
        replace(COCO, interpolation=value)  # type: ignore[arg-type]
