"""Roles and what a scene knows of one class, each against its definition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from stepgrad.kernels.class_view import count_kept
from stepgrad.kernels.matching import ABSENT, FALSE_POSITIVE, TRUE_POSITIVE, all_pairs, reach_of, reaches, rule_at
from stepgrad.kernels.rank_steps import no_ties
from stepgrad.kernels.roles import ByImage, roles_of_class
from stepgrad.kernels.scene import Scene, build_scene, role_at
from stepgrad.metric.class_values import class_average_precisions
from stepgrad.reference.boxes import coverage, iou
from stepgrad.reference.class_ap import class_ap
from tests.kernels.views import PROTOCOLS, Viewed, viewed
from tests.scenes import clustered_boxes

over_cases = pytest.mark.parametrize("protocol", PROTOCOLS)
SEEDS = range(3)


def roles(scene: Scene, t: int = 0) -> np.ndarray:
    """The role of every slot."""
    return np.array([role_at(scene, t, slot) for slot in range(len(scene.windows.position))], dtype=np.int8)


def listed(case: Viewed, by_image: ByImage) -> list[list[int]]:
    """Windows by image as a scene lists them."""
    ends = by_image.ptr.tolist()
    found = [case.windows(by_image.slots[a:b]) for a, b in pairwise(ends)]
    assert all(image == i for i, windows in enumerate(found) for image, _ in windows)
    return [[b for _, b in windows] for windows in found]


@over_cases
def test_roles_are_those_of_the_reference(protocol: str) -> None:
    for seed in SEEDS:
        for nms_threshold in (None, 0.3):
            case = viewed(seed, protocol, nms_threshold=nms_threshold)
            scene = build_scene(case.view, case.rules, no_ties())
            assert np.array_equal(roles(scene), case.roles())
            assert np.array_equal(roles_of_class(case.view, case.rules)[0], case.roles()[case.view.order])
            assert count_kept(case.view) == sum(len(kept) for kept in case.kept)


@over_cases
def test_average_precision_is_that_of_the_reference(protocol: str) -> None:
    for seed in SEEDS:
        case = viewed(seed, protocol)
        expected = class_ap(case.scene, case.scores).rounded
        scene = build_scene(case.view, case.rules, no_ties())
        assert class_average_precisions(case.view, case.rules) == [expected]
        assert scene.high[0] / case.view.norm == expected


@over_cases
def test_windows_are_listed_by_image_in_decreasing_score(protocol: str) -> None:
    for seed in SEEDS:
        case = viewed(seed, protocol)
        scene = build_scene(case.view, case.rules, no_ties())
        binding = case.view.max_detections < len(case.view.order)
        assert listed(case, scene.judged.listed) == (case.kept if binding else [[]] * len(case.kept))
        reaching = [[b for b in kept if reached(case, i, b)] for i, kept in enumerate(case.kept)]
        assert listed(case, scene.contenders) == reaching


def reached(case: Viewed, i: int, b: int) -> list[int]:
    """The objects a window reaches."""
    return [g for g, overlap in enumerate(case.scene.images[i].objects.overlaps[b]) if overlap >= 0.5]


@over_cases
def test_what_lies_beyond_the_last_relevant_position_cannot_matter(protocol: str) -> None:
    for seed in SEEDS:
        case = viewed(seed, protocol)
        scene = build_scene(case.view, case.rules, no_ties())
        hits = [case.view.position[s] for s in np.flatnonzero(roles(scene) == TRUE_POSITIVE)]
        for i, scores in enumerate(case.scores):
            could_be = [case.position(i, b) for b in range(len(scores)) if reached(case, i, b)]
            assert scene.last_relevant[i] == max([*hits, *could_be], default=-1)


@over_cases
def test_detections_beyond_the_limit_do_not_count(protocol: str) -> None:
    for seed in SEEDS:
        case = viewed(seed, protocol)
        scene = build_scene(case.view, case.rules, no_ties())
        most = case.protocol.max_detections or 10**9
        for i, kept in enumerate(case.kept):
            assert scene.judged.over_limit[i] == (len(kept) > most)
            last = case.position(i, kept[most - 1]) if len(kept) >= most else len(case.view.order)
            assert scene.judged.last_counted[i] == last


@over_cases
def test_claims_count_the_windows_whose_best_object_it_is(protocol: str) -> None:
    for seed in SEEDS:
        case = viewed(seed, protocol)
        scene = build_scene(case.view, case.rules, no_ties())
        most = case.protocol.max_detections or 10**9
        expected = []
        for i, image in enumerate(case.scene.images):
            best = [
                max(reached(case, i, b), key=lambda g: (image.objects.overlaps[b][g], -g), default=-1)
                for b in case.kept[i][:most]
            ]
            expected += [best.count(g) for g in range(len(image.objects.ignored))]
        assert scene.claims.tolist() == [expected]


@over_cases
def test_reachers_are_the_windows_that_reach_an_object(protocol: str) -> None:
    for seed in SEEDS:
        case = viewed(seed, protocol)
        view = case.view
        found = reach_of(view.pairs, view.objects, case.rules, len(view.position), view.images)
        rule = rule_at(case.rules, 0)
        first_object = np.cumsum([0, *(len(image.objects.ignored) for image in case.scene.images)])
        for i, scores in enumerate(case.scores):
            several = False
            for b in range(len(scores)):
                slot, own = case.slot(i, b), reached(case, i, b)
                r = found.number[slot]
                assert (r >= 0) == bool(own)
                pairs = range(found.first[r], found.last[r]) if own else []
                in_reach = [int(view.pairs.object[k]) for k in pairs if reaches(view.pairs.iou[k], rule)]
                assert in_reach == [first_object[i] + g for g in own]
                assert all(view.pairs.slot[k] == slot for k in pairs)
                several |= len(own) > 1
            assert found.several[0, i] == several


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("lowest", [0.0, 0.4])
def test_pairs_are_all_overlaps_of_an_image_more_than_the_room_first_made(lowest: float, sort: bool) -> None:
    rng = np.random.default_rng(3)
    boxes = clustered_boxes(rng, np.array([[10, 10], [14, 10]]), 70, jitter=2)
    objects = clustered_boxes(rng, np.array([[10, 10], [14, 10]]), 40, jitter=2)
    offsets, images = np.array([0, 60, 60, 70]), np.repeat([0, 2], 20).astype(np.int32)
    crowd = rng.random(40) < 0.3
    parts = [a + np.argsort(boxes[a:b, 0], kind="stable") for a, b in ((0, 60), (60, 70))]
    by_left = np.concatenate(parts).astype(np.int32) if sort else np.zeros(0, dtype=np.int32)
    given = boxes[by_left] if sort else boxes
    none = np.zeros(0)
    windows, found, values = all_pairs(given, none, by_left, offsets, objects, none, images, crowd, 0.0, lowest)
    overlaps = np.where(crowd, coverage(boxes, objects), iou(boxes, objects))
    same = np.array([0] * 60 + [2] * 10)[:, None] == images
    expected = {(b, g): overlaps[b, g] for b, g in np.argwhere(same & (overlaps > 0.0) & (overlaps >= lowest)).tolist()}
    assert len(windows) == len(expected)
    assert lowest > 0.0 or len(windows) > 1024
    assert dict(zip(zip(windows.tolist(), found.tolist(), strict=True), values.tolist(), strict=True)) == expected


def test_a_class_without_objects_has_no_roles_but_misses() -> None:
    case = viewed(0)
    view = case.view._replace(max_detections=10**6)
    nothing = view._replace(
        pairs=type(view.pairs)(*(a[:0] for a in view.pairs)), objects=type(view.objects)(*(a[:0] for a in view.objects))
    )
    scene = build_scene(nothing, case.rules, no_ties())
    assert (scene.ranked.T.tolist(), scene.claims.size, len(scene.contenders.slots)) == ([0], 0, 0)
    assert set(roles(scene).tolist()) == {FALSE_POSITIVE, ABSENT}


@pytest.mark.parametrize("count", [1, 2])
def test_written_areas_count_in_the_place_of_those_of_the_corners(count: int) -> None:
    boxes = np.array([[0.0, 0.0, 4.0, 2.0], [0.0, 0.0, 2.0, 2.0]])[:count]
    objects, areas, object_areas = boxes[::-1].copy(), np.array([9.0, 5.0])[:count], np.array([6.0, 8.0])[:count]
    none, images, crowd = np.zeros(0), np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.bool_)
    by_left, offsets = np.zeros(0, dtype=np.int32), np.array([0, count])
    inter = np.prod(np.minimum(boxes[:, None, 2:], objects[:, 2:]), axis=2)
    own, other = boxes[:, 2] * boxes[:, 3], objects[:, 2] * objects[:, 3]
    for given, theirs in ((none, none), (areas, none), (none, object_areas), (areas, object_areas)):
        found = all_pairs(boxes, given, by_left, offsets, objects, theirs, images, crowd, 0.0, 0.0)
        union = (given if len(given) else own)[:, None] + (theirs if len(theirs) else other) - inter
        table = np.zeros((count, count))
        table[found[0], found[1]] = found[2]
        assert np.array_equal(table, inter / union)
