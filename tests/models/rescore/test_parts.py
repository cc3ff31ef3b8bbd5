"""The facts of detections, labels, and the fusion of models, each against a slow and obvious twin."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.ops import box_iou

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError
from stepgrad.metric.protocol import COCO
from stepgrad.models.rescore.describe import rows_of
from stepgrad.models.rescore.facts import NAMES, facts_of, logits_of
from stepgrad.models.rescore.fuse import Fusion
from stepgrad.models.rescore.images import best_of_objects, image_of, share_of_hits
from stepgrad.overlaps.base import Boxes
from tests.models.rescore.worlds import CLASSES, shorten, world


def facts_by_hand(boxes: Tensor, own: Tensor, labels: Tensor, i: int) -> dict[str, float]:
    """Some of the facts of detection i, by loops."""
    iou = box_iou(boxes, boxes)
    others = [j for j in range(len(own)) if j != i]
    better = [j for j in others if own[j] > own[i] or (own[j] == own[i] and j < i)]
    same = [j for j in others if labels[j] == labels[i]]
    return {
        "score": float(own[i]),
        "below_best_of_class": float(own[i] - max(own[j] for j in [i, *same])),
        "below_best": float(own[i] - own.max()),
        "rank_in_class": math.log1p(len(set(better) & set(same))),
        "rank": math.log1p(len(better)),
        "iou_better_same": max([float(iou[i, j]) for j in better if j in same], default=0.0),
        "iou_better_other": max([float(iou[i, j]) for j in better if j not in same], default=0.0),
        "iou_worse_same": max([float(iou[i, j]) for j in same if j not in better], default=0.0),
        "agreeing": math.log1p(sum(float(own[j].sigmoid()) for j in same if iou[i, j] >= 0.5)),
    }


@pytest.mark.parametrize("seed", range(3))
def test_facts_are_those_counted_by_hand(seed: int) -> None:
    image = world(1, seed)[0][0]
    own = logits_of(image["scores"], True)
    columns = facts_of(image["boxes"], own, image["labels"]).columns
    for i in range(len(own)):
        for name, value in facts_by_hand(image["boxes"], own, image["labels"], i).items():
            assert float(columns[i, NAMES.index(name)]) == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("seed", range(5))
def test_share_of_hits_adds_up_to_the_objects_found_at_every_threshold(seed: int) -> None:
    detections, targets, _ = world(1, seed)
    rows = rows_of(detections[0], Boxes(), True, False, None, "image")
    image = image_of(rows, detections[0], targets[0], Boxes())
    by_hand = sum(greedy(image.table, rows.own, rows.labels, targets[0]["labels"], t) for t in COCO.match_thresholds)
    assert float(share_of_hits(image, COCO).sum()) * len(COCO.match_thresholds) == pytest.approx(by_hand)


def greedy(table: Tensor, own: Tensor, labels: Tensor, objects: Tensor, threshold: float) -> int:
    """Objects found at one threshold, in the order of scores."""
    free, hits = set(range(len(objects))), 0
    for i in own.argsort(descending=True, stable=True).tolist():
        open_to = [(float(table[i, g]), -g) for g in free if objects[g] == labels[i] and table[i, g] >= threshold]
        if open_to:
            free.remove(-max(open_to)[1])
            hits += 1
    return hits


def test_the_best_detection_of_each_object_alone_is_right() -> None:
    detections, targets, _ = world(5, 0)
    for found, target in zip(detections, targets, strict=True):
        image = image_of(rows_of(found, Boxes(), True, False, None, ""), found, target, Boxes())
        best = best_of_objects(image, least=0.0)
        for g, label in enumerate(target["labels"]):
            mine = image.table[:, g] * (found["labels"] == label)
            assert float(best[mine.argmax()]) >= float(mine.max())
        assert int((best > 0).sum()) <= len(target["labels"])


def test_a_model_fused_with_itself_stays_itself() -> None:
    image = {
        "boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0], [40.0, 0.0, 50.0, 10.0]], dtype=torch.float64),
        "scores": torch.tensor([0.9, 0.4], dtype=torch.float64),
        "labels": torch.tensor([0, 1]),
    }
    fused, features = Fusion.equal(2).apply([[image], [image]])
    assert torch.allclose(fused[0]["boxes"], image["boxes"])
    assert torch.allclose(fused[0]["scores"], image["scores"])
    assert fused[0]["labels"].tolist() == [0, 1]
    assert torch.allclose(features[0][:, 2], torch.full((2,), math.log(2.0)))


def test_fused_boxes_and_scores_are_weighted_means() -> None:
    a, b = torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.tensor([[0.0, 0.0, 10.0, 12.0]])
    one = {"boxes": a, "scores": torch.tensor([0.8]), "labels": torch.tensor([0])}
    two = {"boxes": b, "scores": torch.tensor([0.2]), "labels": torch.tensor([0])}
    fused, _ = Fusion((0.25, 0.75), 0.5).apply([[one], [two]])
    share = 0.25 * 0.8 / (0.25 * 0.8 + 0.75 * 0.2)
    assert float(fused[0]["boxes"][0, 3]) == pytest.approx(share * 10 + (1 - share) * 12)
    assert float(fused[0]["scores"][0]) == pytest.approx(0.25 * 0.8 + 0.75 * 0.2)


def test_models_that_find_nothing_lower_scores_and_empty_images_stay_empty() -> None:
    image = {"boxes": torch.tensor([[0.0, 0.0, 1.0, 1.0]]), "scores": torch.tensor([0.8]), "labels": torch.tensor([0])}
    nothing = {name: rows[:0] for name, rows in image.items()}
    fused, features = Fusion.equal(2).apply([[image, nothing], [nothing, nothing]])
    assert float(fused[0]["scores"][0]) == pytest.approx(0.4)
    assert fused[1]["boxes"].shape == (0, 4)
    assert features[1].shape == (0, 4)


def test_several_models_are_joined_tuned_saved_and_applied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shorten(monkeypatch)
    detections, targets, _ = world(40, 0)
    generator = torch.Generator().manual_seed(0)
    second = [
        {**image, "boxes": image["boxes"] + torch.randn(image["boxes"].shape, generator=generator).abs()[:, :1]}
        for image in detections
    ]
    rescorer = sg.Rescorer(CLASSES).fit_several([detections, second], targets)
    better = rescorer.apply_several([detections, second])
    assert "2 models" in rescorer.sentence
    path = tmp_path / "several.json"
    rescorer.save(path)
    back = sg.Rescorer.load(path)
    assert back.sentence == rescorer.sentence
    for a, b in zip(better, back.apply_several([detections, second]), strict=True):
        assert torch.equal(a["scores"], b["scores"])


def test_several_models_need_the_same_images_and_boxes() -> None:
    detections, targets, _ = world(4, 0)
    with pytest.raises(InputError, match="at least two"):
        sg.Rescorer(CLASSES).fit_several([detections], targets)
    with pytest.raises(InputError, match="as many preds as targets"):
        sg.Rescorer(CLASSES).fit_several([detections, detections[1:]], targets)
    poses = [{**image, "keypoints": torch.zeros(len(image["labels"]), 17, 3)} for image in detections]
    objects = [{**image, "keypoints": torch.zeros(len(image["labels"]), 17, 3)} for image in targets]
    with pytest.raises(ConfigError, match="boxes"):
        sg.Rescorer(CLASSES, task="keypoints").fit_several([poses, poses], objects)
    with pytest.raises(InputError, match="2 models"):
        Fusion.equal(2).apply([detections])
