"""Planted mistakes are named with the mAP without them; right detections, good or poor, are passed in silence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stepgrad.evaluation.likely_mistakes import likely_mistakes
from stepgrad.evaluation.records import Detections, Evidence, GroundTruth
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.metric.protocol import get_protocol
from stepgrad.number_text import per_cent
from tests.scenes import over_seeds

Boxes = NDArray[np.float64]
K = 5


def image_sizes(rng: np.random.Generator, images: int) -> Boxes:
    return rng.integers(200, 800, (images, 2)).astype(np.float64)


def random_boxes(rng: np.random.Generator, sizes: Boxes, least: float = 0.05, most: float = 0.4) -> Boxes:
    """A box in each image, with sides from `least` to `most` of it."""
    side = rng.uniform(least, most, sizes.shape) * sizes
    corner = rng.uniform(0.0, 1.0, sizes.shape) * (sizes - side)
    return np.concatenate([corner, corner + side], axis=1)


def scene(
    seed: int = 0,
    images: int = 40,
    objects: int = 200,
    classes: int = K,
    found: float = 0.8,
    false_alarms: int = 200,
    jitter: float = 0.05,
    sides: tuple[float, float] = (0.05, 0.4),
) -> tuple[Evidence, Boxes]:
    """A detector that finds a share of the objects, up to some jitter, and reports false alarms; and the images' sizes."""
    rng = np.random.default_rng([seed, 70])
    sizes = image_sizes(rng, images)
    where = rng.integers(0, images, objects).astype(np.int32)
    boxes, labels = random_boxes(rng, sizes[where], *sides), rng.integers(0, classes, objects)
    no = np.zeros(objects, dtype=np.bool_)
    truth = GroundTruth(where, labels, boxes, no, no, np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))
    rows = np.flatnonzero(rng.random(objects) < found)
    moved = boxes[rows] + rng.normal(0.0, jitter, (len(rows), 4)) * np.tile(boxes[rows, 2:] - boxes[rows, :2], 2)
    elsewhere = rng.integers(0, images, false_alarms).astype(np.int32)
    scores = np.concatenate([rng.uniform(0.05, 1.0, len(rows)), rng.uniform(0.001, 0.6, false_alarms)])
    detections = Detections(
        np.concatenate([where[rows], elsewhere]),
        np.concatenate([labels[rows], rng.integers(0, classes, false_alarms)]),
        scores,
        np.concatenate([moved, random_boxes(rng, sizes[elsewhere], *sides)]),
    )
    names = tuple(f"class {c}" for c in range(classes))
    return Evidence(detections, truth, list(range(images)), names), sizes


def judged(evidence: Evidence, protocol: str = "coco") -> EvaluationResult:
    return evaluate_under(evidence, get_protocol(protocol))


def with_boxes(evidence: Evidence, boxes: Boxes) -> Evidence:
    return replace(evidence, detections=evidence.detections.with_boxes(boxes))


def read(numbers: Boxes) -> Boxes:
    """Corners as a reader of COCO's results gets them."""
    return np.concatenate([numbers[:, :2], numbers[:, :2] + numbers[:, 2:]], axis=1)


def centre_and_size(b: Boxes) -> Boxes:
    return np.concatenate([(b[:, :2] + b[:, 2:]) / 2, b[:, 2:] - b[:, :2]], axis=1)


def corner_and_size(b: Boxes) -> Boxes:
    return np.concatenate([b[:, :2], b[:, 2:] - b[:, :2]], axis=1)


def letterboxed(b: Boxes, sizes: Boxes) -> Boxes:
    longer = sizes.max(axis=1, keepdims=True)
    border = np.tile((longer - sizes) / 2, 2)
    return (b + border) * 640 / longer


