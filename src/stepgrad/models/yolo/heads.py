"""What is known of a YOLO's head, whatever the version of ultralytics: its class layers, its outputs, the pairs that mAP ranks.

A head scores some thousand anchors for every class. As at inference, the best pairs of anchor and class of an image take part,
among all classes. Besides, each object's own best anchors do, in the column of its class: otherwise nothing would raise the
scores of a missed object. Which anchors these are is read off the boxes; the model's own assignment is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from stepgrad.errors import ConfigError
from stepgrad.losses.ragged import ScoredPairs
from stepgrad.metric.batch import Target
from stepgrad.models.auto_weight import StockLoss
from stepgrad.models.switch import wide
from stepgrad.models.yolo.corners import in_order
from stepgrad.models.yolo.shapes import (
    Compare,
    compare_masks,
    compare_oriented,
    compare_poses,
    extras_of,
    near_pairs,
    object_shapes,
    prob_iou,
    upright,
)

ONE, MANY = "one2one", "one2many"  # the heads of a detector that needs no NMS, as its outputs and its loss call them
_WHAT_A_LOSS_KNOWS = ("bbox_decode", "stride", "nc", "reg_max")


@dataclass(frozen=True)
class HeadOutput:
    """Of B images, for A anchors and K classes."""

    logits: Tensor  # (B, K, A) of the classes, with their graph
    boxes: Tensor  # (B, A, 4) in pixels, cut at the image's edges, without a graph
    sources: Sequence[Tensor]  # what came out of the network and holds the logits
    first_class: int  # the channel of a source where they begin
    compare: Compare | None = None  # where other shapes than boxes count
    oriented: Tensor | None = None  # (B, A, 5) the boxes, where they are oriented; `boxes` are around them

    def stock(self, loss: Tensor) -> StockLoss:
        """The model's own loss, to be measured at the class logits, which its classification loss alone depends on."""
        return StockLoss(loss, self.sources, lambda gradient: gradient[:, self.first_class :])


def head_with_nms(model: Any) -> Any:
    """The `Detect` or a derived head of a network (v8, 11), which needs NMS after it; ConfigError for other heads."""
    layers = getattr(model, "model", None)
    head = layers[-1] if isinstance(layers, nn.Sequential) else None
    if type(head).__name__ not in ("Detect", "Segment", "Pose", "OBB"):
        raise ConfigError(
            f"Expected a YOLO whose last part is a Detect, Segment, Pose or OBB head but got {type(head).__name__}."
        )
    if getattr(head, "end2end", False) or hasattr(head, "one2one_cv3"):
        raise ConfigError("Expected a YOLO with NMS (v8, 11) but got one whose head works end to end.")
    return head


def class_layers(head: Any) -> list[nn.Module]:
    """The last convolution of each level's class branch, 1 x 1."""
    return [branch[-1] for branch in head.cv3]


