"""Labels ordered by what mAP would gain if they were changed: the gains are those of evaluating everything again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepgrad.errors import ConfigError
from stepgrad.evaluation import Evaluator, Evidence, LabelError, find_label_errors
from stepgrad.evaluation.label_errors import KINDS, SAME_PLACE
from stepgrad.evaluation.records import LookedFor
from stepgrad.metric.boxes import overlaps_with
from stepgrad.metric.protocol import PROTOCOLS, get_protocol
from tests.evaluation.datasets import boxes_at, pred, random_dataset, target
from tests.evaluation.ultralytics_numbers import CLASSES, random_set
from tests.oracles.label_errors import gain, likely, map_of, with_label_changed
from tests.scenes import over_seeds


def evidence_of(found: dict[str, torch.Tensor], there: dict[str, torch.Tensor], classes: int = 2) -> Evidence:
    evaluator = Evaluator(classes, "voc12")
    evaluator.update([found], [there])
    return evaluator.evidence()


def random_evidence(seed: int, name: str) -> Evidence:
    """Classes at the same places, or with crowds, ties and many objects; for LVIS with what was looked for."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        evaluator = random_dataset(rng, "iscrowd" if rng.random() < 0.5 else "difficult").evaluator(name)
    else:
        data = random_set(seed)
        evaluator = Evaluator(CLASSES, name)
        evaluator.update(data.preds, data.targets)
    evidence = evaluator.evidence()
    known = [np.unique(rng.integers([evidence.num_images, evidence.num_classes], size=(9, 2)), axis=0) for _ in "ab"]
    return replace(evidence, looked_for=LookedFor(*known)) if get_protocol(name).federated else evidence


