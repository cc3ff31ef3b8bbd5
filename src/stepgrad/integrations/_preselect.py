"""Which (anchor, class) pairs of a dense head take part: those its own inference would pass on to NMS.

A dense head scores some hundred thousand anchors for every class; inference passes on the best few thousand pairs. So does
training here, by the same rule, with two differences. There is no score threshold unless one is asked for: early in
training nothing would pass it. And the pairs of positive anchors with their objects' classes always take part
(`keep_positives`), as a missed object would otherwise never hear that it is missed. What is left out are pairs that the
model itself ranks below everything it would report.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def best_pairs_of_levels(ranking: Tensor, level_sizes: Sequence[int], topk: int, floor: float) -> Tensor:
    """RetinaNet and FCOS: on every level of the pyramid, the `topk` best pairs above the floor, all classes together.

    Args:
        ranking: (A, K) anything that orders pairs as their scores do.
        level_sizes: anchors of each level; they sum to A.
        topk: pairs of a level.
        floor: pairs at or below it stay out; -inf: none.

    Returns:
        pairs: anchor * K + class.

    >>> best_pairs_of_levels(torch.tensor([[0.1, 0.9], [0.5, 0.2], [0.3, 0.4]]), [2, 1], topk=1, floor=0.0).tolist()
    [1, 5]
    """
    K = ranking.shape[1]
    found, start = [], 0
    for size in level_sizes:
        level = ranking[start : start + size].flatten()
        values, at = level.topk(min(topk, len(level)), sorted=False)
        found.append(at[values > floor] + start * K)
        start += size
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.long, device=ranking.device)


def best_pairs_of_classes(ranking: Tensor, classes: Tensor, topk: int, floor: float) -> Tensor:
    """SSD: for each of `classes`, the `topk` best anchors above the floor, all levels together.

    >>> best_pairs_of_classes(torch.tensor([[0.1, 0.9], [0.5, 0.2]]), torch.tensor([1, 0]), topk=1, floor=0.0).tolist()
    [1, 2]
    """
    values, anchors = ranking[:, classes].topk(min(topk, len(ranking)), dim=0, sorted=False)
    return (anchors * ranking.shape[1] + classes)[values > floor]


def positive_pairs(matched: Tensor, labels: Tensor, K: int) -> Tensor:
    """Anchors the model's own matching gives an object (`matched` >= 0), with that object's class.

    >>> positive_pairs(torch.tensor([-1, 0, -2]), torch.tensor([3]), K=4).tolist()
    [7]
    """
    anchors = torch.where(matched >= 0)[0]
    return anchors * K + labels[matched[anchors]]
