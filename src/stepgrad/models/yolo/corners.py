"""Boxes of heads that give the distances to the sides as they are: a distance may be negative, and turn a box inside out."""

from __future__ import annotations

import torch
from torch import Tensor


def in_order(boxes: Tensor) -> Tensor:
    """Boxes (..., 4) as corners, with the second corner of a reversed one moved onto the first.

    Such a box overlaps nothing by ultralytics' rules, as one without area does.

    >>> in_order(torch.tensor([[0.0, 0, 4, 4], [3, 0, 1, 4]])).tolist()
    [[0.0, 0.0, 4.0, 4.0], [3.0, 0.0, 3.0, 4.0]]
    """
    return torch.cat([boxes[..., :2], torch.maximum(boxes[..., :2], boxes[..., 2:])], dim=-1)
