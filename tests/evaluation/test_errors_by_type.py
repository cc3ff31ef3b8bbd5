"""Types of mistakes: each false positive and each object not found has one, and mending all leaves nothing to want."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stepgrad.errors import ConfigError
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.errors_by_type import LEFT_OUT, RIGHT, TYPES, error_types, find_mistakes
from stepgrad.evaluation.judge import judge
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import PROTOCOLS, VOC12, get_protocol
from tests.evaluation.datasets import boxes_at, pred, random_dataset, target
from tests.evaluation.ultralytics_numbers import CLASSES, random_set
from tests.scenes import over_seeds

NAMES = ["voc07", "voc12", "coco", "ultralytics", "ultralytics-old"]


def evaluator_of(seed: int, name: str) -> Evaluator:
    data = random_set(seed)  # several classes at the same places
    evaluator = Evaluator(CLASSES, name)
    evaluator.update(data.preds, data.targets)
    return evaluator


def test_one_mistake_of_each_type() -> None:
    there = target(boxes_at(0, 100, 200, 300, 400), labels=[0, 0, 1, 0, 0])
    found = pred(
        torch.cat(
            [
                boxes_at(0),  # right
                boxes_at(0.5),  # duplicate
                boxes_at(105),  # a third of its object: box
                boxes_at(200),  # on an object of the other class: class
                boxes_at(205),  # and only a third of it: both
                boxes_at(600),  # on nothing: background
                boxes_at(300),  # right
            ]
        ),
        [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3],
    )
    evaluator = Evaluator(2, "voc12")
    evaluator.update([found], [there])
    mistakes = find_mistakes(evaluator.evidence(), VOC12)
    kinds = [TYPES[kind] if kind >= 0 else "right" for kind in mistakes.of_detections.tolist()]
    assert kinds == ["right", "duplicate", "box", "class", "both", "background", "right"]
    objects = [TYPES[kind] if kind >= 0 else "right" for kind in mistakes.of_objects.tolist()]
    assert objects == ["right", "box", "class", "right", "missed"]
    errors = evaluator.error_types()
    assert errors.counts == dict.fromkeys(TYPES, 1)
    assert errors.fixed == 1.0
    # class 0: 2 of 4 objects found, at ranks 1 and 7; class 1: 1 object, nothing found
    assert errors.map == pytest.approx((1 + 2 / 7) / 4 / 2)
    # the third detection is right too: ranks 1, 3 and 7
    assert errors.gains["box"] == pytest.approx((1 + 2 / 3 + 3 / 7) / 4 / 2 - errors.map)
    # the fourth leaves class 0 (ranks 1 and 6) and is the first of class 1
    assert errors.gains["class"] == pytest.approx(((1 + 2 / 6) / 4 + 1) / 2 - errors.map)
    assert errors.gains["missed"] == pytest.approx((1 + 2 / 7) / 3 / 2 - errors.map)


@pytest.mark.parametrize(("label", "kind"), [(0, "box"), (1, "both")])
def test_an_overlap_of_exactly_the_least_is_no_background(label: int, kind: str) -> None:
    evaluator = Evaluator(2, "voc12")
    quarter = pred(boxes_at(0, width=2.5), [0.9], [label])  # of the object
    evaluator.update([quarter], [target(boxes_at(0), [0])])
    assert evaluator.error_types(background=0.25).counts[kind] == 1
    assert evaluator.error_types(background=np.nextafter(0.25, 1.0)).counts["background"] == 1


@pytest.mark.parametrize("name", NAMES)
@over_seeds(4, 200)
def test_types_are_disjoint_and_cover_every_mistake(seed: int, name: str) -> None:
    evidence, protocol = evaluator_of(seed, name).evidence(), PROTOCOLS[name]
    mistakes = find_mistakes(evidence, protocol)
    for row in judge(evidence, replace(protocol, match_thresholds=(0.5,))):
        kinds = mistakes.of_detections[row.detections]
        verdicts = row.verdicts[0]
        np.testing.assert_array_equal(kinds == RIGHT, verdicts == 1)
        np.testing.assert_array_equal(kinds == LEFT_OUT, verdicts == 2)
        np.testing.assert_array_equal(kinds >= 0, verdicts == 0)
        of_class = evidence.objects.labels == row.label
        assert np.count_nonzero(mistakes.of_objects[of_class] == RIGHT) == np.count_nonzero(verdicts == 1)
    claims = mistakes.claimed[mistakes.claimed >= 0]
    assert len(set(claims.tolist())) == len(claims)
    assert (mistakes.of_objects[claims] >= 0).all()


@pytest.mark.parametrize("name", NAMES)
@over_seeds(4, 200)
def test_mending_nothing_is_the_map_and_mending_everything_is_perfect(seed: int, name: str) -> None:
    evidence, protocol = evaluator_of(seed, name).evidence(), PROTOCOLS[name]
    mistakes = find_mistakes(evidence, protocol)
    result = evaluate_under(evidence, protocol)
    assert mistakes.map_after([]) == pytest.approx(result.map_at(0.5), abs=1e-12)
    counts, norm = protocol.level_counts(1)
    present = sum(row.objects > 0 for row in result.classes)
    share = present / CLASSES if protocol.absent_classes == "zero" else float(present > 0)
    assert mistakes.map_after(TYPES) == pytest.approx(share * counts.sum() / norm, abs=1e-12)


@over_seeds(4, 100)
def test_mending_never_costs_anything(seed: int) -> None:
    """Each step takes a false positive away, or makes it right, or leaves less to find."""
    for name in ("voc12", "coco"):
        gains = evaluator_of(seed, name).error_types().gains
        for kind in ("box", "duplicate", "background", "both", "missed"):
            assert gains[kind] >= -1e-12, kind


@over_seeds(3, 50)
def test_difficult_objects_and_crowds_are_no_mistakes(seed: int) -> None:
    for flag, name in (("difficult", "voc12"), ("iscrowd", "coco")):
        data = random_dataset(np.random.default_rng([seed, 61]), flag)
        evaluator = data.evaluator(name)
        evidence = evaluator.evidence()
        mistakes = find_mistakes(evidence, get_protocol(name))
        aside = evidence.objects.difficult | evidence.objects.crowd
        assert (mistakes.of_objects[aside] == LEFT_OUT).all()
        assert mistakes.map_after([]) == pytest.approx(evaluator.compute().map_at(0.5), abs=1e-12)


def test_nothing_at_all_is_ordinary() -> None:
    for preds, targets in (([], []), ([pred(boxes_at(), [])], [target(boxes_at())])):
        evaluator = Evaluator(2, "coco")
        evaluator.update(preds, targets)
        errors = evaluator.error_types()
        assert sum(errors.counts.values()) == 0
        assert errors.fixed == 0.0


def test_the_table_and_the_plot_show_every_type(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need it: pip install .[train]")
    errors = evaluator_of(3, "coco").error_types()
    assert [line.split()[0] for line in str(errors).splitlines()[2:]] == list(TYPES)
    assert json.loads(json.dumps(errors.to_dict()))["counts"] == errors.counts
    figure = errors.plot(tmp_path / "errors.svg")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(TYPES)[::-1]
    assert (tmp_path / "errors.svg").exists()


@pytest.mark.parametrize(("threshold", "background"), [(0.5, 0.5), (0.5, 0.0), (1.2, 0.1)])
def test_thresholds_out_of_order_are_refused(threshold: float, background: float) -> None:
    with pytest.raises(ConfigError, match="background < threshold"):
        error_types(evaluator_of(0, "coco").evidence(), get_protocol("coco"), threshold, background)


@pytest.mark.parametrize(("name", "offset", "kind"), [("voc12", 1.0, "box"), ("coco", 0.0, "duplicate")])
def test_an_overlap_of_exactly_the_threshold_counts_here_as_it_does_in_matching(
    name: str, offset: float, kind: str
) -> None:
    whole = torch.tensor([[0.0, 0.0, 10.0 - offset, 10.0 - offset]])
    half = torch.tensor([[0.0, 0.0, 10.0 - offset, 5.0 - offset]])
    evaluator = Evaluator(1, name)
    evaluator.update([pred(torch.cat([whole, half]), [0.9, 0.8])], [target(whole)])
    assert [kind for kind, count in evaluator.error_types().counts.items() if count] == [kind]