MISTAKES: dict[str, tuple[Callable[[Boxes, Boxes], Boxes], str]] = {
    "corners": (lambda b, s: b, r"read as \[x1, y1, x2, y2\]: write them as \[x, y, width, height\]"),
    "centres": (lambda b, s: centre_and_size(b), r"read as \[centre x, centre y, width, height\]"),
    "y first": (lambda b, s: corner_and_size(b)[:, [1, 0, 3, 2]], r"read as \[y, x, height, width\]"),
    "corners, y first": (lambda b, s: b[:, [1, 0, 3, 2]], r"read as \[y1, x1, y2, x2\]"),
    "shares": (lambda b, s: corner_and_size(b / np.tile(s, 2)), "multiplied by the width and height of their images"),
    "as YOLO": (lambda b, s: centre_and_size(b / np.tile(s, 2)), r"width and height of their images and .*\[centre x"),
    "a third": (lambda b, s: corner_and_size(b) / 3, r"multiplied by (2\.9|3|3\.0)"),
    "stretched": (
        lambda b, s: corner_and_size(b / np.tile(s, 2) * 416),
        r"scaled back from 41\d x 41\d pixels \(x times",
    ),
    "longer side": (
        lambda b, s: corner_and_size(b) * 1333 / s.max(axis=1, keepdims=True),
        r"multiplied by \(longer side of the image\) / 13\d\d",
    ),
    "shorter side": (
        lambda b, s: corner_and_size(b) * 800 / s.min(axis=1, keepdims=True),
        r"multiplied by \(shorter side of the image\) / (79|80)\d",
    ),
    "letterbox": (lambda b, s: corner_and_size(letterboxed(b, s)), r"a letterbox of 6[34]\d x 6[34]\d pixels"),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("mistake", "says"), MISTAKES.values(), ids=MISTAKES.keys())
def test_boxes_written_in_a_usual_wrong_way_are_named_with_the_map_without_it(
    mistake: Callable[[Boxes, Boxes], Boxes], says: str, seed: int
) -> None:
    evidence, sizes = scene(seed)
    wrong = with_boxes(evidence, read(mistake(evidence.detections.boxes, sizes[evidence.detections.images])))
    now, right = judged(wrong), judged(evidence)
    (line,) = likely_mistakes(now, sizes, "xywh")
    assert f"mAP at IoU 0.5 is {per_cent(now.map_at(0.5))}" in line
    told = float(line.split("It is ")[1].split()[0])
    assert told == pytest.approx(100 * right.map_at(0.5), abs=2.0)  # a factor from votes is not exact
    assert re.search(says, line)


def test_corners_of_a_few_objects_are_named_if_boxes_leave_their_images() -> None:
    evidence, sizes = scene(objects=20, images=10, false_alarms=0, found=1.0)
    wrong = with_boxes(evidence, read(evidence.detections.boxes))
    (line,) = likely_mistakes(judged(wrong), sizes, "xywh")
    assert "of the boxes reach outside their images" in line
    assert "read as [x1, y1, x2, y2]" in line


def test_corners_with_y_first_among_voc_files_are_named() -> None:
    evidence, sizes = scene()
    boxes = evidence.detections.boxes[:, [1, 0, 3, 2]]
    (line,) = likely_mistakes(judged(with_boxes(evidence, boxes), "voc12"), sizes, "xyxy")
    assert "read as [y1, x1, y2, x2]: write them as [x1, y1, x2, y2] in pixels" in line


def relabelled(evidence: Evidence, new: list[int]) -> Evidence:
    labels = np.array(new)[evidence.detections.labels]
    return replace(evidence, detections=replace(evidence.detections, labels=labels))


CLASSES = {
    "one too high": ([1, 2, 3, 4, 0], "with every class moved by -1"),
    "one too low": ([4, 0, 1, 2, 3], r"with every class moved by \+1"),
    "another order": ([1, 0, 4, 2, 3], "another order .'class 0' meant as 'class 1', 'class 1' meant as 'class 0'"),
    "all the same": ([3, 3, 3, 3, 3], "All detections are of class 'class 3'; if classes did not matter"),
}


