"""What a file of detections tells about each of them: its score, its place, and what stands around it.

Everything is computed for one image from boxes, scores and labels by tensor operations alone, so that ONNX can hold it. The size
of the image is not asked for: its detections reach to its edges, or nearly so.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

NEIGHBOURS = 8
"""Detections that each one looks at: those that overlap it most and have the highest scores."""
_AGREES = 0.5
"""IoU from which two detections mean the same object."""
_SURE = 0.1
"""Score from which a detection counts as one of the image's objects."""
_EDGE = 0.05
"""Share of the image within which a side is near its edge."""
_LEAST = 1e-4
_FARTHEST = 12.0
"""Bound on logits: a score of 1 is not infinitely sure."""

NAMES = (
    *("score", "below_best_of_class", "below_best", "rank_in_class", "rank"),
    *("size", "pixels", "aspect", "elongation", "across", "down", "left", "top", "right", "bottom"),
    *("iou_better_same", "iou_better_other", "iou_worse_same", "iou_worse_other"),
    *("below_covering", "inside_better", "around_better"),
    *("agreeing", "disagreeing", "consensus", "many_of_class", "many"),
)
PAIRS = ("iou", "inside", "around", "same_class", "score_beyond", "is_better", "score", "dx", "dy", "larger")


class Facts(NamedTuple):
    """The facts of M detections and of the J others that each looks at."""

    columns: Tensor  # (M, F), as NAMES has them
    neighbours: Tensor  # (M, J) rows of the same image; its own row where there are fewer
    present: Tensor  # (M, J) whether there is a neighbour
    pairs: Tensor  # (M, J, P), as PAIRS has them


def logits_of(scores: Tensor, are_probabilities: bool) -> Tensor:
    """(M,) scores to add to, in float32."""
    found = scores.to(torch.float64)
    return (found.logit(eps=1e-12) if are_probabilities else found).clamp(-_FARTHEST, _FARTHEST).float()


def facts_of(boxes: Tensor, own: Tensor, labels: Tensor) -> Facts:
    """The facts of one image's detections: boxes (M, 4), logits (M,), labels (M,)."""
    boxes = boxes.float()
    edge = F.pad(boxes[:, 2:], (0, 0, 0, 1), value=1.0).amax(dim=0)  # (2,) of the image
    size = (boxes[:, 2:] - boxes[:, :2]).clamp_min(_LEAST)
    area = size.prod(dim=1)
    near = _Near(boxes, area, own, labels)
    columns = [*_of_scores(near), *_of_boxes(boxes, size, edge), *_of_overlaps(near)]
    return Facts(torch.stack(columns, dim=1), *_of_neighbours(near, boxes, size))


class _Near:
    """Tables (M, M) of every detection with every other."""

    def __init__(self, boxes: Tensor, area: Tensor, own: Tensor, labels: Tensor) -> None:
        low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        shared = (high - low).clamp_min(0.0).prod(dim=2)
        row = torch.arange(boxes.shape[0], device=boxes.device)
        self.own, self.area, self.chance = own, area, own.sigmoid()
        self.other = row[:, None] != row[None]
        self.inside = shared / area[:, None]
        self.around = shared / area[None]
        self.iou = shared / (area[:, None] + area[None] - shared).clamp_min(_LEAST) * self.other
        self.same = (labels[:, None] == labels[None]) & self.other
        earlier = (own[None] == own[:, None]) & (row[None] < row[:, None])
        self.better = (own[None] > own[:, None]) | earlier
        self.unlike = ~self.same & self.other

    def highest(self, table: Tensor, among: Tensor) -> Tensor:
        """(M,) largest value of each row among some columns, 0 where there are none."""
        return F.pad(table * among, (0, 1)).amax(dim=1)


def _of_scores(near: _Near) -> list[Tensor]:
    own, same = near.own, near.same
    far = torch.full_like(own[:, None] + own[None], -_FARTHEST)
    best_of_class = torch.maximum(own, F.pad(torch.where(same, own[None], far), (0, 1), value=-_FARTHEST).amax(dim=1))
    best = F.pad(own, (0, 1), value=-_FARTHEST).amax()
    ranks = [(near.better & among).sum(dim=1) for among in (same, near.other)]
    return [own, own - best_of_class, own - best, *(rank.float().log1p() for rank in ranks)]


def _of_boxes(boxes: Tensor, size: Tensor, edge: Tensor) -> list[Tensor]:
    share = (size / edge).clamp_min(_LEAST)
    low, high = boxes[:, :2] / edge, 1.0 - boxes[:, 2:] / edge
    aspect = size[:, 0].log() - size[:, 1].log()
    middle = (boxes[:, :2] + boxes[:, 2:]) / edge - 1.0
    sides = [(side / _EDGE).clamp(0.0, 1.0) for side in (low[:, 0], low[:, 1], high[:, 0], high[:, 1])]
    return [share.log().sum(dim=1), size.log().sum(dim=1), aspect, aspect.abs(), middle[:, 0], middle[:, 1], *sides]


def _of_overlaps(near: _Near) -> list[Tensor]:
    worse = near.other & ~near.better
    beyond = (near.own[None] - near.own[:, None]).clamp(0.0, _FARTHEST)
    covering = near.same & near.better & (near.iou > _SURE)
    agrees = near.iou >= _AGREES
    chance = near.chance[None].expand_as(near.iou)
    alike = chance * near.same * (near.iou > 1 - _AGREES - 0.2)
    return [
        near.highest(near.iou, near.same & near.better),
        near.highest(near.iou, near.unlike & near.better),
        near.highest(near.iou, near.same & worse),
        near.highest(near.iou, near.unlike & worse),
        near.highest(beyond, covering),
        near.highest(near.inside, near.same & near.better),
        near.highest(near.around, near.same & near.better),
        (chance * (agrees & near.same)).sum(dim=1).log1p(),
        (chance * (agrees & near.unlike)).sum(dim=1).log1p(),
        (alike * near.iou).sum(dim=1) / (alike.sum(dim=1) + _LEAST),
        (chance * (chance > _SURE) * near.same).sum(dim=1).log1p(),
        (chance * (chance > _SURE) * near.other).sum(dim=1).log1p(),
    ]


def _of_neighbours(near: _Near, boxes: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wanted = torch.where(near.other, near.iou + near.chance[None] / 2, -1.0)
    value, found = F.pad(wanted, (0, NEIGHBOURS), value=-1.0).topk(NEIGHBOURS, dim=1)
    present = value >= 0.0
    row = torch.arange(boxes.shape[0], device=boxes.device)[:, None]
    neighbours = torch.where(present, found, row)
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    away = ((middle[neighbours] - middle[:, None]) / size[:, None]).clamp(-3.0, 3.0)
    taken = [table.float().gather(1, neighbours) for table in (near.iou, near.inside, near.around, near.same)]
    columns = [
        *taken,
        (near.own[neighbours] - near.own[:, None]) / 4,
        near.better.float().gather(1, neighbours),
        near.chance[neighbours],
        away[..., 0],
        away[..., 1],
        (near.area[neighbours].clamp_min(_LEAST) / near.area[:, None]).log().clamp(-4.0, 4.0) / 2,
    ]
    return neighbours, present, torch.stack(columns, dim=2)
