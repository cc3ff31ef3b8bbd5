"""IoU-aware soft labels: a classifier that is asked how well a window fits, not only whether it does.

Varifocal loss (Zhang et al. 2021) and its kin teach the score of an object's class to be the window's IoU with the object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import box_iou

from stepgrad.detector.sampling import Sample


def soft_cross_entropy(
    activations: Sequence[Tensor], samples: Sequence[Sample], targets: Sequence[Mapping[str, Any]]
) -> Tensor:
    """Cross-entropy of Fast R-CNN where a window on an object is of its class by its IoU, and background by the rest."""
    joined = torch.cat(list(activations)).float()
    wanted = torch.cat([soft_targets(s, t["boxes"], joined.shape[1]) for s, t in zip(samples, targets, strict=True)])
    return F.cross_entropy(joined, wanted)


def soft_targets(sample: Sample, object_boxes: Tensor, columns: int) -> Tensor:
    """(N, columns) shares of each window's classes, background last; the rows sum to 1."""
    shares = torch.zeros(len(sample.windows), columns)
    shares[:, -1] = 1.0
    if len(object_boxes) == 0:
        return shares
    overlap = box_iou(sample.windows.double(), object_boxes.double()).max(dim=1).values.float()
    rows = (sample.labels < columns - 1).nonzero().flatten()  # windows on objects: IoU >= 0.5, as with hard labels
    shares[rows, sample.labels[rows]] = overlap[rows]
    shares[rows, -1] = 1.0 - overlap[rows]
    return shares
