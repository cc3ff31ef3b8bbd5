"""Roles of windows, and what a scene knows of one class, each against its definition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from stepgrad.engine.lists import judge_detections, values_of_class
from stepgrad.engine.matching import TRUE_POSITIVE, Rules, reaches
from stepgrad.engine.what_if import make_scene
from stepgrad.reference.class_ap import class_ap
from tests.engine.views import PROTOCOLS, Viewed, viewed

over_cases = pytest.mark.parametrize("protocol", PROTOCOLS)
SEEDS = range(3)


def by_image(case: Viewed, numbers: np.ndarray, ptr: np.ndarray) -> list[list[int]]:
    """Windows by image as a scene lists them."""
    parts = [case.windows(numbers[a:b]) for a, b in pairwise(ptr.tolist())]
    assert all(image == i for i, windows in enumerate(parts) for image, _ in windows)
    return [[b for _, b in windows] for windows in parts]


def reached(case: Viewed, i: int, b: int) -> list[int]:
    """The objects a window reaches."""
    return [g for g, overlap in enumerate(case.scene.images[i].objects.overlaps[b]) if overlap >= 0.5]


@over_cases
def test_roles_and_ap_are_those_of_the_reference(protocol: str) -> None:
    for seed in SEEDS:
        for nms_threshold in (None, 0.3):
            case = viewed(seed, protocol, nms_threshold=nms_threshold)
            roles, took, _, _ = judge_detections(case.one, case.one.rules.cumulative)
            assert np.array_equal(roles[0], case.roles())
            assert case.one.kept == sum(len(kept) for kept in case.kept)
            expected = class_ap(case.scene, case.scores).rounded
            assert values_of_class(case.one).tolist() == [expected * case.one.rules.norm] or (
                values_of_class(case.one)[0] / case.one.rules.norm == expected
            )
            objects = case.one.objects
            hits = took[0][roles[0] == TRUE_POSITIVE].tolist()
            assert len(set(hits)) == len(hits)  # an object is found once
            assert not objects.ignored[hits].any()
            assert (took[0][(roles[0] != TRUE_POSITIVE) & (took[0] >= 0)] >= 0).all()


@over_cases
def test_windows_are_listed_by_image_in_decreasing_score(protocol: str) -> None:
    for seed in SEEDS:
        case = viewed(seed, protocol)
        judged = make_scene(case.one).judged
        binding = case.one.rules.max_detections < len(case.one.ranking.order)
        listed = by_image(case, judged.listed, judged.listed_ptr)
        assert listed == (case.kept if binding else [[]] * len(case.kept))
        reaching = [[b for b in kept if reached(case, i, b)] for i, kept in enumerate(case.kept)]
        assert by_image(case, judged.contenders_of, judged.contender_ptr) == reaching
        positions = case.one.ranking.position[judged.contenders].tolist()
        assert positions == sorted(case.position(i, b) for i, kept in enumerate(reaching) for b in kept)


@over_cases
def test_what_lies_beyond_the_last_relevant_position_cannot_matter(protocol: str) -> None:
    for seed in SEEDS:
        case = viewed(seed, protocol)
        scene = make_scene(case.one)
        hits = np.flatnonzero(case.roles() == TRUE_POSITIVE).tolist()
        for i, scores in enumerate(case.scores):
            could_be = [case.position(i, b) for b in range(len(scores)) if reached(case, i, b)]
            assert scene.last_relevant[i] == max([*hits, *could_be], default=-1)


@over_cases
def test_detections_beyond_the_limit_do_not_count(protocol: str) -> None:
    for seed in SEEDS:
        case = viewed(seed, protocol)
        judged = make_scene(case.one).judged
        most = case.protocol.max_detections or 10**9
        for i, kept in enumerate(case.kept):
            last = case.position(i, kept[most - 1]) if len(kept) >= most else len(case.one.ranking.order)
            assert judged.last_counted[i] == last


@over_cases
def test_windows_know_the_objects_they_reach(protocol: str) -> None:
    for seed in SEEDS:
        case = viewed(seed, protocol)
        judged, objects = make_scene(case.one).judged, case.one.objects
        first_object = np.cumsum([0, *(len(image.objects.ignored) for image in case.scene.images)])
        for i, scores in enumerate(case.scores):
            several = False
            for b in range(len(scores)):
                number, own = case.number(i, b), reached(case, i, b)
                r = judged.number[number]
                assert (r >= 0) == bool(own)
                pairs = range(judged.first[r], judged.last[r]) if own else []
                in_reach = [int(objects.pair_object[k]) for k in pairs if objects.pair_overlap[k] >= 0.5]
                assert in_reach == [first_object[i] + g for g in own]
                assert all(objects.pair_window[k] == number for k in pairs)
                several |= len(own) > 1
            assert judged.several[0, i] == several


def rules_of(threshold: float, equality: bool, best_free: bool) -> Rules:
    return viewed(0).one.rules._replace(thresholds=np.array([threshold]), equality=equality, best_free=best_free)


@pytest.mark.parametrize(
    ("overlap", "threshold", "equality", "best_free", "expected"),
    [
        (0.5, 0.5, True, False, True),
        (0.5, 0.5, False, False, False),
        (np.nextafter(0.5, 1.0), 0.5, False, False, True),
        (0.5, np.nextafter(0.5, 1.0), True, False, False),
        (0.5, 0.5, False, True, False),
        (1.0 - 1e-10, 1.0, True, True, True),  # COCO's rule never asks for more than this
        (1.0 - 1e-10, 1.0, True, False, False),
        (1.0 - 2e-10, 1.0, True, True, False),
    ],
)
def test_a_threshold_is_reached_by_the_rule_of_the_protocol(
    overlap: float, threshold: float, equality: bool, best_free: bool, expected: bool
) -> None:
    assert reaches(overlap, rules_of(threshold, equality, best_free), 0) == expected