@pytest.mark.parametrize("name", list(PROTOCOLS))
@over_seeds(2, 100)
def test_each_gain_is_that_of_evaluating_everything_again(seed: int, name: str) -> None:
    evidence, protocol = random_evidence(seed, name), get_protocol(name)
    errors = find_label_errors(evidence, protocol)
    for error in errors[:: 1 + len(errors) // 12]:
        assert error.gain == pytest.approx(gain(evidence, error, protocol), abs=1e-12)


@pytest.mark.parametrize("name", ["voc12", "coco", "lvis"])
@over_seeds(3, 100)
def test_the_order_of_likely_errors_is_that_of_its_formula(seed: int, name: str) -> None:
    evidence, protocol = random_evidence(seed, name), get_protocol(name)
    errors = find_label_errors(evidence, protocol)
    for error in errors[:: 1 + len(errors) // 12]:
        assert error.likely == pytest.approx(likely(evidence, error, protocol), rel=1e-9, abs=1e-12)


@over_seeds(4, 50)
def test_changes_of_whole_data_at_once_are_those_of_few_at_a_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = random_evidence(seed, "coco")
    at_once = find_label_errors(evidence)
    monkeypatch.setattr("stepgrad.evaluation.label_errors._TOGETHER", 3)
    assert find_label_errors(evidence) == at_once


@over_seeds(6, 100)
def test_the_list_is_in_order_gains_something_and_names_each_place_once(seed: int) -> None:
    evidence = random_evidence(seed, "coco")
    errors = find_label_errors(evidence, order="gain")
    likely = [error.likely for error in find_label_errors(evidence)]
    assert likely == sorted(likely, reverse=True)
    gains = [error.gain for error in errors]
    assert gains == sorted(gains, reverse=True)
    assert all(value > 0.0 for value in gains)
    for n, error in enumerate(errors):
        near = [other.box for other in errors[:n] if other.image == error.image]
        if near:
            assert overlaps_with(np.array(error.box), np.array(near), 0.0).max() < SAME_PLACE


@over_seeds(6, 100)
def test_what_a_change_says_is_what_changes(seed: int) -> None:
    evidence = random_evidence(seed, "voc12")
    labels, found = evidence.objects, evidence.detections
    for error in find_label_errors(evidence, "voc12"):
        after = with_label_changed(evidence, error).objects
        row = len(labels) if error.kind == "add" else error.object
        if error.kind == "remove":
            assert (labels.labels[row], tuple(labels.boxes[row])) == (error.label, error.box)
            assert len(after) == len(labels) - 1
        else:
            assert (after.images[row], after.labels[row], tuple(after.boxes[row])) == (
                error.image,
                error.label,
                error.box,
            )
            assert found.images[error.detection] == error.image


def only(errors: list[LabelError]) -> LabelError:
    (error,) = errors
    return error


def test_a_label_that_was_forgotten_swapped_or_badly_drawn_is_the_one_found() -> None:
    boxes, classes = boxes_at(0, 100, 200), [0, 1, 0]
    found = pred(boxes, [0.8, 0.9, 0.9], classes)  # the third first: a false alarm below all others costs nothing
    forgotten = only(find_label_errors(evidence_of(found, target(boxes[:2], classes[:2]))))
    assert (forgotten.kind, forgotten.object, forgotten.detection, forgotten.label) == ("add", None, 2, 0)
    swapped = only(find_label_errors(evidence_of(found, target(boxes, [0, 1, 1]))))
    assert (swapped.kind, swapped.object, swapped.detection, swapped.label) == ("swap", 2, 2, 0)
    moved = torch.cat([boxes[:2], boxes_at(206)])
    drawn = only(find_label_errors(evidence_of(found, target(moved, classes))))
    assert (drawn.kind, drawn.object, drawn.box) == ("redraw", 2, tuple(boxes[2].tolist()))
    spurious = only(find_label_errors(evidence_of(found, target(boxes_at(0, 100, 200, 300), [*classes, 0]))))
    assert (spurious.kind, spurious.object, spurious.detection) == ("remove", 3, None)


def test_a_duplicate_suggests_no_label() -> None:
    found = pred(torch.cat([boxes_at(0), boxes_at(1)]), [0.9, 0.8])
    assert find_label_errors(evidence_of(found, target(boxes_at(0), [0])), "voc12") == []


def test_a_class_without_labels_can_get_its_first_and_lose_its_last() -> None:
    for name in ("coco", "voc12"):  # the class enters the mean, or leaves it
        protocol = replace(get_protocol(name), absent_classes="skip")
        first = only(find_label_errors(evidence_of(pred(boxes_at(0), [0.9], [1]), target(boxes_at(), [])), protocol))
        assert (first.kind, first.gain) == ("add", 1.0)
        right = pred(boxes_at(0), [0.9], [0])
        last = only(find_label_errors(evidence_of(right, target(boxes_at(0, 100), [0, 1])), protocol))
        assert (last.kind, last.gain) == ("remove", 0.5)


@pytest.mark.parametrize("found", [pred(boxes_at(), []), pred(boxes_at(0), [0.5])])
@pytest.mark.parametrize("there", [target(boxes_at(), []), target(boxes_at(0), [0])])
def test_nothing_found_or_nothing_labelled_is_ordinary_input(
    found: dict[str, torch.Tensor], there: dict[str, torch.Tensor]
) -> None:
    evidence = evidence_of(found, there)
    protocol = get_protocol("coco")
    assert all(error.gain == gain(evidence, error, protocol) for error in find_label_errors(evidence))


def test_a_box_without_area_becomes_no_label() -> None:
    flat = pred(torch.tensor([[5.0, 5.0, 5.0, 9.0]]), [0.9])
    assert find_label_errors(evidence_of(flat, target(boxes_at(100), [0]))) == []


def test_applying_every_change_in_turn_never_ends_below_the_best_single_one() -> None:
    evidence, protocol = random_evidence(2, "coco"), get_protocol("coco")
    before = map_of(evidence, protocol)
    best = find_label_errors(evidence)[0]
    for _ in range(5):  # each time the best of what is left
        errors = find_label_errors(evidence)
        if not errors:
            break
        evidence = with_label_changed(evidence, errors[0])
    assert map_of(evidence, protocol) >= before + best.gain - 1e-12


def test_masks_are_refused() -> None:
    evaluator = Evaluator(1, "coco", task="masks")
    mask = torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[0, 2:5, 2:5] = True
    there = {"masks": mask, "labels": torch.tensor([0])}
    evaluator.update([{**there, "scores": torch.tensor([0.5])}], [there])
    with pytest.raises(ConfigError, match="boxes"):
        find_label_errors(evaluator.evidence())


def test_every_kind_occurs_in_random_scenes() -> None:
    kinds = {error.kind for seed in range(6) for error in find_label_errors(random_evidence(seed, "voc12"), "voc12")}
    assert kinds == set(KINDS)
