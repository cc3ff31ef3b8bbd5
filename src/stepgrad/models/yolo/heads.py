"""What is known of a YOLO's head, whatever the version of ultralytics: its class layers, its outputs, the pairs that mAP ranks.

A head scores some thousand anchors for every class. As at inference, the best pairs of anchor and class of an image take part,
among all classes. Besides, each object's own best anchors do, in the column of its class: otherwise nothing would raise the
scores of a missed object. Which anchors these are is read off the boxes; the model's own assignment is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from stepgrad.errors import ConfigError
from stepgrad.losses.ragged import ScoredPairs
from stepgrad.metric.batch import Target
from stepgrad.models.auto_weight import StockLoss
from stepgrad.models.switch import wide

ONE, MANY = "one2one", "one2many"  # the heads of a detector that needs no NMS, as its outputs and its loss call them
_WHAT_A_LOSS_KNOWS = ("bbox_decode", "stride", "nc", "reg_max")


@dataclass(frozen=True)
class HeadOutput:
    """Of B images, for A anchors and K classes."""

    logits: Tensor  # (B, K, A) of the classes, with their graph
    boxes: Tensor  # (B, A, 4) in pixels, cut at the image's edges, without a graph
    sources: Sequence[Tensor]  # what came out of the network and holds the logits
    first_class: int  # the channel of a source where they begin

    def stock(self, loss: Tensor) -> StockLoss:
        """The model's own loss, to be measured at the class logits, which its classification loss alone depends on."""
        return StockLoss(loss, self.sources, lambda gradient: gradient[:, self.first_class :])


def head_with_nms(model: Any) -> Any:
    """The `Detect` of a network (v8, 11), which needs NMS after it; ConfigError for other heads."""
    layers = getattr(model, "model", None)
    head = layers[-1] if isinstance(layers, nn.Sequential) else None
    if type(head).__name__ != "Detect":
        raise ConfigError(f"Expected a YOLO whose last part is a Detect head but got {type(head).__name__}.")
    if getattr(head, "end2end", False) or hasattr(head, "one2one_cv3"):
        raise ConfigError("Expected a YOLO with NMS (v8, 11) but got one whose head works end to end.")
    return head


def class_layers(head: Any) -> list[nn.Module]:
    """The last convolution of each level's class branch, 1 x 1."""
    return [branch[-1] for branch in head.cv3]


def read_inference(output: Any) -> tuple[Tensor, Tensor]:
    """(A, 4) boxes and (A, K) probabilities of the first image, from what a model in eval mode gives."""
    first: Tensor = output[0] if isinstance(output, (tuple, list)) else output
    return corners(first[0, :4].T), first[0, 4:].T


def corners(boxes: Tensor) -> Tensor:
    """(N, 4) x1, y1, x2, y2 of boxes given by centre and size."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return torch.cat([centre - half, centre + half], dim=1)


def losses_of_heads(criterion: Any) -> dict[str, Any]:
    """The part of a criterion of ultralytics that knows a head's boxes, by name; "" where there is one head.

    Raises:
        ConfigError: unless it is that of boxes along the axes, from anchors, with sigmoid scores.
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


def read_heads(preds: Any, losses: Mapping[str, Any], size: Sequence[int]) -> dict[str, HeadOutput]:
    """The outputs of a model in training mode, by head, as `losses_of_heads` names them.

    Args:
        preds: what the criterion was called with.
        losses: of the heads.
        size: height and width of the images.
    """
    parts = {name: preds[name] for name in losses} if MANY in losses else {"": preds}
    return {name: _read(part, losses[name], size) for name, part in parts.items()}


def _read(part: Any, loss: Any, size: Sequence[int]) -> HeadOutput:
    if isinstance(part, Mapping):  # from 8.4 on
        sources, first_class = [part["scores"]], 0
        logits, distances, maps = part["scores"], part["boxes"], part["feats"]
    else:  # one map a level: four sides, then classes; with masks or keypoints, the first of several things
        maps = part if isinstance(part, list) else part[0]
        sources, first_class = list(maps), 4 * loss.reg_max
        joined = torch.cat([level.flatten(2) for level in maps], dim=2)
        distances, logits = joined[:, :first_class], joined[:, first_class:]
    return HeadOutput(logits, _decode(loss, distances.detach(), maps, size), sources, first_class)


@torch.no_grad()
def _decode(loss: Any, distances: Tensor, maps: Sequence[Tensor], size: Sequence[int]) -> Tensor:
    from ultralytics.utils.tal import make_anchors

    sides = wide(distances).transpose(1, 2).contiguous()
    points, strides = (part.to(sides.dtype) for part in make_anchors(maps, loss.stride, 0.5))
    boxes = loss.bbox_decode(points, sides) * strides
    height, width = size
    return torch.stack(
        [boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)],
        dim=-1,
    ).flatten(-2)


def targets_of(batch: Mapping[str, Any], dtype: torch.dtype) -> list[Target]:
    """The objects of each image of a batch of ultralytics, in pixels. Its labels know no crowds and nothing difficult."""
    images, _, height, width = batch["img"].shape
    image = batch["batch_idx"].view(-1).long()
    shares = batch["bboxes"].to(dtype).view(-1, 4)
    boxes = corners(shares) * torch.tensor([width, height, width, height], dtype=dtype, device=shares.device)
    labels = batch["cls"].view(-1).long()
    return [{"boxes": boxes[image == i], "labels": labels[image == i]} for i in range(images)]


def ranked_pairs(head: HeadOutput, targets: Sequence[Target], candidates: int, per_object: int) -> ScoredPairs:
    """The pairs that take part, of classes with objects in the batch; scores are logarithms of the model's.

    Args:
        head: what the head says.
        targets: the objects, on the head's device.
        candidates: best pairs of an image.
        per_object: anchors of each object, those that overlap it most.
    """
    _, K, A = head.logits.shape
    present = torch.zeros(K, dtype=torch.bool, device=head.logits.device)
    present[torch.cat([target["labels"] for target in targets]).to(present.device)] = True
    ranking = head.logits.detach()
    chosen = []
    for i, target in enumerate(targets):
        best = ranking[i].flatten().topk(min(candidates, K * A), sorted=False).indices
        pairs = torch.cat([best, _own_pairs(head.boxes[i], target, per_object)]).unique()  # column * A + anchor
        usable = present[pairs // A] & _is_box(head.boxes[i])[pairs % A] & ranking[i].flatten()[pairs].isfinite()
        chosen.append(pairs[usable])
    image = torch.cat([torch.full_like(pairs, i) for i, pairs in enumerate(chosen)])
    pairs = torch.cat(chosen)
    column, anchor = pairs // A, pairs % A
    scores = logsigmoid(wide(head.logits[image, column, anchor]))
    return ScoredPairs(scores, head.boxes[image, anchor], image, column)


def _is_box(boxes: Tensor) -> Tensor:
    """Which boxes are finite and have an area: a network that has diverged is left to its trainer, which recovers."""
    return boxes.isfinite().all(dim=-1) & (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)


def _own_pairs(boxes: Tensor, target: Target, per_object: int) -> Tensor:
    from torchvision.ops import box_iou

    A = len(boxes)
    if len(target["labels"]) == 0 or per_object == 0:
        return torch.zeros(0, dtype=torch.long, device=boxes.device)
    overlap = box_iou(target["boxes"].to(boxes), boxes).nan_to_num(0.0)  # (G, A)
    values, anchors = overlap.topk(min(per_object, A), dim=1)
    return (target["labels"].to(boxes.device)[:, None] * A + anchors)[values > 0]
