"""Oriented boxes: the IoU of their polygons, and the likeness that ultralytics computes instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepgrad.engine.polygons import quad_areas, shared_areas
from stepgrad.errors import InputError
from stepgrad.overlaps.base import Flags, Floats, Overlap, Rows, numbers
from stepgrad.plain_tensors import tensor_of

_FORM = "(centre x, centre y, width, height, angle)"


class Quads(NamedTuple):
    """n quadrangles."""

    corners: Floats  # (n, 4, 2), turning from x to y
    areas: Floats  # (n,)
    around: Floats  # (n, 4) upright boxes around them


class Rotated(Overlap):
    """IoU of oriented boxes (cx, cy, w, h, angle), or of quadrangles given as eight numbers x1 y1 ... x4 y4 (DOTA).

    They are handed in as boxes: `loss_fn(scores, boxes, targets)` with (N, 5) or (N, 8) boxes, the objects' likewise.

    Args:
        degrees: whether angles are in degrees; otherwise they are in radians, from the x axis to the y axis.
        nms: "own", or "boxes": IoU of the upright boxes around them.

    >>> overlap = Rotated(degrees=True)
    >>> overlap([[0, 0, 2, 2, 0]], [[0, 0, 2, 2, 45], [1, 0, 2, 2, 90]]).round(decimals=4).tolist()
    [[0.7071, 0.3333]]
    """

    word = "rotated IoU"
    nouns = ("box", "boxes")
    drawn = "polygon"
    is_iou = True

    def __init__(self, degrees: bool = False, nms: str = "own") -> None:
        super().__init__(nms)
        self.degrees = degrees

    def windows(self, given: Any, where: str) -> Quads:
        return self._quads(tensor_of(given, where, "boxes").detach().to("cpu", torch.float64), where)

    def _quads(self, given: Any, where: str) -> Quads:
        if given.ndim == 2 and given.shape[1] == 8:
            return quads_of_corners(numbers(given, where, 8, "x1 y1 ... x4 y4"), where)
        rows = numbers(given, where, 5, f"boxes {_FORM}")
        if (rows[:, 2:4] < 0.0).any():
            first = int(np.argwhere(rows[:, 2:4] < 0.0)[0][0])
            raise InputError(
                f"{where}: expected boxes {_FORM} of no negative size but row {first} is {rows[first].tolist()}."
            )
        return quads_of_boxes(rows, self.degrees)

    def boxes(self, shapes: Quads) -> Floats:
        return shapes.around

    def areas(self, shapes: Quads) -> Floats:
        return shapes.areas

    def join(self, parts: Sequence[Quads]) -> Quads:
        return Quads(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def take(self, shapes: Quads, rows: Rows) -> Quads:
        return Quads(*(column[rows] for column in shapes))

    def values(
        self, windows: Quads, rows: Rows, objects: Quads, columns: Rows, crowd: Flags, least: float = 0.0
    ) -> Floats:
        shared = shared_areas(windows.corners, objects.corners, rows, columns)
        own, other = windows.areas[rows], objects.areas[columns]
        whole = np.where(crowd, own, own + other - shared)
        real = (shared > 0.0) & (np.minimum(own, other) > 0.0)
        # Rounding can make a polygon that lies inside another larger than it by the last digit.
        return np.minimum(np.divide(shared, whole, out=np.zeros(len(rows)), where=real), 1.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(degrees={self.degrees}, nms={self.nms!r})"


def corners_of(shapes: Quads | Floats, rows: Any) -> Floats:
    """(n, 4, 2) corners of some oriented boxes, as `Rotated` or `ProbIoU` keeps them."""
    return shapes.corners[rows] if isinstance(shapes, Quads) else quads_of_boxes(shapes[rows]).corners


def quads_of_boxes(rows: Floats, degrees: bool = False) -> Quads:
    """The corners of boxes (cx, cy, w, h, angle)."""
    angle = np.deg2rad(rows[:, 4]) if degrees else rows[:, 4]
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    x = rows[:, 2, None] / 2 * np.array([1.0, -1.0, -1.0, 1.0])
    y = rows[:, 3, None] / 2 * np.array([1.0, 1.0, -1.0, -1.0])
    turned = np.stack([x * cos - y * sin, x * sin + y * cos], axis=2)
    return _quads(np.ascontiguousarray(rows[:, None, :2] + turned), rows[:, 2] * rows[:, 3])


def quads_of_corners(rows: Floats, where: str) -> Quads:
    """Quadrangles as their corners, turned the same way round; raises unless they are convex."""
    corners = np.ascontiguousarray(rows.reshape(-1, 4, 2))
    turn = quad_areas(corners)
    corners = np.where((turn < 0.0)[:, None, None], corners[:, ::-1], corners)
    edges = np.roll(corners, -1, axis=1) - corners
    after = np.roll(edges, -1, axis=1)
    bends = edges[..., 0] * after[..., 1] - edges[..., 1] * after[..., 0]
    wrong = (bends < -1e-9 * np.abs(turn)[:, None]).any(axis=1)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InputError(
            f"{where}: expected convex quadrangles, corners in turn, but row {first} is {rows[first].tolist()}."
        )
    return _quads(np.ascontiguousarray(corners), np.abs(turn))


def _quads(corners: Floats, areas: Floats) -> Quads:
    a, b, c, d = (corners[:, i] for i in range(4))  # faster than NumPy's minimum along so short an axis
    low, high = np.minimum(np.minimum(a, b), np.minimum(c, d)), np.maximum(np.maximum(a, b), np.maximum(c, d))
    return Quads(corners, areas, np.concatenate([low, high], axis=1))


class ProbIoU(Overlap):
    """The likeness of oriented boxes (cx, cy, w, h, angle in radians) that ultralytics trains and validates with.

    Boxes are taken as Gaussians; the likeness is 1 minus their Hellinger distance (Llerena 2021). It is not an IoU: boxes far
    apart still have some, and a box compared with itself has 0.9996.

    >>> ProbIoU()([[0, 0, 4, 2, 0.0]], [[0, 0, 4, 2, 0.0], [2, 0, 4, 2, 0.0]]).round(decimals=4).tolist()
    [[0.9996, 0.4408]]
    """

    needs_touching_boxes = False
    word = "probIoU"
    nouns = ("box", "boxes")
    drawn = "polygon"
    precision = torch.float64

    def __init__(self, nms: str = "own") -> None:
        super().__init__(nms)

    def windows(self, given: Any, where: str) -> Floats:
        return numbers(given, where, 5, f"boxes {_FORM}")

    def boxes(self, shapes: Floats) -> Floats:
        corners = quads_of_boxes(shapes).corners
        return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)

    def count(self, shapes: Floats) -> int:
        return len(shapes)

    def areas(self, shapes: Floats) -> Floats:
        return shapes[:, 2] * shapes[:, 3]

    def values(
        self, windows: Floats, rows: Rows, objects: Floats, columns: Rows, crowd: Flags, least: float = 0.0
    ) -> Floats:
        tiny = 1e-7  # ultralytics' own, in every place where it has it
        target, window = (torch.from_numpy(shapes).to(self.precision) for shapes in (objects, windows))
        a1, b1, c1 = (part[columns] for part in _covariances(target))
        a2, b2, c2 = (part[rows] for part in _covariances(window))
        dx, dy = (target[columns, :2] - window[rows, :2]).unbind(1)
        a, b, c = a1 + a2, b1 + b2, c1 + c2
        determinant = a * b - c.pow(2)
        apart = (a * dy.pow(2) + b * dx.pow(2)) / (determinant + tiny) * 0.25
        turned = (c * -dx * dy) / (determinant + tiny) * 0.5
        own = (a1 * b1 - c1.pow(2)).clamp(0) * (a2 * b2 - c2.pow(2)).clamp(0)
        unlike = (determinant / (4 * own.sqrt() + tiny) + tiny).log() * 0.5
        bhattacharyya = (apart + turned + unlike).clamp(tiny, 100.0)
        likeness: Floats = (1 - (1.0 - (-bhattacharyya).exp() + tiny).sqrt()).double().numpy()
        return likeness


def _covariances(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of Gaussians with the second moments of the boxes: variance in x, in y, covariance."""
    along, across = boxes[:, 2].pow(2) / 12, boxes[:, 3].pow(2) / 12
    cos, sin = boxes[:, 4].cos(), boxes[:, 4].sin()
    return (
        along * cos.pow(2) + across * sin.pow(2),
        along * sin.pow(2) + across * cos.pow(2),
        (along - across) * cos * sin,
    )


