"""From the detections of one image, as an evaluator takes them, to what the network sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepgrad.errors import InputError
from stepgrad.models.rescore.facts import NAMES, facts_of, logits_of
from stepgrad.models.rescore.network import Rows
from stepgrad.overlaps.base import Overlap, shapes_in
from stepgrad.overlaps.masks import Masks, Runs

MASKS = ("mask_fill", "mask_extent", "mask_pixels", "mask_edge", "mask_parts")
POSES = ("pose_mean", "pose_least", "pose_seen", "pose_fill", "pose_spread")
CLASSES = ("margin", "entropy")
_SEEN = 0.5


def more_names(overlap: Overlap, has_classes: bool, features: int) -> tuple[str, ...]:
    """Columns besides those of `facts_of`."""
    shapes = {"masks": MASKS, "keypoints": POSES}.get(overlap.key, ())
    given = tuple(f"feature_{i}" for i in range(features))
    return (*shapes, *(CLASSES if has_classes else ()), *given)


def width_of(more: tuple[str, ...]) -> int:
    """Columns of the network's input."""
    return len(NAMES) + len(more)


def rows_of(
    detections: Mapping[str, Any],
    overlap: Overlap,
    are_probabilities: bool,
    has_classes: bool,
    features: Tensor | None,
    where: str,
) -> Rows:
    """What the network sees of one image."""
    boxes = boxes_of(detections, overlap, where)
    labels = torch.as_tensor(detections["labels"]).long().reshape(-1)
    own = logits_of(torch.as_tensor(detections["scores"]).reshape(-1), are_probabilities)
    facts = facts_of(boxes, own, labels)
    more = more_columns(detections, overlap, boxes, own, labels, has_classes, features, where)
    columns = torch.cat([facts.columns, more], dim=1)
    return Rows(columns, facts.neighbours, facts.present, facts.pairs, own, labels)


def boxes_of(detections: Mapping[str, Any], overlap: Overlap, where: str) -> Tensor:
    """(M, 4) boxes, or those around shapes."""
    if "boxes" in detections:
        return torch.as_tensor(detections["boxes"]).double().reshape(-1, 4)
    return torch.from_numpy(overlap.boxes(overlap.windows(shapes_in(detections, overlap.key, where), where))).reshape(
        -1, 4
    )


def more_columns(
    detections: Mapping[str, Any],
    overlap: Overlap,
    boxes: Tensor,
    own: Tensor,
    labels: Tensor,
    has_classes: bool,
    features: Tensor | None,
    where: str,
) -> Tensor:
    """(M, E) columns of the shapes, of the scores of the classes, and the features that were handed in."""
    columns = []
    if overlap.key == "masks" and len(own):
        columns.append(of_masks(column_runs(detections["masks"], where), boxes))
    elif overlap.key == "keypoints" and len(own):
        columns.append(of_poses(torch.as_tensor(detections["keypoints"]).double(), boxes))
    elif overlap.key in ("masks", "keypoints"):
        columns.append(torch.zeros(0, len(MASKS if overlap.key == "masks" else POSES)))
    if has_classes:
        columns.append(of_classes(detections, own, labels, where))
    if features is not None:
        columns.append(features.float())
    return torch.cat([torch.zeros(len(own), 0), *columns], dim=1).float()


def column_runs(masks: Any, where: str) -> Runs:
    """The masks read column by column, so that dense ones and run lengths of the same pixels look alike."""
    dense = isinstance(masks, (Tensor, np.ndarray)) or (len(masks) and isinstance(masks[0], (Tensor, np.ndarray)))
    if not dense:
        return Masks().windows(masks, where)
    pixels = torch.stack([torch.as_tensor(mask) for mask in masks])
    turned = Masks().windows(pixels.transpose(1, 2), where)
    low, high = turned.boxes[:, [1, 0]], turned.boxes[:, [3, 2]]
    return turned._replace(by_rows=False, boxes=np.concatenate([low, high], axis=1), sizes=turned.sizes[:, ::-1])


def of_masks(runs: Runs, boxes: Tensor) -> Tensor:
    """(M, 5): how full the box is, whether the mask reaches its edges, its size, the roughness of its edge, its parts."""
    count = torch.from_numpy(runs.counts.astype(np.float64))
    extent = torch.from_numpy(runs.boxes)
    area = (boxes[:, 2:] - boxes[:, :2]).clamp_min(1e-3).prod(dim=1)
    low, high = torch.maximum(boxes[:, :2], extent[:, :2]), torch.minimum(boxes[:, 2:], extent[:, 2:])
    shared = (high - low).clamp_min(0.0).prod(dim=1)
    reach = (extent[:, 2:] - extent[:, :2]).prod(dim=1)
    owner = np.repeat(np.arange(runs.masks), np.diff(runs.ptr))
    height = np.maximum(runs.sizes[owner, 0], 1)
    column, begin, length = runs.starts // height, runs.starts % height, runs.stops - runs.starts
    follows = (owner[1:] == owner[:-1]) & (column[1:] == column[:-1] + 1)
    moved = np.abs(np.diff(begin)) + np.abs(np.diff(begin + length))
    edge = 2.0 * np.bincount(owner, minlength=runs.masks)
    edge += np.bincount(owner[1:], np.where(follows, moved, 0), minlength=runs.masks)
    parts = np.bincount(owner, minlength=runs.masks) / np.maximum(runs.boxes[:, 2] - runs.boxes[:, 0], 1)
    columns = [
        (count / area).clamp_max(2.0),
        shared / (area + reach - shared).clamp_min(1e-3),
        count.clamp_min(1).log(),
        (torch.from_numpy(edge) / count.clamp_min(1).sqrt()).clamp_max(20.0).log1p(),
        torch.from_numpy(parts).clamp_max(10.0),
    ]
    return torch.stack(columns, dim=1)


def of_poses(points: Tensor, boxes: Tensor) -> Tensor:
    """(M, 5): mean and least confidence, share of points that are seen, share of the box they fill, their spread in it."""
    sure = points[..., 2] if points.shape[-1] == 3 else torch.ones_like(points[..., 0])
    size = (boxes[:, 2:] - boxes[:, :2]).clamp_min(1e-3)
    reach = points[..., :2].amax(dim=1) - points[..., :2].amin(dim=1)
    spread = (points[..., :2].std(dim=1, unbiased=False) / size).clamp_max(3.0).mean(dim=1)
    fill = (reach / size).clamp(0.0, 3.0).prod(dim=1)
    columns = [sure.mean(dim=1), sure.amin(dim=1), (sure > _SEEN).double().mean(dim=1), fill, spread]
    return torch.stack(columns, dim=1)


def of_classes(detections: Mapping[str, Any], own: Tensor, labels: Tensor, where: str) -> Tensor:
    """(M, 2): how far the class is ahead of the best other one, and the entropy of the class scores."""
    scores = torch.as_tensor(detections["class_scores"]).double()
    if scores.ndim != 2 or len(scores) != len(own):
        raise InputError(
            f"{where}: expected class_scores (M, K), a row per detection, of which there are {len(own)}, but got "
            f"{tuple(scores.shape)}."
        )
    chance = scores.clamp(1e-6, 1 - 1e-6)
    others = torch.where(torch.arange(scores.shape[1]) == labels[:, None], 0.0, chance)
    share = chance / chance.sum(dim=1, keepdim=True)
    margin = own.double() - others.amax(dim=1).clamp_min(1e-6).logit()
    return torch.stack([margin.clamp(-12.0, 12.0), -(share * share.log()).sum(dim=1)], dim=1)