def read_inference(output: Any, classes: int, oriented: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """(A, 4) boxes, (A, K) probabilities and (A, more) of the first image, from what a model in eval mode gives.

    Oriented boxes come as centres and sizes.
    """
    while isinstance(output, (tuple, list)):
        output = output[0]
    first = output[0].T
    boxes = first[:, :4] if oriented else corners(first[:, :4])
    return boxes, first[:, 4 : 4 + classes], first[:, 4 + classes :]


def corners(boxes: Tensor) -> Tensor:
    """(N, 4) x1, y1, x2, y2 of boxes given by centre and size."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return torch.cat([centre - half, centre + half], dim=1)


def losses_of_heads(criterion: Any) -> dict[str, Any]:
    """The part of a criterion of ultralytics that knows a head's boxes, by name; "" where there is one head.

    Raises:
        ConfigError: unless it is that of boxes from anchors, with sigmoid scores.
    """
    pair = {name: getattr(criterion, name, None) for name in (MANY, ONE)}
    losses = pair if all(part is not None for part in pair.values()) else {"": criterion}
    for part in losses.values():
        missing = [name for name in _WHAT_A_LOSS_KNOWS if not hasattr(part, name)]
        if missing:
            raise ConfigError(
                "Expected a YOLO such as v8, 11 or 12, or one that needs no NMS (v10, 26), but this model's loss is "
                f"{type(part).__name__}, without {missing[0]!r}; RT-DETR, YOLO-World and YOLOE train with their own trainers."
            )
    return losses


def read_heads(
    preds: Any, losses: Mapping[str, Any], size: Sequence[int], task: str = "boxes"
) -> dict[str, HeadOutput]:
    """The outputs of a model in training mode, by head, as `losses_of_heads` names them.

    Args:
        preds: what the criterion was called with.
        losses: of the heads.
        size: height and width of the images.
        task: what is compared: "boxes", "masks", "keypoints" or "oriented".
    """
    parts = {name: preds[name] for name in losses} if MANY in losses else {"": preds}
    return {name: _read(part, losses[name], size, task) for name, part in parts.items()}


def _read(part: Any, loss: Any, size: Sequence[int], task: str) -> HeadOutput:
    if isinstance(part, Mapping):  # from 8.4 on
        sources, first_class = [part["scores"]], 0
        logits, distances, maps = part["scores"], part["boxes"], part["feats"]
    else:  # one map a level: four sides, then classes; with masks or keypoints, the first of several things
        maps = part if isinstance(part, list) else part[0]
        sources, first_class = list(maps), 4 * loss.reg_max
        joined = torch.cat([level.flatten(2) for level in maps], dim=2)
        distances, logits = joined[:, :first_class], joined[:, first_class:]
    with torch.no_grad():
        return _decoded(HeadOutput(logits, distances.detach(), sources, first_class), part, loss, maps, size, task)


def _decoded(
    head: HeadOutput, part: Any, loss: Any, maps: Sequence[Tensor], size: Sequence[int], task: str
) -> HeadOutput:
    """The head with boxes in place of the distances (B, 4 reg_max, A) to their sides, and what else the task compares."""
    from ultralytics.utils.tal import make_anchors

    extras = [] if task == "boxes" else extras_of(part, task)
    sides = wide(head.boxes).transpose(1, 2).contiguous()
    points, strides = (part.to(sides.dtype) for part in make_anchors(maps, loss.stride, 0.5))
    if task == "oriented":
        oriented = loss.bbox_decode(points, sides, extras[0].to(sides.dtype).transpose(1, 2).contiguous())
        oriented = torch.cat([oriented[..., :4] * strides, oriented[..., 4:]], dim=-1)
        return replace(head, boxes=upright(oriented), compare=compare_oriented(oriented), oriented=oriented)
    head = replace(head, boxes=_cut(loss.bbox_decode(points, sides) * strides, size))
    if task == "masks":
        return replace(head, compare=compare_masks(extras, head.boxes, size))
    if task == "keypoints":
        raw = extras[0].to(sides.dtype).transpose(1, 2).unflatten(2, tuple(loss.kpt_shape))
        poses = loss.kpts_decode(points, raw)[..., :2] * strides[:, None]
        return replace(head, compare=compare_poses(poses, loss.keypoint_loss.sigmas.tolist()))
    return head


def _cut(boxes: Tensor, size: Sequence[int]) -> Tensor:
    """(B, A, 4) boxes, cut at the image's edges."""
    height, width = size
    cut = torch.stack([boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)], dim=-1).flatten(-2)
    return in_order(cut)


def targets_of(
    batch: Mapping[str, Any], dtype: torch.dtype, task: str = "boxes", numbered: bool = True
) -> list[Target]:
    """The objects of each image of a batch of ultralytics, in pixels; regions among them as `ignored` numbers them."""
    images, _, height, width = batch["img"].shape
    image = batch["batch_idx"].view(-1).long()
    labels = batch["cls"].view(-1).long()
    shapes = [{} if task == "boxes" else object_shapes(batch, task, numbered, i) for i in range(images)]
    if task == "oriented":
        return [_oriented_target(labels[image == i], shape["oriented"].to(dtype)) for i, shape in enumerate(shapes)]
    shares = batch["bboxes"].to(dtype).view(-1, 4)
    boxes = corners(shares) * torch.tensor([width, height, width, height], dtype=dtype, device=shares.device)
    return [{"boxes": boxes[image == i], "labels": labels[image == i], **shapes[i]} for i in range(images)]


