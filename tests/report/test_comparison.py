"""The numbers of the page that compares trainings, computed again in other ways."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepgrad.data.shapes import ShapesDataset
from stepgrad.errors import ConfigError, InputError
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.protocol import COCO
from stepgrad.report import Arm
from stepgrad.report.arms import winner
from stepgrad.report.curves import curve_thresholds
from tests.report.runs import detections_of, evidence_of
from tests.report.trainings import NOISES, PROTOCOLS, noisy_arm, noisy_evaluator, numbers_of, with_maps, write


def test_means_spreads_and_gains_equal_those_of_numpy(compared: Path, arms: list[Arm]) -> None:
    rows = numbers_of(compared)["arms"]
    for name in PROTOCOLS:
        maps = np.array([[run[name] for run in arm.runs] for arm in arms])
        gains = maps - maps[1]
        for row, values, gain in zip(rows, maps, gains, strict=True):
            assert row["maps"][name]["mean"] == pytest.approx(values.mean(), rel=1e-12)
            assert row["maps"][name]["sd"] == pytest.approx(values.std(ddof=1), rel=1e-9)
            if row is rows[1]:
                assert row["gains"][name] is None
                continue
            assert row["gains"][name]["each"] == gain.tolist()
            assert row["gains"][name]["mean"] == pytest.approx(gain.mean(), rel=1e-9)
            assert row["gains"][name]["sd"] == pytest.approx(gain.std(ddof=1), rel=1e-9)
            assert (row["gains"][name]["ahead"], row["gains"][name]["seeds"]) == ((gain > 0).sum(), 3)


def test_an_arm_is_marked_only_if_it_beats_each_other_beyond_the_spread_of_the_difference(arms: list[Arm]) -> None:
    rng = np.random.default_rng(0)
    marked = []
    for _ in range(200):
        maps = rng.normal([[0.5], [0.5], [0.5 + 0.1 * rng.random()]], 0.03, (3, int(rng.integers(2, 5))))
        made = [with_maps(arm, values.tolist(), ["coco"]) for arm, values in zip(arms, maps, strict=True)]
        best = int(maps.mean(1).argmax())
        beaten = [(maps[best] - maps[k]).mean() > (maps[best] - maps[k]).std(ddof=1) for k in range(3) if k != best]
        assert winner(made, "coco") == (best if all(beaten) else None)
        marked.append(winner(made, "coco") is not None)
    assert 20 < sum(marked) < 180


def test_gains_pair_the_seeds_that_both_arms_have(arms: list[Arm], dataset: ShapesDataset, tmp_path: Path) -> None:
    values = [[0.1], [0.2, 0.3], [0.25, 0.2, 0.9]]
    made = [with_maps(arm, maps) for arm, maps in zip(arms, values, strict=True)]
    rows = numbers_of(write(tmp_path, made, dataset, shown=0))["arms"]
    assert [row["gains"]["coco"] and row["gains"]["coco"]["seeds"] for row in rows] == [1, None, 2]
    assert rows[2]["gains"]["coco"]["each"] == [0.25 - 0.2, 0.2 - 0.3]
    assert rows[2]["gains"]["coco"]["ahead"] == 1


class Scene(ShapesDataset):
    """Two classes, of which one has objects: three in two pictures."""

    def __init__(self) -> None:
        super().__init__("test", length=2)
        self.class_names = ("cat", "dog")


def found(boxes: list[list[float]], scores: list[float]) -> dict[str, torch.Tensor]:
    labels = torch.zeros(len(boxes), dtype=torch.int64)
    return {"boxes": torch.tensor(boxes).reshape(-1, 4), "scores": torch.tensor(scores), "labels": labels}


A, B, C = [0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0], [40.0, 40.0, 60.0, 60.0]
LOOSE_C, NOWHERE = [40.0, 40.0, 60.0, 52.0], [80.0, 80.0, 90.0, 90.0]  # an overlap of 0.6 with C, and of 0 with all
SCENE = [
    {"boxes": torch.tensor([A, B]), "labels": torch.tensor([0, 0]), "image_id": Scene().target(0)["image_id"]},
    {"boxes": torch.tensor([C]), "labels": torch.tensor([0]), "image_id": Scene().target(1)["image_id"]},
]


def scene_arm(name: str, *detections: dict[str, torch.Tensor]) -> Arm:
    return Arm(name, "", [{"coco": 0.5}], evidence_of(Scene(), list(detections), SCENE))


def test_curves_of_a_tiny_scene_are_those_computed_by_hand(tmp_path: Path) -> None:
    one = scene_arm("one", found([A, NOWHERE], [0.9, 0.8]), found([LOOSE_C], [0.7]))
    none = scene_arm("none", found([], []), found([], []))
    numbers = numbers_of(write(tmp_path, [none, one], Scene(), reference=0, protocols=["coco"]))
    assert [curves["iou"] for curves in numbers["curves"]] == [0.5, 0.75]
    # Precision 1 up to a recall of 1/3 (levels 0 to 33), 2/3 up to 2/3 (34 to 66) where the loose box counts, then 0.
    loose, strict = ([1.0] * 34 + [2 / 3] * 33 + [0.0] * 34), ([1.0] * 34 + [0.0] * 67)
    for curves, expected in zip(numbers["curves"], (loose, strict), strict=True):
        cat, dog = curves["classes"]
        assert cat["precision"] == [[0.0] * 101, expected]
        assert curves["mean"] == [[0.0] * 101, expected]  # the class without objects has no part in the mean
        assert (dog["precision"], dog["aps"], dog["change"]) == ([None, None], [None, None], None)
        assert cat["change"] == pytest.approx(sum(expected) / 101)
    # F1 is largest at 0.7, where all three detections pass: the second image gains an object, the first one and a mistake.
    changed = numbers["changed"]
    assert [(image["change"], image["words"]) for image in changed["better"]] == [
        (2, "1 more found"),
        (1, "1 more found, 1 more false alarm"),
    ]
    assert (changed["worse"], changed["counts"]) == ([], {"better": 2, "worse": 0, "same": 0})


def test_mean_of_a_curve_is_the_ap_of_coco_at_that_threshold(compared: Path, dataset: ShapesDataset) -> None:
    numbers = numbers_of(compared)
    result = noisy_evaluator(dataset, NOISES["mAP"], ["coco"]).compute()
    for curves in numbers["curves"]:
        assert np.mean(curves["mean"][2]) == pytest.approx(result.map_at(curves["iou"]), rel=1e-12)
        for row, of_class in zip(curves["classes"], result.classes, strict=True):
            assert row["aps"][2] == of_class.ap_by_threshold[curves["iou"]]
            assert np.mean(row["precision"][2]) == pytest.approx(row["aps"][2], rel=1e-12)


@pytest.mark.parametrize(
    ("thresholds", "drawn"), [((0.6,), [0.6]), ((0.5, 0.7, 0.9), [0.5, 0.7]), ((0.75, 0.9), [0.75])]
)
def test_curves_are_drawn_at_the_first_threshold_and_the_one_nearest_to_three_quarters(
    thresholds: tuple[float, ...], drawn: list[float]
) -> None:
    assert curve_thresholds(replace(COCO, name="own", match_thresholds=thresholds)) == drawn


def overlap(a: Any, b: Any) -> float:
    width, height = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    shared = max(0.0, width) * max(0.0, height)
    return shared / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared)


def outcome(evidence: Evidence, label: int, least: float) -> tuple[Any, Any]:
    """Right and wrong per image with the detections of a class that reach a score: VOC's rule, one after the other."""
    right, wrong = np.zeros(evidence.num_images, dtype=int), np.zeros(evidence.num_images, dtype=int)
    detections, objects, taken = evidence.detections, evidence.objects, set()
    for row in np.argsort(-detections.scores, kind="stable"):
        if detections.labels[row] != label or detections.scores[row] < least:
            continue
        image = detections.images[row]
        rows = np.flatnonzero((objects.images == image) & (objects.labels == label))
        overlaps = [overlap(detections.boxes[row], objects.boxes[k]) for k in rows]
        best = int(np.argmax(overlaps)) if len(rows) else -1
        if best >= 0 and overlaps[best] >= 0.5 and rows[best] not in taken:
            taken.add(rows[best])
            right[image] += 1
        else:
            wrong[image] += 1
    return right, wrong


