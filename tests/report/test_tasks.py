"""Masks, poses, oriented boxes and segments on pages and on pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.path import Path as Outline
from PIL import Image

from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.outlines import ABSENT, MOST_POINTS, SEEN, SKELETON, UNSURE, lines_of, mask_rings
from stepgrad.metric.protocol import COCO
from stepgrad.overlaps.masks import dense_of, runs_of_dense
from stepgrad.report import Arm, draw_detections, image_data, write_comparison, write_page
from stepgrad.report.findings import Findings
from stepgrad.report.objects import describe_objects, found_by_size
from tests.report.browser import Browser
from tests.report.tasks import TASKS, task_evaluator, task_evidence

WORDS = {"masks": "mask IoU", "keypoints": "OKS", "oriented": "rotated IoU", "segments": "tIoU"}
DRAWN = {"masks": "path", "keypoints": "path.dots:not(.unsure)", "oriented": "path", "segments": "rect"}


def write(task: str, page: Path) -> Path:
    dataset, evidence = task_evidence(task)
    return write_page(page, title=task, evidence=evidence, protocols=["coco"], dataset=dataset)


def inside(rings: list[np.ndarray], size: tuple[int, int]) -> np.ndarray:
    """Pixels whose centres lie inside an odd number of the lines."""
    y, x = np.mgrid[: size[0], : size[1]]
    centres = np.stack([x.ravel(), y.ravel()], axis=1) + 0.5
    hits = [Outline(np.concatenate([ring, ring[:1]])).contains_points(centres) for ring in rings]
    return (np.sum(hits, axis=0) % 2 == 1).reshape(size)


def test_lines_around_a_mask_are_within_a_pixel_of_it_and_leave_its_holes_out() -> None:
    runs = task_evidence("masks")[1].objects.shapes
    holes = 0
    for row in range(runs.masks):
        mask, rings = dense_of(runs, row).astype(np.bool_), mask_rings(runs, row)
        padded = np.pad(mask, 1, mode="edge")
        near = [padded[y : y + mask.shape[0], x : x + mask.shape[1]] for y in range(3) for x in range(3)]
        sure = np.all(near, axis=0) | ~np.any(near, axis=0)
        np.testing.assert_array_equal(inside(rings, mask.shape)[sure], mask[sure])
        assert sum(map(len, rings)) <= MOST_POINTS
        holes += len(rings) > 1
    assert holes


def test_a_mask_of_specks_has_few_lines_and_one_without_pixels_none() -> None:
    masks = np.stack([np.random.default_rng(0).random((64, 64)) < 0.5, np.zeros((64, 64), dtype=np.bool_)])
    runs = runs_of_dense(masks, "masks")
    assert 0 < sum(map(len, mask_rings(runs, 0))) <= MOST_POINTS
    assert mask_rings(runs, 1) == []


def test_visibility_of_labels_and_confidence_of_detections_decide_how_points_are_drawn() -> None:
    evaluator = Evaluator(1, "coco", task="keypoints")
    points = np.zeros((1, 17, 3))
    points[0, :4, 2] = [2, 1, 0, 2]
    found = points.copy()
    found[0, :4, 2] = [0.9, 0.2, 0.0, 1.0]
    one = {"boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0]]), "labels": torch.tensor([0])}
    evaluator.update([{**one, "keypoints": found, "scores": torch.tensor([0.5])}], [{**one, "keypoints": points}])
    evidence = evaluator.evidence()
    for side in (evidence.objects, evidence.detections):
        assert lines_of(evidence, side, 0)[0][2:12:3] == [SEEN, UNSURE, ABSENT, SEEN]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_mark_of_a_page_is_drawn_as_its_task_asks(
    browser: Browser, tmp_path: Path, task: str, width: int, scheme: str
) -> None:
    browser.open(write(task, tmp_path / "page.html"), width=width, scheme=scheme)
    marks = browser.run("document.querySelectorAll('#gallery .mark').length")
    shapes = f"#gallery .mark {DRAWN[task]}:not(.halo)"
    assert 0 < marks == browser.run(f"document.querySelectorAll('{shapes}').length")
    assert browser.run("document.documentElement.scrollWidth") <= width
    words = browser.run("document.querySelector('main').textContent + document.querySelector('header').textContent")
    assert WORDS[task] in words
    assert " IoU " not in words.replace(WORDS[task], "")
    assert browser.complaints() == []


def test_pointing_at_a_detection_shows_the_label_it_is_about(browser: Browser, tmp_path: Path) -> None:
    browser.open(write("masks", tmp_path / "page.html"))
    browser.run("document.querySelector('#gallery .open').click()")
    point = "kind => document.querySelector('#marks li.wrong').dispatchEvent(new Event(kind))"
    labels = "document.querySelectorAll('#stage .truth path:not(.halo)').length"
    assert browser.run(labels) == 0
    browser.run(f"({point})('mouseenter')")
    assert browser.run(labels) == 1
    browser.run(f"({point})('mouseleave')")
    assert browser.run(labels) == 0


def test_images_whose_shapes_have_no_room_show_boxes_and_the_page_says_so(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_data, "MOST_NUMBERS", 1000)
    browser.open(write("masks", tmp_path / "page.html"))
    paths, rects = (
        browser.run(f"document.querySelectorAll('#gallery .mark {tag}').length") for tag in ("path", "rect")
    )
    assert min(paths, rects) > 0
    assert "boxes stand for masks" in browser.run("document.getElementById('images').textContent")


def test_a_page_of_poses_counts_as_the_evaluator_does(tmp_path: Path) -> None:
    """COCO counts 20 poses per image, not 100."""
    rng = np.random.default_rng(0)
    evaluator = Evaluator(1, "coco", task="keypoints")
    poses = np.concatenate([rng.uniform(0, 100, (30, 17, 2)), np.full((30, 17, 1), 2.0)], axis=2)
    one = {"boxes": torch.tensor([[0.0, 0.0, 100.0, 100.0]]).repeat(30, 1), "labels": torch.zeros(30, dtype=torch.long)}
    found = {**one, "keypoints": poses, "scores": torch.linspace(0.9, 0.1, 30)}
    evaluator.update([found], [{**one, "keypoints": poses}])
    page = write_page(tmp_path / "p.html", title="", evidence=evaluator.evidence(), protocols=["coco"], dataset=None)
    numbers = json.loads(page.with_suffix(".json").read_text())
    assert numbers["maps"]["coco"] == evaluator.compute().map < 1.0
    assert '"skeleton":[[15,13]' in page.read_text()


def test_sizes_are_those_of_masks_and_segments_have_lengths_only() -> None:
    findings = Findings.of(task_evidence("masks")[1], COCO)
    area = findings.evidence.objects.area[findings.there]
    assert (area < findings.evidence.overlap.boxes(findings.evidence.objects.shapes)[findings.there, 2:].prod(1)).any()
    sizes = describe_objects(findings, [None] * 8)["sizes"]
    assert sizes["counts"] == np.bincount(np.floor(np.log2(area) / 2).astype(int))[sizes["from"] :].tolist()
    findings = Findings.of(task_evidence("segments")[1], COCO)
    described = describe_objects(findings, [None] * 8)
    assert described["shapes"] is described["places"] is None
    assert sum(described["sizes"]["counts"]) == findings.there.sum()
    assert found_by_size(findings) == []


GREY = Image.new("RGB", (100, 80), (90, 90, 90))


def drawn(lines: list[list[float]], kind: str, **options: Any) -> np.ndarray:
    picture = draw_detections(
        GREY, [[10, 10, 90, 70]], [""], "#00ff00", lines=[lines], drawn=kind, line_width=2, **options
    )
    return np.asarray(picture).astype(int)


def test_a_mask_is_filled_but_for_its_holes_and_an_oriented_box_is_not() -> None:
    outer, hole = [10, 10, 90, 10, 90, 70, 10, 70], [40, 30, 60, 30, 60, 50, 40, 50]
    picture = drawn([outer, hole], "mask")
    assert picture[20, 20, 1] > picture[20, 20, 0]  # the green shines through
    assert picture[40, 50].tolist() == [90, 90, 90]
    assert picture[10, 50].tolist() == [0, 255, 0]
    diamond = drawn([[50, 10, 90, 40, 50, 70, 10, 40]], "polygon")
    assert diamond[40, 50].tolist() == diamond[12, 12].tolist() == [90, 90, 90]
    assert diamond[40, 11].tolist() == [0, 255, 0]


def test_a_skeleton_joins_points_that_are_there() -> None:
    pose = [20, 40, SEEN, 50, 40, SEEN, 80, 40, ABSENT]
    picture = drawn([pose], "pose", skeleton=[(0, 1), (1, 2)])
    assert picture[40, 35].tolist() == picture[40, 20].tolist() == [0, 255, 0]
    assert picture[40, 65].tolist() == picture[40, 80].tolist() == [90, 90, 90]
    assert {point for bone in SKELETON for point in bone} == set(range(17))


@pytest.mark.parametrize("task", ["masks", "keypoints", "oriented"])
def test_runs_side_by_side_show_shapes_and_name_the_overlap(tmp_path: Path, task: str) -> None:
    made = [task_evaluator(task, seed=seed) for seed in (0, 1)]
    arms = [
        Arm(str(k), str(k), [{"coco": evaluator.compute().map}], evaluator.evidence())
        for k, (_, evaluator) in enumerate(made)
    ]
    page = write_comparison(
        tmp_path,
        title=task,
        sentence=None,
        arms=arms,
        reference=0,
        chosen=1,
        protocols=["coco"],
        dataset=made[0][0],
        config={},
    )
    assert f"{WORDS[task]} 0.75" in page.read_text()
    changed = json.loads((tmp_path / "report.json").read_text())["changed"]
    boxes = [box for image in changed["better"] + changed["worse"] for box in image["chosen"]["boxes"]]
    assert boxes
    assert all(box["lines"] for box in boxes)
