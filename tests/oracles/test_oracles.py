"""The oracles against hand-computed cases, against each other, and against pycocotools."""

from __future__ import annotations

import contextlib
import io
from fractions import Fraction

import numpy as np
import pytest
from pycocotools.coco import COCO as CocoDataset
from pycocotools.cocoeval import COCOeval

from stepgrad.metric.protocol import COCO, VOC07, VOC12, Protocol, get_protocol
from stepgrad.reference.average_precision import average_precision
from stepgrad.reference.map_loss import batch_gradient
from stepgrad.reference.matching import FALSE, IGNORED, TRUE, Objects, match
from stepgrad.reference.mean_ap import batch_ap, scene_of
from stepgrad.reference.steps import step_function
from tests.oracles.insertion import Insertion
from tests.oracles.options import Options
from tests.scenes import Batch, random_batch, small_batch

OBJECT = [0.0, 0.0, 10.0, 10.0]
ELSEWHERE = [50.0, 50.0, 60.0, 60.0]


def one_image(scores: list[float], boxes: list[list[float]], objects: list[list[float]], **flags: list[bool]) -> Batch:
    target = {"boxes": np.array(objects).reshape(-1, 4), "labels": np.zeros(len(objects), dtype=np.int64)}
    target |= {key: np.array(value) for key, value in flags.items()}
    return Batch([np.array(scores)[:, None]], [np.array(boxes)], [target])


def test_false_positive_above_the_only_true_positive() -> None:
    batch = one_image([2.0, 1.0], [ELSEWHERE, OBJECT], [OBJECT])
    assert batch_ap(batch, Options()) == [0.5]
    f = step_function(scene_of(batch, 0, Options(), 0.5), batch.column(0), 0, 1)
    steps = f.nearest_steps()
    assert (steps.up_at, steps.up_value.exact, steps.down_at) == (2.0, 1, -np.inf)
    # one step, half an AP, one unit away, on one side only: 1/2 * 1/2
    assert [g.item() for g in batch_gradient(batch, Options())[0]] == [-0.25, 0.25]


def test_reviving_a_suppressed_true_positive_is_a_step_at_its_suppressor() -> None:
    half_off = [0.0, 0.0, 10.0, 4.0]  # overlaps the good window with IoU 0.4: suppresses it at 0.3, misses the object
    batch = one_image([3.0, 1.0], [half_off, OBJECT], [OBJECT])
    f = step_function(scene_of(batch, 0, Options(), 0.5), batch.column(0), 0, 1)
    assert (f.nearest_steps().up_at, f.nearest_steps().up_value.exact) == (3.0, 1)
    lowered = step_function(scene_of(batch, 0, Options(), 0.5), batch.column(0), 0, 0).nearest_steps()
    assert (lowered.down_at, lowered.down_value.exact) == (1.0, 1)


def test_paper_mode_by_hand_shares_the_missed_object_between_window_and_suppressor() -> None:
    half_off = [0.0, 0.0, 10.0, 4.0]
    batch = one_image([3.0, 1.0], [half_off, OBJECT], [OBJECT])
    gradient = batch_gradient(batch, Options(through_nms="paper"))[0].ravel()
    assert gradient.tolist() == [-0.25, 0.25]  # c = 1/2 (1 - 0) / (3 - 1)


@pytest.mark.parametrize(
    ("protocol", "expected"), [(VOC12, Fraction(5, 6)), (VOC07, Fraction(6, 11) + Fraction(5 * 2, 33))]
)
def test_average_precision_by_hand(protocol: Protocol, expected: Fraction) -> None:
    assert average_precision((1, 3), 2, protocol).exact == expected


def test_voc_duplicate_is_false_and_difficult_is_ignored() -> None:
    objects = Objects(((0.9, 0.1), (0.8, 0.2), (0.0, 0.7)), ignored=(False, True), crowd=(False, False))
    assert match([0, 1, 2], objects, VOC12, 0.5) == [TRUE, FALSE, IGNORED]


def test_coco_prefers_a_countable_object_to_a_better_ignored_one_and_the_later_of_equals() -> None:
    objects = Objects(((0.6, 0.9), (0.6, 0.9)), ignored=(False, True), crowd=(False, True))
    assert match([0, 1], objects, COCO, 0.5) == [TRUE, IGNORED]
    equals = Objects(((0.6, 0.6), (0.7, 0.0)), ignored=(False, False), crowd=(False, False))
    assert match([0, 1], equals, COCO, 0.5) == [TRUE, TRUE]


@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
def test_insertion_finds_the_same_steps_as_brute_force(protocol: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        batch = small_batch(rng, crowds=protocol == "coco")
        options = Options(protocol, [None, 0.3, 0.5][rng.integers(3)], 0.5)
        for c in range(batch.K):
            scene = scene_of(batch, c, options, 0.5)
            insertion = Insertion(scene, batch.column(c))
            for i, b in ((i, b) for i, b, label in batch.windows() if label == c):
                slow = step_function(scene, batch.column(c), i, b).nearest_steps()
                assert insertion.nearest_steps(i, b) == slow


def test_fractions_and_floats_agree_on_random_lists() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        ranks = tuple(sorted(rng.choice(np.arange(1, 40), size=rng.integers(0, 12), replace=False).tolist()))
        P = len(ranks) + int(rng.integers(0, 4))
        for name in ("voc07", "voc12", "coco"):
            value = average_precision(ranks, P, get_protocol(name))
            assert abs(value.rounded - float(value.exact)) <= 2**-52


def reference_coco(batch: Batch) -> np.ndarray:
    """AP of each class by pycocotools, nan where it says -1."""
    images = [{"id": i, "width": 100, "height": 100} for i in range(len(batch.scores))]
    annotations: list[dict[str, object]] = []
    detections: list[dict[str, object]] = []
    for i, (scores, boxes, target) in enumerate(zip(batch.scores, batch.boxes, batch.targets, strict=True)):
        crowd = target.get("iscrowd", np.zeros(len(target["labels"]), dtype=bool))
        for box, label, is_crowd in zip(target["boxes"], target["labels"], crowd, strict=True):
            ids = {"id": len(annotations) + 1, "image_id": i, "category_id": int(label), "iscrowd": int(is_crowd)}
            annotations.append(ids | xywh(box))
        for b, c in np.ndindex(scores.shape):
            own = xywh(boxes[b] if boxes.ndim == 2 else boxes[b, c])
            detections.append({"image_id": i, "category_id": int(c), "score": float(scores[b, c])} | own)
    truth = CocoDataset()
    truth.dataset = {"images": images, "annotations": annotations, "categories": [{"id": c} for c in range(batch.K)]}
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(detections), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # (thresholds, levels, K)
    return np.where((precision < 0).any(axis=(0, 1)), np.nan, precision.mean(axis=(0, 1)))


def xywh(box: np.ndarray) -> dict[str, object]:
    x1, y1, x2, y2 = box.tolist()
    return {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}


def test_coco_oracle_equals_pycocotools() -> None:
    rng = np.random.default_rng(3)
    for trial in range(60):
        batch = random_batch(
            rng, windows=14, images=3, K=2, objects=9, ties=trial % 2 == 0, crowd=0.3 * (trial % 3 == 0)
        )
        reference = reference_coco(batch)
        ours = np.array(batch_ap(batch, Options("coco", nms_threshold=None)))
        present = ~np.isnan(reference)
        # pycocotools divides by tp + fp + 2**-52 and adds 1010 numbers in another order
        np.testing.assert_allclose(ours[present], reference[present], rtol=0, atol=1e-12)