@pytest.mark.parametrize(("new", "says"), CLASSES.values(), ids=CLASSES.keys())
def test_wrong_classes_are_named(new: list[int], says: str) -> None:
    evidence, sizes = scene(found=0.9)
    result = judged(relabelled(evidence, new))
    if "All" not in says:
        assert result.map_at(0.5) < 0.1
    (line,) = likely_mistakes(result, sizes, "xywh")
    assert re.search(says, line)
    if "All" not in says:
        assert f"It is {per_cent(judged(evidence).map_at(0.5))} with" in line


RIGHT: dict[str, dict[str, object]] = {
    "good": {},
    "of one class": {"classes": 1},
    "poor": {"found": 0.02},
    "that find nothing": {"found": 0.0},
    "far from their objects": {"jitter": 0.6},
    "few objects": {"objects": 12, "images": 6, "false_alarms": 20},
    "few objects, all missed": {"objects": 12, "images": 6, "found": 0.0, "false_alarms": 20},
    "tiny boxes": {"sides": (0.005, 0.02)},
    "tiny boxes, poor": {"sides": (0.005, 0.02), "found": 0.03, "false_alarms": 2000},
    "boxes as large as images": {"sides": (0.8, 1.0), "jitter": 0.2},
    "boxes as large as images, poor": {"sides": (0.8, 1.0), "found": 0.05, "jitter": 0.5, "false_alarms": 10},
    "many images with one object": {"objects": 300, "images": 300},
    "many classes, poor": {"classes": 60, "found": 0.05, "false_alarms": 2000},
}


@over_seeds(4, 100)
@pytest.mark.parametrize("options", RIGHT.values(), ids=RIGHT.keys())
def test_right_detections_are_passed_in_silence(options: dict[str, object], seed: int) -> None:
    evidence, sizes = scene(seed, **options)  # type: ignore[arg-type]
    if not set(range(evidence.num_images)) - set(evidence.detections.images.tolist()):
        assert likely_mistakes(judged(evidence), sizes, "xywh") == []
    else:
        assert [line for line in likely_mistakes(judged(evidence), sizes, "xywh") if "no detection" not in line] == []


@over_seeds(4, 100)
def test_a_detector_that_has_learned_boxes_but_no_classes_is_passed_in_silence(seed: int) -> None:
    evidence, sizes = scene(seed, classes=40, objects=400, found=1.0)
    labels = np.random.default_rng([seed, 71]).permutation(evidence.detections.labels)
    guessing = replace(evidence, detections=replace(evidence.detections, labels=labels))
    assert judged(guessing).map_at(0.5) < 0.1
    assert likely_mistakes(judged(guessing), sizes, "xywh") == []


def test_boxes_beyond_the_edge_of_their_images_are_no_mistake_if_other_readings_find_no_more() -> None:
    evidence, sizes = scene()
    small = sizes * 0.6  # as if the sizes in the annotations were wrong
    assert likely_mistakes(judged(evidence), small, "xywh") == []


def test_without_sizes_an_order_is_still_recognised() -> None:
    evidence, _ = scene()
    boxes = read(centre_and_size(evidence.detections.boxes))
    (line,) = likely_mistakes(judged(with_boxes(evidence, boxes)), None, "xywh")
    assert "read as [centre x" in line


def repeated(evidence: Evidence, rows: NDArray[np.int64]) -> Evidence:
    found = evidence.detections
    return replace(
        evidence, detections=Detections(found.images[rows], found.labels[rows], found.scores[rows], found.boxes[rows])
    )


def test_detections_that_come_twice_are_counted_with_the_map_without_them() -> None:
    evidence, sizes = scene()
    M = len(evidence.detections)
    twice = judged(repeated(evidence, np.repeat(np.arange(M), 2)))
    (line,) = likely_mistakes(twice, sizes, "xywh")
    assert line.startswith(f"{M} of {2 * M} detections repeat another")
    assert f"mAP is {per_cent(twice.map)}, without repeats {per_cent(judged(evidence).map)}" in line
    assert likely_mistakes(judged(repeated(evidence, np.r_[:M, :3])), sizes, "xywh") == []  # a few may be chance


