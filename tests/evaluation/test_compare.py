"""Why two protocols disagree: the first detection they judge differently, and the rule responsible."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.evaluation import Comparison, Evaluator, Pair
from stepgrad.evaluation.compare import compare
from stepgrad.evaluation.judge import judge
from stepgrad.evaluation.rules import RULES, concerns, differing, switched
from stepgrad.metric.protocol import COCO, PROTOCOLS, VOC07, VOC12, get_protocol
from tests.evaluation.datasets import Entries, boxes_at, pred, random_dataset, target
from tests.scenes import over_seeds

WITH_LIMIT = replace(VOC12, name="limited", max_detections=1)
ALL_COUNT = replace(VOC12, name="all count", difficult="count")
FREE = replace(VOC12, name="free", duplicates="best_free")
STRICT = replace(VOC12, name="strict", equality=False)
AT_60 = replace(VOC12, name="at 60", match_thresholds=(0.6,))
WIDER = replace(VOC12, name="wider", pixel_offset=1.0)
BOTH = replace(VOC12, name="both", pixel_offset=1.0, equality=False)


def compared(a: str | sg.Protocol, b: str | sg.Protocol, preds: Entries, targets: Entries, K: int = 1) -> Comparison:
    evaluator = Evaluator(K, [a, b])
    evaluator.update(preds, targets)
    return evaluator.compare()


def pair_of(
    a: str | sg.Protocol, b: str | sg.Protocol, found: dict[str, torch.Tensor], there: dict[str, torch.Tensor]
) -> Pair:
    (pair,) = compared(a, b, [found], [there]).pairs
    return pair


TWO = target(torch.tensor([[0.0, 0, 10, 10], [0, 2, 10, 12]]))
ON_THE_FIRST = pred(torch.tensor([[0.0, 0, 10, 10], [0, 0.5, 10, 10.5]]), [0.9, 0.8])
HALF = pred(torch.cat([boxes_at(0), boxes_at(30, height=5)]), [0.9, 0.8])
CASES = {
    "equality": (VOC12, STRICT, HALF, target(boxes_at(0, 30)), ("true positive", "false positive")),
    "pixel offset": (
        *(VOC12, WIDER, pred(boxes_at(0, width=9, height=4), [0.8]), target(boxes_at(0, width=9, height=9))),
        ("false positive", "true positive"),
    ),
    "duplicate rule": (VOC12, FREE, ON_THE_FIRST, TWO, ("false positive", "true positive")),
    "difficult": (
        *(VOC12, ALL_COUNT, pred(boxes_at(0), [0.8]), target(boxes_at(0), difficult=[True])),
        ("ignored", "true positive"),
    ),
    "max detections": (
        VOC12,
        WITH_LIMIT,
        pred(boxes_at(0, 30), [0.9, 0.8]),
        target(boxes_at(0, 30)),
        ("true positive", "ignored"),
    ),
    "IoU thresholds": (VOC12, AT_60, HALF, target(boxes_at(0, 30)), ("true positive", "false positive")),
}


@pytest.mark.parametrize("rule", CASES)
def test_rule_that_changes_a_verdict_is_named_with_the_detection(rule: str) -> None:
    a, b, found, there, verdicts = CASES[rule]
    pair = pair_of(a, b, found, {**there, "image_id": "street"})  # type: ignore[dict-item]
    (first,) = pair.first
    assert first.rules == (rule,)
    assert (first.image_id, first.score, first.verdicts) == ("street", 0.8, verdicts)
    assert first.because == rule
    assert [step.rule for step in pair.steps][:1] == [rule]
    swapped = pair_of(b, a, found, there)
    assert swapped.first[0].verdicts == verdicts[::-1]
    assert swapped.first[0].rules == (rule,)


@pytest.mark.parametrize("rule", ["recall levels", "absent classes"])
def test_rule_that_changes_only_the_sum_is_named_by_its_step(rule: str) -> None:
    other = VOC07 if rule == "recall levels" else replace(VOC12, name="skip", absent_classes="skip")
    found, there = pred(boxes_at(0, 50, 20), [0.9, 0.8, 0.7]), target(boxes_at(0, 20))
    (pair,) = compared(VOC12, other, [found], [there], K=2).pairs
    assert pair.first == ()
    (step,) = pair.steps
    assert step.rule == rule
    assert step.map == pair.maps[1] != pair.maps[0]
    assert "no detection is judged differently" in str(pair)


def test_ties_are_named_where_equal_scores_change_places() -> None:
    evaluator = Evaluator(1, ["voc12", FREE])
    evaluator.update([pred(boxes_at(0), [0.5]), pred(boxes_at(50), [0.5])], [target(boxes_at(0))] * 2)
    evidence = evaluator.evidence()
    backwards = evidence.detections.take(np.array([1, 0]))
    (pair,) = compare(replace(evidence, detections=backwards), [VOC12, FREE]).pairs
    (first,) = pair.first
    assert first.rules == ("ties",)
    assert first.verdicts == ("false positive, place 1", "false positive, place 2")
    assert pair.maps == (0.25, 0.5)
    assert [(step.rule, step.map) for step in pair.steps] == [("duplicate rule", 0.25), ("ties", 0.5)]


def test_rules_that_only_act_together_are_named_together() -> None:
    # IoU 4/9, or exactly 1/2 with a pixel added
    found, there = pred(boxes_at(0, width=9, height=4), [0.8]), target(boxes_at(0, width=9, height=9))
    assert pair_of(VOC12, BOTH, found, there).first == ()  # one half is not enough for `>`
    strict_65, loose = (
        replace(AT_60, name="65", match_thresholds=(0.65,)),
        replace(WIDER, name="loose", match_thresholds=(0.5,)),
    )
    (first,) = pair_of(strict_65, loose, found, there).first  # 4/9 misses both thresholds, 1/2 the higher one
    assert first.rules == ("pixel offset", "IoU thresholds")
    assert first.together
    assert first.because == "pixel offset and IoU thresholds"
    unconcerned = replace(loose, name="and more", max_detections=5, difficult="count")
    (first,) = pair_of(strict_65, unconcerned, found, there).first
    assert first.rules == ("pixel offset", "IoU thresholds")


def test_either_rule_is_named_when_each_alone_suffices() -> None:
    found, there = pred(boxes_at(0, height=5), [0.8]), target(boxes_at(0))
    strict_wider = replace(AT_60, name="strict at 60", equality=False)
    (first,) = pair_of(VOC12, strict_wider, found, there).first
    assert first.rules == ("equality", "IoU thresholds")
    assert first.because == "equality or IoU thresholds"


def test_first_difference_of_several_thresholds_is_the_highest_scored() -> None:
    # the first detection is judged differently at IoU 0.8 only, the second at 0.5 only
    boxes = torch.cat([boxes_at(0, height=8), boxes_at(30, height=5)])
    coco, strict = (replace(p, name=p.name + "s", match_thresholds=(0.5, 0.8)) for p in (VOC12, STRICT))
    (first,) = pair_of(coco, strict, pred(boxes, [0.9, 0.8]), target(boxes_at(0, 30))).first
    assert (first.score, first.threshold, first.rules) == (0.9, 0.8, ("equality",))


@over_seeds(10, 200)
def test_first_difference_is_the_highest_scored_detection_judged_differently(seed: int) -> None:
    rng = np.random.default_rng([seed, 40])
    data = random_dataset(rng, "difficult")
    a, b = (get_protocol(str(name)) for name in rng.choice(["voc07", "voc07-devkit", "voc07-python", "coco"], 2, False))
    evaluator = data.evaluator(a, b)
    (pair,) = evaluator.compare().pairs
    named = {d.class_name: d for d in pair.first}
    evidence = evaluator.evidence()
    at_half = [replace(p, match_thresholds=(0.5,)) for p in (a, b)]
    for one, other in zip(*(judge(evidence, protocol) for protocol in at_half), strict=True):
        said = dict(zip(other.detections.tolist(), other.verdicts[0].tolist(), strict=True))
        rows = zip(one.detections.tolist(), one.verdicts[0].tolist(), strict=True)
        different = [row for row, verdict in rows if said[row] != verdict]
        name = evidence.class_names[one.label]
        assert (name in named) == bool(different)
        if different:
            assert named[name].score == evidence.detections.scores[different[0]]
            assert named[name].box == tuple(evidence.detections.boxes[different[0]].tolist())
            assert named[name].rules
    assert list(pair.first) == sorted(pair.first, key=lambda d: -d.score)


@over_seeds(2, 50)
def test_steps_lead_from_one_number_to_the_other(seed: int) -> None:
    rng = np.random.default_rng([seed, 41])
    data = random_dataset(rng, "difficult")
    comparison = data.evaluator(*map(str, rng.choice(sorted(PROTOCOLS), 5, replace=False))).compare()
    assert len(comparison.pairs) == math.comb(5, 2)
    for pair in comparison.pairs:
        assert pair.steps[-1].map == pair.maps[1]
        rules = differing(*(PROTOCOLS[name] for name in pair.names))
        assert [step.rule for step in pair.steps] == [rule for rule in rules if concerns(rule, "boxes")]


def test_switching_every_differing_rule_gives_the_other_protocol() -> None:
    for a in PROTOCOLS.values():
        for b in PROTOCOLS.values():
            result = switched(a, b, differing(a, b))
            assert replace(result, name=b.name, ties=b.ties) == b  # None where it follows from the matching
            assert result.tie_order == b.tie_order


def test_every_field_of_a_protocol_belongs_to_a_rule() -> None:
    fields: Sequence[str] = [name for names in RULES.values() for name in names]
    assert sorted([*fields, "name"]) == sorted(vars(COCO))


def test_comparison_prints_the_reasons_and_the_classes_on_request() -> None:
    comparison = compared("voc07-devkit", "voc07-python", [HALF], [target(boxes_at(0, 30))])
    assert "recall levels" in str(comparison)
    assert comparison.text(classes=True).splitlines()[-3].split() == ["AP", "voc07-devkit", "voc07-python"]
    strict = compared(VOC12, STRICT, [HALF], [target(boxes_at(0, 30))])
    row = " ".join(str(strict).splitlines()[-1].split())
    assert row == "0 0 0.8 30 0 40 5 0.5 0.5000 true positive 0.5000 false positive equality"
    content = json.loads(json.dumps(strict.to_dict()))
    assert content["pairs"][0]["first_differences"][0]["rules"] == ["equality"]
    assert [result["protocol"] for result in content["results"]] == ["voc12", "strict"]


def test_the_answer_for_every_two_protocols_comes_first_and_classes_do_not_bury_it() -> None:
    comparison = (
        random_dataset(np.random.default_rng(45), "difficult").evaluator("voc07-devkit", "coco", STRICT).compare()
    )
    lines = str(comparison).splitlines()
    assert lines[:4] == [*(pair.line() for pair in comparison.pairs), ""]
    for pair in comparison.pairs:
        assert len(pair.first) > 3
        assert f"and of {len(pair.first) - 3} more classes (all with --classes)" in lines
    everything = comparison.text(classes=True).splitlines()
    assert not any("more classes" in line for line in everything)
    assert len(everything) > len(lines) + len(comparison.results[0].classes)


@over_seeds(3, 50)
def test_no_two_lines_of_a_pair_disagree_and_rules_that_change_nothing_are_folded(seed: int) -> None:
    data = random_dataset(np.random.default_rng([seed, 46]), "iscrowd")
    for pair in data.evaluator("ultralytics", "coco", "torchmetrics", "voc12").compare().pairs:
        (_, rows), _ = pair.tables()
        shown = {row[0]: row[-1] for row in rows}
        said = dict(part.split(" ", 1)[::-1] for part in pair.split().partition(": ")[2].split(", ") if part)
        assert shown == said
        assert "+0.00" not in shown.values()
        maps = [f"{100 * pair.maps[0]:.2f}", *(row[-2] for row in rows)]
        changes = [round(100 * float(now)) - round(100 * float(was)) for was, now in itertools.pairwise(maps)]
        assert changes == [round(100 * float(change)) for change in shown.values()]
        idle = [step.rule for step in pair.steps if step.rule not in shown]
        assert (
            not idle or f"change nothing: {', '.join(idle)}" in str(pair) or f"changes nothing: {idle[0]}" in str(pair)
        )


def test_an_overlap_beside_a_threshold_of_another_precision_is_told_on_its_side() -> None:
    found, there = pred(boxes_at(0, height=11.0), [0.9]), target(boxes_at(0, height=20.0))
    (first,) = pair_of("coco", "torchmetrics", found, there).first
    assert first.cells()[2:] == ["0.5500", "true positive", "just below 0.55000001", "false positive"]


def test_protocols_with_the_same_rules_are_said_to_be_the_same() -> None:
    found, there = pred(boxes_at(0), [0.8]), target(boxes_at(0))
    assert str(pair_of(VOC12, replace(VOC12, name="copy"), found, there)).endswith("the same rules")


def test_shown_overlaps_are_what_each_protocol_compared_with_the_threshold() -> None:
    found, there = pred(boxes_at(0, width=9, height=4), [0.8]), target(boxes_at(0, width=9, height=9))
    pair = pair_of(VOC12, WIDER, found, there)
    assert pair.first[0].overlaps == (4 / 9, 1 / 2)
    assert str(pair).splitlines()[-2].split()[4:] == ["threshold", "IoU", "voc12", "IoU", "wider", "rule"]
    assert "0.5  0.4444  false positive  0.5000  true positive" in str(pair)


def test_best_object_is_one_of_the_same_class_and_image() -> None:
    there = target(boxes_at(0, 30), labels=[0, 1])
    evaluator = Evaluator(2, [VOC12, replace(STRICT, match_thresholds=(0.4,), name="other")])
    evaluator.update([pred(boxes_at(0, height=4.5), [0.8])] * 2, [there, target(boxes_at(30))])
    (pair,) = evaluator.compare().pairs
    assert pair.first[0].overlaps == (0.45, 0.45)  # 4.5 of the 10 rows
    nothing_near = pair_of(VOC12, WITH_LIMIT, pred(boxes_at(0, 50), [0.9, 0.8]), target(boxes_at(0)))
    assert nothing_near.first[0].overlaps == (0.0, 0.0)


def test_overlap_with_a_crowd_is_the_share_of_the_detection_inside_it() -> None:
    crowd = target(torch.tensor([[0.0, 0, 40, 10]]), iscrowd=[True])
    (first,) = pair_of(VOC12, COCO, pred(boxes_at(0), [0.8]), crowd).first
    assert (first.overlaps, first.verdicts) == ((0.25, 1.0), ("false positive", "ignored"))


@over_seeds(10, 200)
def test_boxes_of_a_known_convention_cost_no_pixel_under_any_protocol(seed: int) -> None:
    data = random_dataset(np.random.default_rng([seed, 42]), "difficult")
    evaluator = Evaluator(data.K, ["voc12", "voc12-devkit", "coco"], boxes="continuous")
    evaluator.update(data.preds, data.targets)
    voc12_devkit = evaluator.compare().pairs[0]
    assert voc12_devkit.maps[0] == voc12_devkit.maps[1]
    assert [(step.rule, step.map) for step in voc12_devkit.steps] == [("pixel offset", voc12_devkit.maps[0])]
    assert voc12_devkit.first == ()
    computed = evaluator.compute()
    assert [result.map for result in evaluator.compare().results] == [
        *(computed.map, computed["voc12-devkit"].map, computed["coco"].map)
    ]


@over_seeds(3, 50)
def test_parts_add_up_to_the_difference_as_numbers_and_as_printed(seed: int) -> None:
    data = random_dataset(np.random.default_rng([seed, 44]), "iscrowd")
    for pair in data.evaluator("ultralytics", "coco", "torchmetrics", "voc12", "ultralytics-old").compare().pairs:
        parts = pair.parts()
        assert list(parts) == [step.rule for step in pair.steps]
        assert sum(parts.values()) == pytest.approx(100 * (pair.maps[1] - pair.maps[0]), abs=1e-11)
        total, *words = pair.split().replace(" points:", ",").replace(" points", ",").split(",")
        printed = [round(100 * float(word.split()[0])) for word in words if word.strip()]
        assert sum(printed) == round(100 * float(total))


def test_thresholds_in_single_precision_meet_those_in_double_precision() -> None:
    """An overlap of 0.55 reaches pycocotools' threshold and misses torchmetrics' one."""
    found, there = pred(boxes_at(0, height=11.0), [0.9]), target(boxes_at(0, height=20.0))
    pair = pair_of("coco", "torchmetrics", found, there)
    (first,) = pair.first
    assert first.rules == ("IoU thresholds",)
    assert first.verdicts == ("true positive", "false positive")
    assert pair.split() == "-10.00 points: -10.00 IoU thresholds"


def test_a_difference_keeps_the_objects_it_is_about() -> None:
    (first,) = pair_of(VOC12, STRICT, HALF, target(boxes_at(0, 30))).first
    assert first.objects == ((0.0, 0.0, 10.0, 10.0), (30.0, 0.0, 40.0, 10.0))
