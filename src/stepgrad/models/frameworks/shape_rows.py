"""Masks, poses and other shapes as rows of numbers, so that processes can exchange them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepgrad.overlaps import Keypoints, Masks, Overlap
from stepgrad.overlaps.masks import coco_counts

WIDTH = 2  # height and width before the runs of a mask


def packed(overlap: Overlap, given: Any, where: str) -> tuple[Tensor, Tensor]:
    """All numbers of an image's shapes one after the other, and (n,) how many each has.

    >>> numbers, lengths = packed(Masks(), torch.tensor([[[True, False], [True, True]]]), "masks")
    >>> numbers.tolist(), lengths.tolist()
    ([2.0, 2.0, 0.0, 2.0, 1.0, 1.0], [6])
    """
    rows: list[Tensor]
    if isinstance(overlap, Masks):
        runs = overlap.windows(given, where)
        rows = [
            torch.tensor([*runs.sizes[i].tolist(), *coco_counts(runs, i)], dtype=torch.float64)
            for i in range(runs.masks)
        ]
    else:
        rows = [row.detach().cpu().double().reshape(-1) for row in torch.as_tensor(given)]
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    return torch.cat([torch.zeros(0, dtype=torch.float64), *rows]), lengths


def unpacked(overlap: Overlap, numbers: Tensor, lengths: Sequence[int]) -> Any:
    """The shapes of `packed`, as `Evaluator` takes them."""
    rows = numbers.split(list(lengths))
    if isinstance(overlap, Masks):
        return [{"size": row[:WIDTH].long().tolist(), "counts": row[WIDTH:].long().tolist()} for row in rows]
    if not rows:
        return torch.zeros(0, 0, dtype=torch.float64)
    table = torch.stack(list(rows))
    return table.view(len(rows), len(overlap.sigmas), -1) if isinstance(overlap, Keypoints) else table
