"""Poses and oriented boxes as ultralytics compares them: in single precision, and with its small numbers in its places."""

from __future__ import annotations

import numpy as np
import torch

from stepgrad.overlaps.base import Flags, Floats, Rows
from stepgrad.overlaps.keypoints import Keypoints, Poses
from stepgrad.overlaps.rotated import ProbIoU

_TINY = 1e-7


class YoloPoses(Keypoints):
    """OKS of poses; an object without labelled keypoints has none with anything."""

    def values(
        self, windows: Poses, rows: Rows, objects: Poses, columns: Rows, crowd: Flags, least: float = 0.0
    ) -> Floats:
        window, target = _single(windows.points)[rows], _single(objects.points)[columns]
        areas, labelled = _single(objects.areas)[columns], target[..., 2] != 0
        scale = (2 * torch.tensor(self.sigmas)).pow(2)
        squares = (target[..., 0] - window[..., 0]).pow(2) + (target[..., 1] - window[..., 1]).pow(2)
        apart = squares / (scale * (areas[:, None] + _TINY) * 2)
        similarity = ((-apart).exp() * labelled).sum(-1) / (labelled.sum(-1) + _TINY)
        return similarity.double().numpy()


class YoloOriented(ProbIoU):
    """probIoU of oriented boxes."""

    precision = torch.float32


def _single(values: Floats) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))