def tallies(evidence: Evidence) -> Any:
    """(3, images) right, wrong and missed, each class cut where its F1 is largest, by trying all scores."""
    total = np.zeros((3, evidence.num_images), dtype=int)
    for label in range(evidence.num_classes):
        objects = np.bincount(evidence.objects.images[evidence.objects.labels == label], minlength=evidence.num_images)
        scores = sorted(set(evidence.detections.scores[evidence.detections.labels == label].tolist()), reverse=True)
        tried = [outcome(evidence, label, least) for least in [math.inf, *scores]]
        f1 = [2 * r.sum() / max(1, r.sum() + w.sum() + objects.sum()) for r, w in tried]
        right, wrong = tried[int(np.argmax(f1))]
        total += np.stack([right, wrong, objects - right])
    return total


@pytest.mark.parametrize("seed", range(4))
def test_changed_pictures_are_those_of_brute_force(seed: int, tmp_path: Path) -> None:
    dataset = ShapesDataset("test", length=14)
    sides = []
    for noise in (0.4, 0.3):
        preds, targets = detections_of(dataset, np.random.default_rng([seed, round(10 * noise)]), 2, noise)
        plain = [{name: target[name] for name in ("boxes", "labels", "image_id")} for target in targets]
        sides.append(evidence_of(dataset, preds, plain))
    arms = [Arm(name, "", [{"voc12": 0.5}], side) for name, side in zip("ab", sides, strict=True)]
    changed = numbers_of(write(tmp_path, arms, dataset, reference=0, protocols=["voc12"], shown=6))["changed"]
    before, after = (tallies(side) for side in sides)
    grown = (after[0] - after[1] - after[2]) - (before[0] - before[1] - before[2])
    order = sorted(range(14), key=lambda i: (-grown[i], i))
    better = [i for i in order if grown[i] > 0][:3]
    worse = sorted((i for i in order if grown[i] < 0), key=lambda i: (grown[i], i))[:3]
    assert better
    assert worse
    for kind, images in (("better", better), ("worse", worse)):
        assert [image["image"] for image in changed[kind]] == [str(sides[0].image_ids[i]) for i in images]
        for image, i in zip(changed[kind], images, strict=True):
            assert [image["reference"][name] for name in ("right", "wrong", "missed")] == before[:, i].tolist()
            assert [image["chosen"][name] for name in ("right", "wrong", "missed")] == after[:, i].tolist()
    counts = {"better": (grown > 0).sum(), "worse": (grown < 0).sum(), "same": (grown == 0).sum()}
    assert changed["counts"] == counts


def test_arms_must_be_judged_on_the_same_images_and_positions_must_be_theirs(
    arms: list[Arm], dataset: ShapesDataset, tmp_path: Path
) -> None:
    others = noisy_arm(ShapesDataset("test", length=5), "fewer", 0.2)
    with pytest.raises(InputError, match=r"same images.*'fewer' are not those of 'as it came'"):
        write(tmp_path, [*arms, others], dataset)
    with pytest.raises(InputError, match="at least one arm"):
        write(tmp_path, [], dataset, reference=0, chosen=0)
    with pytest.raises(ConfigError, match="chosen to be the position of an arm, 0 to 2, but got 3"):
        write(tmp_path, arms, dataset, chosen=3)
    with pytest.raises(ConfigError, match="at least one protocol"):
        write(tmp_path, arms, dataset, protocols=[])
    assert list(tmp_path.iterdir()) == []
