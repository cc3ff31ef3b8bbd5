"""What mAP is taken of: the windows, boxes and scores of the model's own inference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid
from torchvision.ops.boxes import clip_boxes_to_image

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.losses.ragged import ScoredPairs
from stepgrad.models.torchvision import detector as _detector
from stepgrad.models.torchvision import train_for_map
from stepgrad.models.torchvision.two_stage import best_in_place_of_negatives
from tests.double_precision import double_precision
from tests.models.tiny import (
    CLASSES,
    DENSE,
    SAMPLED,
    SIZE,
    WITHOUT_BACKGROUND,
    classification_key,
    classifier_weight,
    tiny_batch,
    tiny_model,
)

Lists = tuple[list[Tensor], list[Tensor]]
EVERYTHING = 10**6


class Outputs:
    """What modules returned in the last call, by name."""

    def __init__(self, **modules: nn.Module) -> None:
        self.of: dict[str, Any] = {}
        for name, module in modules.items():
            module.register_forward_hook(lambda _module, inputs, out, name=name: self.of.update({name: (inputs, out)}))


def distances(first: Tensor, second: Tensor) -> Tensor:
    return (first[:, None] - second).abs().sum(dim=-1)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[ScoredPairs]:
    """The candidates of every call."""
    found: list[ScoredPairs] = []
    original = _detector.ragged_map_loss

    def spy(loss_fn: sg.MAPLoss, candidates: ScoredPairs, targets: Any) -> Tensor:
        found.append(candidates)
        return original(loss_fn, candidates, targets)

    monkeypatch.setattr(_detector, "ragged_map_loss", spy)
    return found


def by_hand_dense(model: nn.Module, family: str, outputs: Outputs) -> Lists:
    """All anchors, scored and decoded with torchvision's own pieces."""
    head, anchors = outputs.of["head"][1], outputs.of["anchors"][1]
    logits = head["cls_logits"]
    if family == "ssd":
        scores = log_softmax(logits, dim=-1)[..., 1:]
    elif family == "retinanet":
        scores = logsigmoid(logits)
    else:
        scores = torch.log(torch.sqrt(torch.sigmoid(logits) * torch.sigmoid(head["bbox_ctrness"])))
    lists: Lists = ([], [])
    for s, codes, a in zip(scores, head["bbox_regression"].detach(), anchors, strict=True):
        decoded = model.box_coder.decode(codes, a) if family == "fcos" else model.box_coder.decode_single(codes, a)
        boxes = clip_boxes_to_image(decoded, (SIZE, SIZE))
        solid = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        lists[0].append(s[solid])
        lists[1].append(boxes[solid])
    return lists


def by_hand_two_stage(model: nn.Module, outputs: Outputs) -> Lists:
    """All proposals of the RPN, with boxes of each class."""
    features = outputs.of["backbone"][1]
    proposals = outputs.of["rpn"][1][0]
    heads = model.roi_heads
    shapes = [(SIZE, SIZE)] * len(proposals)
    logits, codes = heads.box_predictor(heads.box_head(heads.box_roi_pool(features, proposals, shapes)))
    counts = [len(p) for p in proposals]
    boxes = clip_boxes_to_image(heads.box_coder.decode(codes.detach(), proposals), (SIZE, SIZE))[:, 1:]
    assert ((boxes[..., 2:] - boxes[..., :2]) > 0.01).all()
    return list(log_softmax(logits, dim=-1)[:, 1:].split(counts)), list(boxes.split(counts))