def _oriented_target(labels: Tensor, oriented: Tensor) -> Target:
    """The objects of an image with sides of at least two pixels; the stock loss leaves out smaller ones, too."""
    large = (oriented[:, 2:4] >= 2).all(dim=1)
    return {"boxes": upright(oriented[large]), "labels": labels[large], "oriented": oriented[large]}


def ranked_pairs(
    head: HeadOutput, targets: Sequence[Target], candidates: int, per_object: int, nms_threshold: float | None = None
) -> ScoredPairs:
    """The pairs that take part, of classes with objects in the batch; scores are logarithms of the model's.

    Args:
        head: what the head says.
        targets: the objects, on the head's device.
        candidates: best pairs of an image.
        per_object: anchors of each object, those that overlap it most.
        nms_threshold: of oriented boxes, which the pairs bring their neighbours for.
    """
    _, K, A = head.logits.shape
    present = torch.zeros(K, dtype=torch.bool, device=head.logits.device)
    present[torch.cat([_to_find(target)["labels"] for target in targets]).to(present.device)] = True
    ranking = head.logits.detach()
    chosen = []
    for i, target in enumerate(targets):
        best = ranking[i].flatten().topk(min(candidates, K * A), sorted=False).indices
        pairs = torch.cat([best, _own_pairs(head, i, target, per_object)]).unique()  # column * A + anchor
        usable = present[pairs // A] & _is_box(head.boxes[i])[pairs % A] & ranking[i].flatten()[pairs].isfinite()
        chosen.append(pairs[usable])
    image = torch.cat([torch.full_like(pairs, i) for i, pairs in enumerate(chosen)])
    pairs = torch.cat(chosen)
    column, anchor = pairs // A, pairs % A
    scores = logsigmoid(wide(head.logits[image, column, anchor]))
    ranked = ScoredPairs(scores, head.boxes[image, anchor], image, column)
    return _with_overlaps(ranked, head, [pairs % A for pairs in chosen], targets, nms_threshold)


@torch.no_grad()
def _with_overlaps(
    pairs: ScoredPairs, head: HeadOutput, anchors: Sequence[Tensor], targets: Sequence[Target], threshold: float | None
) -> ScoredPairs:
    """The pairs, whose anchors are given image by image, with what stands in place of boxes."""
    if head.compare is None:
        return pairs
    tables = [
        head.compare(i, of_image, target).nan_to_num(0.0).clamp(0.0, 1.0)
        for i, (of_image, target) in enumerate(zip(anchors, targets, strict=True))
    ]
    pairs = replace(pairs, overlaps=tables)
    if head.oriented is None or threshold is None:
        return pairs
    classes = pairs.classes.split([len(of_image) for of_image in anchors])
    found = [
        near_pairs(head.oriented[i, of_image], labels, threshold)
        for i, (of_image, labels) in enumerate(zip(anchors, classes, strict=True))
    ]
    return replace(pairs, neighbours=found)


def _is_box(boxes: Tensor) -> Tensor:
    """Which boxes are finite and have an area: a network that has diverged is left to its trainer, which recovers."""
    return boxes.isfinite().all(dim=-1) & (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)


def _to_find(target: Target) -> Target:
    """The target without regions that are not judged."""
    crowd = target.get("iscrowd")
    return target if crowd is None else {key: target[key][~crowd] for key in ("boxes", "labels")}


def _own_pairs(head: HeadOutput, i: int, target: Target, per_object: int) -> Tensor:
    from torchvision.ops import box_iou

    boxes, target = head.boxes[i], _to_find(target)
    A = len(boxes)
    if len(target["labels"]) == 0 or per_object == 0:
        return torch.zeros(0, dtype=torch.long, device=boxes.device)
    overlap = (
        box_iou(target["boxes"].to(boxes), boxes)
        if head.oriented is None
        else prob_iou(target["oriented"].to(boxes), head.oriented[i])
    ).nan_to_num(0.0)  # (G, A)
    values, anchors = overlap.topk(min(per_object, A), dim=1)
    return (target["labels"].to(boxes.device)[:, None] * A + anchors)[values > 0]
