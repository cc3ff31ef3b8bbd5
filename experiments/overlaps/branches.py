"""Branches that draw masks, keypoints and oriented boxes for the windows of the demo's detector, from its frozen features."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_iou, roi_align

from stepgrad.models.demo.detector import CHANNELS, SIZE

POOLED = 7  # cells of a window's features, each way
CELLS = 14  # of a mask, each way
HIDDEN = 64
POINTS = 4
STRIDE = 8
HIT = 0.5  # box IoU from which a window learns an object's shape


class Drawn(NamedTuple):
    """What the branches say of N windows."""

    hidden: Tensor  # (N, HIDDEN) what the shapes are made of
    mask: Tensor  # (N, CELLS, CELLS) logits over the window's box
    points: Tensor  # (N, POINTS, 2) from the box's centre, in sizes of the box
    oriented: Tensor  # (N, 8) centre; logs of the long and the short side; cos, sin of 4 angles; of 2 angles


class Branches(nn.Module):
    """Three branches on two layers in common."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Sequential(nn.Linear(CHANNELS * POOLED**2, 128), nn.SiLU(), nn.Linear(128, HIDDEN), nn.SiLU())
        self.mask = nn.Linear(HIDDEN, CELLS**2)
        self.points = nn.Linear(HIDDEN, 2 * POINTS)
        self.oriented = nn.Linear(HIDDEN, 8)

    def forward(self, pooled: Tensor) -> Drawn:
        hidden = self.common(pooled.flatten(1))
        mask, points = self.mask(hidden).view(-1, CELLS, CELLS), self.points(hidden).view(-1, POINTS, 2)
        return Drawn(hidden, mask, points, self.oriented(hidden))


def pool(finest: Tensor, boxes: Tensor) -> Tensor:
    """(N, C, POOLED, POOLED) the features of an image in its windows."""
    return roi_align(finest[None], [boxes], POOLED, 1 / STRIDE, 2, aligned=True)


def sizes(boxes: Tensor) -> Tensor:
    """(N, 2) widths and heights, at least a pixel."""
    return (boxes[:, 2:] - boxes[:, :2]).clamp_min(1.0)


class Wanted(NamedTuple):
    """The shapes of the objects that some windows should draw, as the branches say them."""

    mask: Tensor
    points: Tensor
    oriented: Tensor


def wanted(boxes: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, Wanted]:
    """The windows that fit an object, and its shape."""
    objects = target["boxes"].float()
    none = torch.zeros(0, dtype=torch.long)
    iou = box_iou(boxes, objects) if len(objects) else torch.zeros(len(boxes), 1)
    fits, which = iou.max(dim=1)
    rows = (fits >= HIT).nonzero().flatten() if len(objects) else none
    boxes, which = boxes[rows], which[rows]
    centre, size = (boxes[:, :2] + boxes[:, 2:]) / 2, sizes(boxes)
    masks = target["masks"][which].float()[:, None]
    cells = roi_align(masks, torch.cat([torch.arange(len(rows))[:, None], boxes], dim=1), CELLS, aligned=True)[:, 0]
    points = (target["keypoints"][which, :, :2].float() - centre[:, None]) / size[:, None]
    return rows, Wanted(cells, points, oriented_wanted(target["oriented"][which].float(), centre, size))


def oriented_wanted(oriented: Tensor, centre: Tensor, size: Tensor) -> Tensor:
    """(N, 8) of boxes (cx, cy, w, h, angle), for windows of these centres and sizes.

    A square has the same shape after a quarter turn, which cos and sin of four angles do not tell apart; which of the two
    directions is the long one is told by two angles, and counts as much as the sides differ.
    """
    sides, angle = oriented[:, 2:4], oriented[:, 4]
    long, short = sides.amax(dim=1), sides.amin(dim=1).clamp_min(0.5)
    along = angle + torch.where(sides[:, 0] >= sides[:, 1], 0.0, torch.pi / 2)
    scale = size.prod(dim=1).sqrt()
    thin = 1 - short / long.clamp_min(0.5)
    columns = [
        *((oriented[:, :2] - centre) / size).unbind(1),
        (long.clamp_min(0.5) / scale).log(),
        (short / scale).log(),
        *((4 * angle).cos(), (4 * angle).sin()),
        *(thin * (2 * along).cos(), thin * (2 * along).sin()),
    ]
    return torch.stack(columns, dim=1)


def loss(drawn: Drawn, shapes: Wanted) -> Tensor:
    """Cross-entropy of pixels, and distances."""
    return (
        F.binary_cross_entropy_with_logits(drawn.mask, shapes.mask)
        + 2 * F.smooth_l1_loss(drawn.points, shapes.points, beta=0.1)
        + F.smooth_l1_loss(drawn.oriented, shapes.oriented, beta=0.1)
    )


def masks_of(drawn: Drawn, boxes: Tensor) -> Tensor:
    """(N, SIZE, SIZE) pixels whose centre is likelier of the shape than not."""
    centres = torch.arange(SIZE) + 0.5
    low, size = boxes[:, :2], sizes(boxes)
    x, y = (2 * (centres[None] - low[:, [n]]) / size[:, [n]] - 1 for n in (0, 1))  # -1 to 1 inside the box
    grid = torch.stack([x[:, None, :].expand(-1, SIZE, -1), y[:, :, None].expand(-1, -1, SIZE)], dim=3)
    logits = F.grid_sample(drawn.mask[:, None], grid, align_corners=False, padding_mode="border")[:, 0]
    return (logits > 0) & (grid.abs() <= 1).all(dim=3)


def points_of(drawn: Drawn, boxes: Tensor) -> Tensor:
    """(N, POINTS, 2) in pixels."""
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    return centre[:, None] + drawn.points * sizes(boxes)[:, None]


def oriented_of(drawn: Drawn, boxes: Tensor) -> Tensor:
    """(N, 5) boxes (cx, cy, w, h, angle)."""
    dx, dy, long, short, cos4, sin4, cos2, sin2 = drawn.oriented.unbind(1)
    scale = sizes(boxes).prod(dim=1).sqrt()
    angle = torch.atan2(sin4, cos4) / 4 % (torch.pi / 2)
    wide = cos2 * (2 * angle).cos() + sin2 * (2 * angle).sin() >= 0
    sides = torch.stack([long, short], dim=1).clamp(-3, 3).exp() * scale[:, None]
    sides = torch.where(wide[:, None], sides, sides.flip(1))
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2 + torch.stack([dx, dy], dim=1) * sizes(boxes)
    return torch.cat([centre, sides, angle[:, None]], dim=1)