@pytest.mark.parametrize("family", ["faster_rcnn", *DENSE])
@pytest.mark.parametrize("mode", ["replace", "mix"])
@pytest.mark.parametrize("options", [{}, {"protocol": "coco", "estimator": "mee"}], ids=["radius", "coco-mee"])
def test_with_all_windows_the_loss_is_maploss_by_hand(family: str, mode: str, options: dict[str, Any]) -> None:
    model = tiny_model(family).double()
    all_windows = {"windows_per_image": EVERYTHING} if family == "faster_rcnn" else {"topk": EVERYTHING}
    train_for_map(
        model, mode=mode, weight=1.0, ignore=False, **all_windows, **options
    )  # crowds as the protocol has them
    images, targets = tiny_batch(family)
    images = [image.double() for image in images]
    targets = [{**t, "boxes": t["boxes"].double()} for t in targets]
    targets[0]["iscrowd"] = torch.tensor([0, 0, 0, 1])
    targets[1]["difficult"] = torch.tensor([False, True, False, False])
    if family == "faster_rcnn":
        outputs = Outputs(backbone=model.backbone, rpn=model.rpn)
    else:
        outputs = Outputs(head=model.head, anchors=model.anchor_generator)
    loss = model(images, targets)[classification_key(family) if mode == "replace" else "loss_map"]
    hand = by_hand_two_stage(model, outputs) if family == "faster_rcnn" else by_hand_dense(model, family, outputs)
    first = 0 if family in WITHOUT_BACKGROUND else 1
    threshold = model.roi_heads.nms_thresh if family == "faster_rcnn" else model.nms_thresh
    settings = {"estimator": "radius", "radius": 3.0, "absent_classes": "skip", "nms_threshold": threshold, **options}
    loss_fn = sg.MAPLoss(CLASSES, **settings)
    expected = loss_fn(*hand, [{**t, "labels": t["labels"] - first} for t in targets])
    weight = classifier_weight(model)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    found, wanted = (torch.autograd.grad(value, weight, retain_graph=True)[0] for value in (loss, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-10)
    assert wanted.abs().sum() > 0
    assert model.map_loss.metrics["map"] == pytest.approx(loss_fn.metrics["map"])


def rows(classes: Tensor, boxes: Tensor, scores: Tensor) -> Tensor:
    """(N, 6) by score."""
    joined = torch.cat([scores[:, None], classes[:, None], boxes], dim=1).detach()
    return joined[joined[:, 0].argsort()]


@pytest.mark.parametrize("family", DENSE)
def test_candidates_are_those_inference_passes_on_to_nms(family: str, seen: list[ScoredPairs]) -> None:
    options = {"score_thresh": 0.25, "topk_candidates": 40, "nms_thresh": 1.0}
    with double_precision():
        model = tiny_model(family, **options, detections_per_img=EVERYTHING)
        images, targets = tiny_batch(family)
    train_for_map(model, score_thresh=options["score_thresh"], keep_positives=False)
    model(images, targets)
    with torch.no_grad():
        detections = model.eval()(images)
    first = 0 if family in WITHOUT_BACKGROUND else 1
    for i, detection in enumerate(detections):
        mine = seen[0].images == i
        found = rows(seen[0].classes[mine], seen[0].boxes[mine], seen[0].scores[mine].exp())
        wanted = rows(detection["labels"] - first, detection["boxes"], detection["scores"])
        assert len(found) >= 40
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", DENSE)
def test_positives_take_part_however_low_they_score(family: str, seen: list[ScoredPairs]) -> None:
    images, targets = tiny_batch(family)
    sizes = []
    for keep in (False, True):
        model = train_for_map(tiny_model(family), mode="replace", topk=1, keep_positives=keep)
        loss = model(images, targets)[classification_key(family)]
        loss.backward()
        sizes.append(len(seen[-1].scores))
    best = CLASSES if family == "ssd" else 2  # per image: one a class, or one on each of two levels
    assert sizes[0] == 2 * best
    assert sizes[1] > sizes[0] + 4


@pytest.mark.parametrize("mode", ["replace", "mix"])
def test_ground_truth_is_not_among_the_windows_of_the_list(mode: str, seen: list[ScoredPairs]) -> None:
    model = train_for_map(tiny_model("faster_rcnn"), mode=mode)
    model.roi_heads.box_predictor.bbox_pred.weight.data.zero_()  # boxes are the windows themselves
    model.roi_heads.box_predictor.bbox_pred.bias.data.zero_()
    images, targets = tiny_batch("faster_rcnn")
    outputs = Outputs(rpn=model.rpn)
    model(images, targets)
    proposals = outputs.of["rpn"][1][0]
    for i, target in enumerate(targets):
        listed = seen[0].boxes[seen[0].images == i]
        assert (distances(listed, proposals[i]).min(dim=1).values < 1e-2).all()
        assert (distances(target["boxes"], listed).min(dim=1).values > 0.1).all()


def test_replacing_ranks_the_best_proposals_and_all_sampled_positives(seen: list[ScoredPairs]) -> None:
    model = train_for_map(tiny_model("faster_rcnn"), mode="replace")
    model.roi_heads.box_predictor.bbox_pred.weight.data.zero_()
    model.roi_heads.box_predictor.bbox_pred.bias.data.zero_()
    images, targets = tiny_batch("faster_rcnn")
    outputs = Outputs(rpn=model.rpn, predictor=model.roi_heads.box_predictor)
    model(images, targets)
    assert len(outputs.of["predictor"][1][0]) == 2 * SAMPLED  # as many windows as the stock model samples
    for i, proposals in enumerate(outputs.of["rpn"][1][0]):
        mine = (seen[0].images == i) & (seen[0].classes == 0)
        rank = distances(seen[0].boxes[mine], proposals).argmin(dim=1)
        best = SAMPLED - SAMPLED // 4  # at least: no more than a quarter are positives
        assert set(range(best)) <= set(rank.tolist())
        assert len(set(rank.tolist())) == len(rank)


@pytest.mark.parametrize("proposals", [9, 30])
def test_places_of_negatives_go_to_the_best_free_proposals(proposals: int) -> None:
    sampled = torch.tensor([0, 2, 5, 7, 8, proposals, proposals + 1])
    labels = torch.tensor([0, 3, 0, 1, 0, 2, 1])
    out = best_in_place_of_negatives(sampled, labels, proposals)
    assert out[labels > 0].tolist() == sampled[labels > 0].tolist()
    assert out[labels == 0].tolist() == [0, 1, 3]


def test_box_heads_with_batch_norm_keep_their_negatives(seen: list[ScoredPairs]) -> None:
    model = tiny_model("faster_rcnn")
    model.roi_heads.box_head.fc6 = nn.Sequential(model.roi_heads.box_head.fc6, nn.BatchNorm1d(64))
    images, targets = tiny_batch("faster_rcnn")
    torch.manual_seed(3)
    expected = model(images, targets)
    torch.manual_seed(3)
    found = train_for_map(model, mode="replace")(images, targets)
    assert torch.equal(found["loss_box_reg"], expected["loss_box_reg"])
    with pytest.raises(ConfigError, match="batch normalisation"):
        train_for_map(model, windows_per_image=30)


def test_a_threshold_leaves_out_low_pairs_but_not_positives(seen: list[ScoredPairs]) -> None:
    images, targets = tiny_batch("faster_rcnn")
    sizes = {}
    for threshold, keep in [(0.0, True), (0.3, True), (0.3, False)]:
        torch.manual_seed(0)
        model = train_for_map(tiny_model("faster_rcnn"), score_thresh=threshold, keep_positives=keep)
        model(images, targets)
        sizes[threshold, keep] = len(seen[-1].scores)
        if not keep:
            assert (seen[-1].scores.exp() > threshold).all()
    assert sizes[0.3, False] < sizes[0.3, True] < sizes[0.0, True]
