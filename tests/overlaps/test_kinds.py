"""Each kind of overlap equals its definition: masks to the last bit, poses and oriented boxes to 1e-12."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError, NonFiniteError
from stepgrad.overlaps import COCO_SIGMAS, Boxes, Distance, Keypoints, Masks, Overlap, Own, ProbIoU, Rotated, Segments
from stepgrad.overlaps.masks import coco_counts, dense_of, runs_of_coco, runs_of_dense, take_runs, turned
from stepgrad.reference.boxes import coverage, iou
from stepgrad.reference.overlaps import keypoint_similarity, mask_iou, rotated_iou
from tests.scenes import over_seeds

mask_api = pytest.importorskip("pycocotools.mask", reason="pycocotools: the reference for masks")


def random_masks(rng: np.random.Generator, count: int, height: int, width: int) -> np.ndarray:
    """Blobs, single pixels, full and empty masks, and noise."""
    masks = np.zeros((count, height, width), dtype=bool)
    for mask in masks:
        kind = rng.integers(6)
        if kind == 0:
            mask[:] = rng.random((height, width)) < rng.choice([0.02, 0.5, 0.95])
        elif kind == 1:
            mask[rng.integers(height), rng.integers(width)] = True
        elif kind == 2:
            mask[:] = True
        elif kind > 3:
            (top, bottom), (left, right) = np.sort(rng.integers(0, [[height + 1], [width + 1]], (2, 2)), axis=1)
            mask[top:bottom, left:right] = True
    return masks


def coco_form(mask: np.ndarray, compressed: bool) -> dict[str, Any]:
    encoded = mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))
    return (
        encoded
        if compressed
        else {"size": list(mask.shape), "counts": coco_counts(runs_of_dense(mask[None], "a mask"), 0)}
    )


@over_seeds(20, 2000)
def test_masks_equal_pycocotools_to_the_last_bit_whatever_their_form(seed: int) -> None:
    rng = np.random.default_rng([seed, 70])
    height, width = (int(side) for side in rng.integers(1, 40, 2))
    windows, objects = random_masks(rng, 5, height, width), random_masks(rng, 4, height, width)
    crowd = rng.random(4) < 0.3
    forms = [[coco_form(m, compressed=bool(rng.integers(2))) for m in masks] for masks in (windows, objects)]
    theirs = mask_api.iou(
        *([coco_form(m, True) for m in masks] for masks in (windows, objects)), crowd.astype(np.uint8).tolist()
    )
    given = [windows, torch.tensor(windows), forms[0], list(torch.tensor(windows))]
    for one in given:
        for other in (torch.tensor(objects), objects.astype(np.float32), forms[1]):
            assert Masks()(one, {"masks": other}, crowd).numpy().tolist() == np.asarray(theirs).tolist()
    slow = [[mask_iou(w, o, bool(c)) for o, c in zip(objects, crowd, strict=True)] for w in windows]
    assert slow == np.asarray(theirs).tolist()


@over_seeds(20, 2000)
def test_polygons_are_filled_as_pycocotools_fills_them(seed: int) -> None:
    rng = np.random.default_rng([seed, 71])
    height, width = (int(side) for side in rng.integers(1, 60, 2))
    polygons = []
    for _ in range(int(rng.integers(1, 4))):
        points = rng.uniform(-6, 66, (int(rng.integers(3, 9)), 2)).round(int(rng.integers(0, 4)))
        points = np.repeat(points, 1 + (rng.random(len(points)) < 0.2), axis=0)  # some points twice
        polygons.append(points.reshape(-1).tolist())
    merged = mask_api.merge(mask_api.frPyObjects(polygons, height, width))
    theirs = dense_of(runs_of_coco([merged], "theirs"), 0)
    runs = runs_of_coco([{"size": [height, width], "polygons": polygons}], "polygons")
    assert dense_of(runs, 0).tolist() == theirs.tolist()


@over_seeds(10, 200)
def test_runs_are_the_same_masks_read_either_way(seed: int) -> None:
    rng = np.random.default_rng([seed, 72])
    masks = random_masks(rng, 6, int(rng.integers(1, 30)), int(rng.integers(1, 30)))
    runs = runs_of_dense(masks, "masks")
    columns = turned(runs)
    rows = np.flatnonzero(masks.any(axis=(1, 2)))
    for i, mask in enumerate(masks):
        assert dense_of(runs, i).astype(bool).tolist() == mask.tolist() == dense_of(columns, i).astype(bool).tolist()
        again = runs_of_coco([{"size": list(mask.shape), "counts": coco_counts(runs, i)}], "again")
        assert dense_of(again, 0).astype(bool).tolist() == mask.tolist()
    chosen = take_runs(runs, rows[::-1])
    assert chosen.counts.tolist() == masks[rows[::-1]].sum(axis=(1, 2)).tolist()
    for i in rows:
        where = np.argwhere(masks[i])
        inside = [*where.min(axis=0)[::-1].tolist(), *(where.max(axis=0)[::-1] + 1).tolist()]
        x1, y1, x2, y2 = runs.boxes[i].tolist()
        assert x1 <= inside[0]
        assert y1 == inside[1]
        assert x2 >= inside[2]
        assert y2 == inside[3]


@over_seeds(20, 1000)
def test_poses_equal_their_definition(seed: int) -> None:
    rng = np.random.default_rng([seed, 73])
    k = int(rng.integers(1, 18))
    sigmas = rng.uniform(0.02, 0.2, k).tolist()
    windows = rng.uniform(0, 60, (4, k, 2))
    corners = rng.uniform(0, 40, (3, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(1, 40, (3, 2))], axis=1)
    points = np.concatenate([rng.uniform(0, 60, (3, k, 2)), rng.integers(0, 3, (3, k, 1))], axis=2)
    points[0, :, 2] = 0  # nothing labelled
    target = {"keypoints": points, "boxes": boxes, "area": rng.uniform(10, 900, 3)}
    found = Keypoints(sigmas)(windows, target)
    expected = [
        [keypoint_similarity(w, p, a, sigmas, b) for p, a, b in zip(points, target["area"], boxes, strict=True)]
        for w in windows
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


def oriented(rng: np.random.Generator, count: int) -> np.ndarray:
    """Oriented boxes that touch, nest, coincide, have no area, and angles that wrap around."""
    boxes = np.concatenate([rng.integers(0, 12, (count, 2)), rng.integers(0, 9, (count, 2))], axis=1).astype(np.float64)
    turns = rng.choice([0.0, math.pi / 2, math.pi, -math.pi, 2 * math.pi, 0.3, -1.2, 7.5], (count, 1))
    boxes = np.concatenate([boxes, turns], axis=1)
    if rng.random() < 0.5:
        boxes[:, :4] += rng.uniform(-0.4, 0.4, (count, 4)).clip(0, None)
    if rng.random() < 0.3:
        boxes[:, :2] += 1e5  # far from the origin
    return boxes


@over_seeds(40, 2000)
def test_oriented_boxes_equal_exact_clipping(seed: int) -> None:
    rng = np.random.default_rng([seed, 74])
    boxes = oriented(rng, 7)
    windows, objects = boxes[:4], boxes[3:]  # one is in both
    crowd = rng.random(len(objects)) < 0.3
    expected = [
        [rotated_iou(w, o, bool(c)) for o, c in zip(objects.tolist(), crowd, strict=True)] for w in windows.tolist()
    ]
    far = 1e-12 if boxes[:, 0].max() < 1e4 else 1e-9  # corners at 1e5 have 1e-11 of a pixel less
    np.testing.assert_allclose(Rotated()(windows, objects, crowd).numpy(), expected, rtol=0, atol=far)
    degrees = np.concatenate([objects[:, :4], np.rad2deg(objects[:, 4:])], axis=1)
    same = np.concatenate([windows[:, :4], np.rad2deg(windows[:, 4:])], axis=1)
    np.testing.assert_allclose(Rotated(degrees=True)(same, degrees, crowd).numpy(), expected, rtol=0, atol=10 * far)


@over_seeds(10, 200)
def test_upright_boxes_are_oriented_boxes_too_and_corners_may_turn_either_way(seed: int) -> None:
    rng = np.random.default_rng([seed, 75])
    low = rng.integers(0, 20, (6, 2)).astype(np.float64)
    boxes = np.concatenate([low, low + rng.integers(1, 15, (6, 2))], axis=1)
    centres = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2], np.zeros((6, 1))], axis=1)
    x1, y1, x2, y2 = boxes.T
    corners = np.stack([x1, y1, x2, y1, x2, y2, x1, y2], axis=1)
    backwards = corners.reshape(-1, 4, 2)[:, ::-1].reshape(-1, 8)
    expected = iou(boxes, boxes)
    for form in (centres, corners, backwards):
        np.testing.assert_allclose(Rotated()(form, centres).numpy(), expected, rtol=0, atol=1e-13)
    assert Boxes()(boxes, boxes).numpy().tolist() == expected.tolist()
    assert Boxes()(boxes, boxes, [True] * 6).numpy().tolist() == coverage(boxes, boxes).tolist()
    times = boxes[:, [0, 2]]
    assert (
        Segments()(times, times).numpy().tolist()
        == iou(np.stack([x1, x1 * 0, x2, x2 * 0 + 1], 1), np.stack([x1, x1 * 0, x2, x2 * 0 + 1], 1)).tolist()
    )


@pytest.mark.parametrize("overlap", [Masks(), Keypoints([0.1]), Rotated(), ProbIoU(), Segments(), Distance(), Boxes()])
def test_no_windows_and_no_objects_are_ordinary(overlap: Overlap) -> None:
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    empty[overlap.key] = torch.zeros(0)
    loss_fn = sg.MAPLoss(2, "coco", overlap=overlap)
    scores = torch.zeros(0, 2, requires_grad=True)
    shapes = {} if overlap.key == "boxes" else {overlap.key: [torch.zeros(0)]}
    boxes = torch.zeros(0) if overlap.key == "boxes" and not isinstance(overlap, Boxes) else torch.zeros(0, 4)
    loss = loss_fn([scores], [boxes], [empty], **shapes)
    loss.backward()
    assert loss_fn.metrics["map"] == 0.0


def test_a_likeness_of_ones_own_is_trained_for() -> None:
    colours = [torch.tensor([1, 2, 3])]
    targets = [{"boxes": torch.tensor([[0.0, 0, 9, 9]]), "labels": torch.tensor([0]), "colours": torch.tensor([3])}]
    overlap = Own(lambda shapes, target: shapes[:, None] == target["colours"][None])
    loss_fn = sg.MAPLoss(1, nms_threshold=None, overlap=overlap)
    scores = torch.tensor([[0.9], [0.5], [0.1]], requires_grad=True)
    loss_fn([scores], [torch.zeros(3, 4)], targets, shapes=colours).backward()
    assert loss_fn.metrics["map"] == pytest.approx(1 / 3)
    assert scores.grad is not None
    assert scores.grad.flatten().sign().tolist() == [1.0, 1.0, -1.0]


def test_a_loss_of_masks_matches_by_masks_and_suppresses_by_boxes() -> None:
    masks = torch.zeros(3, 8, 8, dtype=torch.bool)
    masks[0, :4], masks[1, :, :4], masks[2, 4:] = True, True, True  # the upper half, the left half, the lower half
    boxes = torch.tensor([[0.0, 0, 8, 8], [0, 0, 8, 8], [20, 0, 28, 8]])
    target = {"masks": masks[:1], "labels": torch.tensor([0])}
    scores = torch.tensor([[0.5], [0.9], [0.1]])
    loss_fn = sg.MAPLoss(1, overlap=Masks())
    loss_fn([scores], [boxes], [target], masks=[masks])
    assert loss_fn.metrics["map"] == 0.0  # the left half, whose box is the same, suppresses the right window
    by_masks = sg.MAPLoss(1, nms_threshold=0.4, overlap=Masks(nms="own"))
    by_masks([scores], [boxes], [target], masks=[masks])
    assert by_masks.metrics["map"] == 0.5  # their masks share a third of their pixels


@pytest.mark.parametrize(
    ("overlap", "windows", "message"),
    [
        (Masks(), torch.zeros(2, 8), r"masks \(n, H, W\)"),
        (Masks(), torch.full((1, 2, 2), 0.4), "compare with 0.5"),
        (Masks(), [{"size": [2, 2], "counts": [3]}], "add up to 2 x 2 pixels but they add up to 3"),
        (Masks(), [{"size": [2, 2]}], "'counts' or 'polygons'"),
        (Masks(), [{"size": [0, 2], "counts": []}], "at least 1 x 1"),
        (Masks(), [{"size": [2, 2], "polygons": [[0, 0, 1, 1]]}], "three finite points"),
        (Masks(), "mask", "but got str"),
        (Keypoints(), torch.zeros(2, 5, 3), r"\(n, 17, 2\)"),
        (Rotated(), torch.zeros(2, 4), r"\(n, 5\) numbers"),
        (Rotated(), torch.tensor([[0.0, 0, -1, 1, 0]]), "no negative size"),
        (Rotated(), torch.tensor([[0.0, 0, 1, 1, 1, 0, 0, 1]]), "convex"),
        (Distance(), torch.zeros(2, 4), "centres"),
        (Segments(), torch.zeros(2, 4), "begin, end"),
    ],
)
def test_shapes_of_another_form_are_refused(overlap: Overlap, windows: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        overlap(windows, windows)


def test_numbers_that_are_none_are_refused() -> None:
    for overlap, windows in ((Rotated(), [[0, 0, 1, math.nan, 0]]), (Distance(), [[0, math.inf]])):
        with pytest.raises(NonFiniteError, match="finite"):
            overlap(windows, windows)
    with pytest.raises(NonFiniteError, match="finite"):
        Keypoints([0.1])([[[0.0, math.nan]]], {"keypoints": [[[0.0, 0, 1]]], "boxes": [[0, 0, 1, 1]]})


def test_masks_of_two_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="2 x 3 and 3 x 2 pixels"):
        Masks()(torch.ones(1, 2, 3), torch.ones(1, 3, 2))


def test_an_object_without_a_pixel_is_refused_by_the_loss() -> None:
    target = {"masks": torch.zeros(1, 4, 4), "labels": torch.tensor([0])}
    with pytest.raises(InputError, match="that of object 0 is 0"):
        sg.MAPLoss(1, overlap=Masks())([torch.zeros(1, 1)], None, [target], masks=[torch.ones(1, 4, 4)])


def test_settings_that_make_no_sense_are_refused() -> None:
    for make in (
        lambda: Masks(nms="none"),
        lambda: Keypoints([]),
        lambda: Keypoints([0.0]),
        lambda: Distance(()),
        lambda: Own(len, "own"),
    ):
        with pytest.raises(ConfigError):
            make()
    assert len(COCO_SIGMAS) == 17