def boxes_of_corners(corners: Floats) -> Floats:
    """(n, 5) the smallest oriented boxes (cx, cy, w, h, angle) around quadrangles (n, 4, 2).

    One side lies along an edge of the quadrangle; of rectangles it is the one that `quads_of_boxes` makes the first.

    >>> boxes_of_corners(quads_of_boxes(np.array([[5.0, 4.0, 6.0, 2.0, 0.3]])).corners).round(9).tolist()
    [[5.0, 4.0, 6.0, 2.0, 0.3]]
    """
    edges = corners - np.roll(corners, -1, axis=1)  # (n, 4, 2) from the second corner to the first, ...
    lengths = np.hypot(edges[..., 0], edges[..., 1])
    along = edges / np.where(lengths > 0.0, lengths, 1.0)[..., None]
    along[lengths == 0.0] = (1.0, 0.0)
    axes = np.stack([along, np.stack([-along[..., 1], along[..., 0]], axis=2)], axis=2)  # (n, 4 edges, 2 axes, 2)
    places = np.einsum("neak,nck->neac", axes, corners)  # of each corner along each axis
    low, high = places.min(axis=3), places.max(axis=3)
    areas = np.where(lengths > 0.0, (high - low).prod(axis=2), np.inf)
    # The four edges of a rectangle tie up to rounding.
    best = (areas <= areas.min(axis=1, keepdims=True) * (1.0 + 1e-9)).argmax(axis=1)
    chosen = np.arange(len(corners)), best
    centre = np.einsum("na,nak->nk", (low + high)[chosen] / 2, axes[chosen])
    angle = np.arctan2(along[chosen][:, 1], along[chosen][:, 0])
    return np.concatenate([centre, (high - low)[chosen], angle[:, None]], axis=1)
