"""Shapes as a protocol sees them: painted over each other, at another size, in single precision, and as files say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.cli import main
from stepgrad.errors import InputError
from stepgrad.evaluation.compare import compare
from stepgrad.evaluation.seen_shapes import shapes_seen_by
from stepgrad.metric.protocol import COCO, ULTRALYTICS, ULTRALYTICS_JSON, Protocol, get_protocol
from stepgrad.overlaps import COCO_SIGMAS
from stepgrad.overlaps.masks import coco_masks, dense_of, runs_of_dense
from stepgrad.overlaps.resized_masks import from_border, painted_runs
from stepgrad.overlaps.rotated import boxes_of_corners, quads_of_boxes
from stepgrad.overlaps.yolo import YoloOriented, YoloPoses
from tests.scenes import over_seeds


def blobs(rng: np.random.Generator, count: int, height: int = 12, width: int = 15) -> np.ndarray:
    masks = np.zeros((count, height, width), dtype=np.bool_)
    for mask in masks:
        top, left = rng.integers(0, height - 3), rng.integers(0, width - 3)
        mask[top : top + rng.integers(2, 10), left : left + rng.integers(2, 10)] = True
    return masks


@over_seeds(20, 500)
def test_a_pixel_of_several_objects_is_the_smallest_ones(seed: int) -> None:
    rng = np.random.default_rng([seed, 700])
    masks, images, hide = blobs(rng, 9), rng.integers(0, 2, 9).astype(np.int32), rng.random(9) < 0.8
    painted = painted_runs(runs_of_dense(masks, ""), images, hide)
    sizes = masks.reshape(9, -1).sum(axis=1)
    for i, mask in enumerate(masks):
        # Of equal ones the later one lies on top.
        over = [j for j in range(9) if hide[j] and images[j] == images[i] and (sizes[j], -j) < (sizes[i], -i)]
        seen = mask & ~masks[over].any(axis=0) if hide[i] else mask
        np.testing.assert_array_equal(dense_of(painted, i).astype(bool), seen)


def interpolated(mask: np.ndarray, y: float, x: float) -> float:
    """The value at a point, from the four pixels around it; outside as at the edge."""
    y, x = (min(max(p, 0.0), n - 1.0) for p, n in zip((y, x), mask.shape, strict=True))
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, mask.shape[0] - 1), min(x0 + 1, mask.shape[1] - 1)
    upper = mask[y0, x0] * (1 - (x - x0)) + mask[y0, x1] * (x - x0)
    lower = mask[y1, x0] * (1 - (x - x0)) + mask[y1, x1] * (x - x0)
    return float(upper * (1 - (y - y0)) + lower * (y - y0))


@over_seeds(20, 300)
def test_masks_come_back_from_a_border_by_interpolation(seed: int) -> None:
    rng = np.random.default_rng([seed, 701])
    left, top = rng.integers(0, 4, 2).tolist()
    inner, size = (8, 12), [int(rng.integers(5, 20)), int(rng.integers(5, 20))]
    masks = blobs(rng, 3, inner[0], inner[1])
    padded = torch.from_numpy(np.pad(masks, ((0, 0), (top, 2), (left, 1))))
    resizing = [inner[1] / size[1], inner[0] / size[0], float(left), float(top)]
    half, whole = (from_border(padded, resizing, size, cut).numpy() for cut in (False, True))
    for i, mask in enumerate(masks.astype(float)):
        for y in range(size[0]):
            for x in range(size[1]):
                value = interpolated(mask, (y + 0.5) * resizing[1] - 0.5, (x + 0.5) * resizing[0] - 0.5)
                if abs(value - 0.5) > 1e-5:
                    assert half[i, y, x] == (value > 0.5)
                if abs(value - 1.0) > 1e-5:  # at 1 the rounding of single precision decides, as in the tool
                    assert not whole[i, y, x]
    assert not (whole & ~half).any()


def test_a_border_that_ends_inside_a_pixel_is_left_out_too() -> None:
    masks = torch.zeros(1, 8, 8, dtype=torch.bool)
    masks[0, 2:7, 4:] = True
    back = from_border(masks, [0.25, 0.25, 0.0, 1.5], [20, 32])[0].numpy()
    rows, columns = np.flatnonzero(back.any(axis=1)), np.flatnonzero(back.any(axis=0))
    assert (rows.min(), rows.max()) == (2, 19)  # (2 - 1.5) * 4 on; to the end
    assert (columns.min(), columns.max()) == (16, 31)


@over_seeds(30, 1000)
def test_the_smallest_box_around_a_quadrangle_holds_it_and_no_turned_one_is_smaller(seed: int) -> None:
    rng = np.random.default_rng([seed, 702])
    angles = np.sort(rng.uniform(0, 2 * np.pi, 4))
    corners = 50 + rng.uniform(5, 20) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    (box,) = boxes_of_corners(corners[None])

    def sides(angle: float) -> np.ndarray:
        turned = corners @ np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        return np.ptp(turned, axis=0)

    np.testing.assert_allclose(box[2:4], sides(box[4]), atol=1e-9)
    assert box[2] * box[3] <= min(sides(a).prod() for a in np.linspace(0, np.pi, 500)) + 1e-9
    frame = np.array([[np.cos(box[4]), -np.sin(box[4])], [np.sin(box[4]), np.cos(box[4])]])
    inside = np.abs((corners - box[:2]) @ frame)
    assert (inside <= box[2:4] / 2 + 1e-9).all()


def test_rectangles_keep_their_numbers_and_flat_ones_their_place() -> None:
    rng = np.random.default_rng(4)
    rows = np.column_stack([rng.uniform(0, 600, (500, 2)), rng.uniform(1, 90, (500, 2)), rng.uniform(-1.5, 3, 500)])
    back = boxes_of_corners(quads_of_boxes(rows).corners)
    np.testing.assert_allclose(back, rows, rtol=0, atol=1e-9)
    flat = boxes_of_corners(np.array([[[1.0, 2], [1, 2], [1, 2], [1, 2]], [[0, 0], [0, 0], [4, 0], [4, 0]]]))
    np.testing.assert_allclose(flat[:, :2], [[1, 2], [2, 0]], atol=1e-12)
    np.testing.assert_allclose(np.sort(flat[:, 2:4], axis=1), [[0, 0], [0, 4]], atol=1e-12)


def test_the_tools_arithmetic_is_the_formula_up_to_single_precision() -> None:
    rng = np.random.default_rng(5)
    points = np.column_stack([rng.uniform(0, 100, (20 * 17, 2)), rng.integers(0, 3, 20 * 17)]).reshape(20, 17, 3)
    points[0, :, 2] = 0
    target = {"keypoints": points, "boxes": np.tile([0.0, 0, 100, 100], (20, 1))}
    ours, theirs = (kind(COCO_SIGMAS)(points, target) for kind in (sg.overlaps.Keypoints, YoloPoses))
    assert (theirs[:, 0] == 0).all()
    torch.testing.assert_close(ours[:, 1:], theirs[:, 1:], rtol=0, atol=1e-4)
    boxes = np.column_stack([rng.uniform(0, 40, (20, 2)), rng.uniform(3, 30, (20, 2)), rng.uniform(0, 3, 20)])
    torch.testing.assert_close(
        sg.overlaps.ProbIoU()(boxes, boxes[:9]), YoloOriented()(boxes, boxes[:9]), rtol=0, atol=1e-2
    )


def oriented_evaluator(task: Any, protocol: str | Protocol = "ultralytics") -> sg.Evaluator:
    rng = np.random.default_rng(6)
    evaluator = sg.Evaluator(2, protocol, task=task)
    for _ in range(4):
        boxes = np.column_stack([rng.uniform(0, 40, (6, 2)), rng.uniform(3, 30, (6, 2)), rng.uniform(0, 3, 6)])
        found = np.abs(np.tile(boxes, (3, 1)) + rng.normal(0, 1, (18, 5)) * [1, 1, 2, 2, 0.1])
        labels = torch.tensor(rng.integers(0, 2, 6))
        scores = torch.tensor(rng.permutation(18) / 18 + 0.01)
        evaluator.update(
            [{"boxes": found, "scores": scores, "labels": labels.repeat(3)}], [{"boxes": boxes, "labels": labels}]
        )
    return evaluator


def test_oriented_boxes_are_gaussians_under_ultralytics() -> None:
    by_task, by_kind = (oriented_evaluator(task).compute().map for task in ("oriented", sg.overlaps.ProbIoU()))
    assert by_task == pytest.approx(by_kind, abs=1e-12)
    polygons = replace(ULTRALYTICS, name="polygons", oriented="polygon")
    assert oriented_evaluator("oriented", polygons).compute().map != pytest.approx(by_task, abs=1e-3)


@pytest.mark.parametrize("names", [("coco", "ultralytics"), ("ultralytics", "dota")])
def test_parts_of_the_difference_add_up_for_oriented_boxes(names: tuple[str, str]) -> None:
    (pair,) = compare(oriented_evaluator("oriented").evidence(), [get_protocol(name) for name in names]).pairs
    parts = pair.parts()
    assert parts["likeness"] != 0
    assert not {"clipping", "hidden parts", "areas of poses"} & set(parts)
    words = {"coco": "rotated IoU", "dota": "rotated IoU", "ultralytics": "probIoU"}
    assert {difference.likeness for difference in pair.first} == {(words[names[0]], words[names[1]])}
    assert [words[name] for name in names] == pair.tables()[1][0][5:9:2]
    assert sum(parts.values()) == pytest.approx(100 * (pair.maps[1] - pair.maps[0]), abs=1e-9)


def hiding_evaluator(counted: bool = True) -> sg.Evaluator:
    """A large object with a small one on it; detections know both in full."""
    masks = np.zeros((2, 20, 20), dtype=np.bool_)
    masks[0, 2:18, 2:18], masks[1, 2:18, 2:10] = True, True
    given = coco_masks(torch.from_numpy(masks))
    if counted:
        small = coco_masks(torch.from_numpy(masks[:, ::2, ::2] & np.array([True, False])[:, None, None]))
        given = [{**m, "counted": {**c, "resizing": [0.5, 0.5, 0, 0]}} for m, c in zip(given, small, strict=True)]
    evaluator = sg.Evaluator(1, "coco", task="masks")
    found = {"masks": given, "scores": torch.tensor([0.9, 0.8]), "labels": torch.tensor([0, 0])}
    evaluator.update([found, found], [{"masks": given, "labels": torch.tensor([0, 0])}] * 2)
    return evaluator


def seen_masks(evaluator: sg.Evaluator, protocol: Protocol) -> tuple[list[int], list[int]]:
    seen = shapes_seen_by(evaluator.evidence(), protocol)
    return seen.detections.shapes.counts.tolist(), seen.objects.shapes.counts.tolist()


def test_masks_that_a_tool_counted_stand_in_for_those_of_the_image() -> None:
    evaluator = hiding_evaluator()
    assert seen_masks(evaluator, COCO) == ([256, 128] * 2, [256, 128] * 2)
    assert seen_masks(evaluator, ULTRALYTICS) == ([64, 0] * 2, [64, 0] * 2)
    whole = seen_masks(evaluator, ULTRALYTICS_JSON)
    assert whole[1] == [256, 128] * 2
    assert 0 < whole[0][0] < 256
    assert whole[0][1] == 0


def test_of_masks_that_no_tool_counted_hidden_parts_are_the_smaller_ones() -> None:
    painted = replace(COCO, name="painted", hidden="smaller")
    assert seen_masks(hiding_evaluator(counted=False), painted) == ([256, 128] * 2, [128, 128] * 2)
    smaller = seen_masks(hiding_evaluator(counted=False), replace(ULTRALYTICS, name="at 10", mask_size=10))
    assert smaller == ([64, 32] * 2, [32, 32] * 2)


@pytest.mark.parametrize("change", [{"resizing": [0, 1, 0, 0]}, {"resizing": None}, {"counts": [3]}])
def test_a_counted_mask_that_is_damaged_is_refused(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rle = {"size": [8, 8], "counts": [10, 4, 50]}
    counted = {"size": [4, 4], "counts": [5, 2, 9], "resizing": [0.5, 0.5, 0, 0], **change}
    with pytest.raises(InputError, match="counted"):
        sg.overlaps.Masks()([{**rle, "counted": counted}], [rle])
    entry = {"image_id": 1, "category_id": 1, "bbox": [1, 2, 1, 4], "segmentation": rle, "counted": counted}
    truth = {
        "images": [{"id": 1, "width": 8, "height": 8}],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [entry],
    }
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    (tmp_path / "found.json").write_text(json.dumps([{**entry, "score": 0.5}]))
    files = ["--detections", str(tmp_path / "found.json"), "--data", str(tmp_path / "truth.json")]
    assert main(["evaluate", *files, "--task", "masks"]) != 0
    assert "counted" in " ".join(capsys.readouterr().err.split())


def test_keypoints_are_cut_at_the_edges_where_the_protocol_says_so(tmp_path: Path) -> None:
    points = {"found": [-9, 5, 2, 30, 30, 2], "truth": [0, 5, 2, 20, 20, 2]}
    truth = {
        "images": [{"id": 1, "width": 20, "height": 20}],
        "categories": [{"id": 1, "name": "a", "sigmas": [0.05, 0.05]}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 20, 20], "keypoints": points["truth"]}],
    }
    found = [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 20, 20], "keypoints": points["found"], "score": 0.5}]
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    (tmp_path / "found.json").write_text(json.dumps(found))
    files = ["--detections", str(tmp_path / "found.json"), "--data", str(tmp_path / "truth.json")]
    maps = {}
    for name in ("coco", "ultralytics-json"):
        report = tmp_path / f"{name}.json"
        assert main(["evaluate", *files, "--task", "keypoints", "--protocol", name, "--report", str(report)]) == 0
        maps[name] = json.loads(report.read_text())["map"]
    assert maps == {"coco": 0.0, "ultralytics-json": pytest.approx(1.0)}