def scored(evidence: Evidence, scores: Callable[[Boxes], Boxes]) -> EvaluationResult:
    return judged(replace(evidence, detections=replace(evidence.detections, scores=scores(evidence.detections.scores))))


def test_scores_that_are_all_equal_are_named() -> None:
    evidence, sizes = scene()
    (line,) = likely_mistakes(scored(evidence, np.ones_like), sizes, "xywh")
    assert line.startswith(f"all {len(evidence.detections)} scores are 1")


@pytest.mark.parametrize("threshold", [0.1, 0.25, 0.3, 0.5])
def test_scores_cut_at_a_threshold_are_named_with_it(threshold: float) -> None:
    evidence, sizes = scene(objects=2000, found=1.0, false_alarms=2000)
    kept = repeated(evidence, np.flatnonzero(evidence.detections.scores >= threshold))
    (line,) = likely_mistakes(judged(kept), sizes, "xywh")
    assert line.startswith(f"scores begin at {threshold:g}:")
    assert "conf=0.001" in line
    few = repeated(kept, np.arange(50))
    assert not any("scores" in line for line in likely_mistakes(judged(few), sizes, "xywh"))


@pytest.mark.parametrize(
    "change",
    [lambda s: s, lambda s: 100 * s, np.log, lambda s: 0.07 + 0.9 * s],
    ids=["plain", "per cent", "logarithms", "from 0.07"],
)
def test_scores_on_any_scale_that_begin_low_are_passed_in_silence(change: Callable[[Boxes], Boxes]) -> None:
    evidence, sizes = scene()
    assert likely_mistakes(scored(evidence, change), sizes, "xywh") == []


def test_no_detections_at_all_are_named_unless_there_is_nothing_to_find() -> None:
    evidence, sizes = scene()
    nothing = repeated(evidence, np.zeros(0, dtype=np.int64))
    assert likely_mistakes(judged(nothing), sizes, "xywh") == ["has no detections, so every object counts as missed"]
    objects = evidence.objects
    none = GroundTruth(
        *(getattr(objects, name)[:0] for name in ("images", "labels", "boxes", "difficult", "crowd", "area"))
    )
    assert likely_mistakes(judged(replace(nothing, objects=none)), sizes, "xywh") == []
    empty = Evidence(nothing.detections, none, [], evidence.class_names)
    assert likely_mistakes(judged(empty), sizes[:0], "xywh") == []


def on_images(evidence: Evidence, count: int) -> EvaluationResult:
    return judged(repeated(evidence, np.flatnonzero(evidence.detections.images < count)))


def test_detections_of_one_split_name_it() -> None:
    evidence, sizes = scene(objects=400)
    splits = {"trainval": set(range(30)), "train": set(range(10, 40)), "val": set(range(10))}
    (line,) = likely_mistakes(on_images(evidence, 10), sizes, "xywh", splits)
    assert line.startswith("30 of 40 images have no detection; all detections are of split val")
    assert line.endswith("--split val")
    (line,) = likely_mistakes(on_images(evidence, 25), sizes, "xywh", splits)
    assert line.endswith("--split trainval")
    assert likely_mistakes(judged(evidence), sizes, "xywh", splits) == []
    assert likely_mistakes(judged(evidence), sizes, "xywh", {"all": set(range(40))}) == []


def test_half_of_the_images_without_a_detection_are_counted() -> None:
    evidence, sizes = scene(objects=400)
    (line,) = likely_mistakes(on_images(evidence, 20), sizes, "xywh")
    assert line.startswith("20 of 40 images have no detection, and all objects there count as missed")
    assert likely_mistakes(on_images(evidence, 25), sizes, "xywh") == []
    background = repeated(evidence, np.flatnonzero(np.isin(evidence.detections.images, evidence.objects.images)))
    more = replace(
        background, image_ids=list(range(200))
    )  # 160 images without objects: a detector is right to be silent
    assert likely_mistakes(judged(more), np.tile(sizes, (5, 1)), "xywh") == []
