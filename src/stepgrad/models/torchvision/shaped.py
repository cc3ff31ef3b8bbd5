"""Masks and keypoints of Mask and Keypoint R-CNN: what the model would report for its candidates, and how well it fits objects.

The mask or keypoint head runs on the candidates' boxes as at inference: in eval mode and without gradient, so that its own loss
alone trains it. Each candidate costs as much as a detection does at inference; so the best of an image take part, not all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchvision.models.detection.roi_heads import (
    expand_boxes,
    expand_masks,
    keypointrcnn_inference,
    maskrcnn_inference,
)

from stepgrad.errors import ConfigError
from stepgrad.losses.ragged import ScoredPairs
from stepgrad.metric.batch import Target
from stepgrad.models.held_out import as_used
from stepgrad.models.switch import wide
from stepgrad.models.torchvision.detector import MASK_LEVEL
from stepgrad.overlaps import COCO_SIGMAS, Boxes, Keypoints, Masks, Overlap, overlap_of

PAIRS_PER_IMAGE = 100
"""Pairs of window and class whose masks or keypoints are predicted, those with the highest scores; positives come besides."""
SHARE = "share_of_image"  # of an object's area, which survives the resizing of the image


def task_overlap(task: str | Overlap, model: Any) -> Overlap:
    """The overlap of a task; ConfigError unless the model predicts such shapes."""
    overlap = overlap_of(task)
    if type(overlap) is Boxes:
        return overlap
    if not isinstance(overlap, (Masks, Keypoints)):
        raise ConfigError(f"Expected task to be 'boxes', 'masks' or 'keypoints' but got {task!r}.")
    heads = getattr(model, "roi_heads", None)
    has = {"masks": "has_mask", "keypoints": "has_keypoint"}[overlap.key]
    if heads is None or not getattr(heads, has)():
        kind = "MaskRCNN" if overlap.key == "masks" else "KeypointRCNN"
        raise ConfigError(f"Expected a {kind} for task {overlap.key!r} but {type(model).__name__} predicts none.")
    if overlap.nms != "boxes":
        raise ConfigError(f"Expected nms='boxes', by which the model itself suppresses, but got {overlap!r}.")
    if isinstance(overlap, Keypoints):
        _check_sigmas(overlap, heads)
    return overlap


def _check_sigmas(overlap: Keypoints, heads: Any) -> None:
    points = getattr(getattr(heads.keypoint_predictor, "kps_score_lowres", None), "out_channels", None)
    if points not in (None, len(overlap.sigmas)):
        raise ConfigError(
            f"Expected a sigma for each of the model's {points} keypoints but there are {len(overlap.sigmas)}; pass "
            f"task=sg.overlaps.Keypoints(sigmas). COCO's {len(COCO_SIGMAS)} are the default."
        )


@dataclass(frozen=True)
class Shaper:
    """The heads of a two-stage model at one batch."""

    heads: Any  # RoIHeads
    features: dict[str, Tensor]
    image_shapes: Sequence[tuple[int, int]]

    def with_overlaps(
        self, pairs: ScoredPairs, positive: Tensor, targets: Sequence[Target], overlap: Overlap, most: int
    ) -> ScoredPairs:
        """The candidates that can matter, the `most` best and the positives of each image, with the overlaps of their shapes."""
        chosen = best_pairs(pairs, positive, most, len(targets))
        pairs = ScoredPairs(pairs.scores[chosen], pairs.boxes[chosen], pairs.images[chosen], pairs.classes[chosen])
        rows = [torch.where(pairs.images == i)[0] for i in range(len(targets))]
        boxes, labels = [pairs.boxes[r] for r in rows], [pairs.classes[r] + 1 for r in rows]
        if isinstance(overlap, Masks):
            found = zip(self._masks(boxes, labels), boxes, targets, strict=True)
            return replace(pairs, overlaps=[mask_overlaps(*one) for one in found])
        areas = [_areas(target, shape) for target, shape in zip(targets, self.image_shapes, strict=True)]
        objects = [{**target, "area": area} for target, area in zip(targets, areas, strict=True)]
        points = self._keypoints(boxes)
        return replace(pairs, overlaps=[overlap(p, target) for p, target in zip(points, objects, strict=True)])

    def _masks(self, boxes: list[Tensor], labels: list[Tensor]) -> Sequence[Tensor]:
        """Per image (n, M, M) probabilities of the pixels of each box."""
        logits = self._run([self.heads.mask_roi_pool, self.heads.mask_head, self.heads.mask_predictor], boxes)
        return [part[:, 0] for part in maskrcnn_inference(logits, labels)]

    def _keypoints(self, boxes: list[Tensor]) -> Sequence[Tensor]:
        """Per image (n, k, 3)."""
        heads = self.heads
        logits = self._run([heads.keypoint_roi_pool, heads.keypoint_head, heads.keypoint_predictor], boxes)
        points: Sequence[Tensor] = keypointrcnn_inference(logits, boxes)[0]
        return points

    def _run(self, parts: Sequence[nn.Module], boxes: list[Tensor]) -> Tensor:
        pool, head, predictor = parts
        with as_used(nn.ModuleList(parts)):  # batch normalisation neither uses nor learns these windows' statistics
            like = next(iter(self.features.values()))
            found: Tensor = predictor(head(pool(self.features, [b.to(like.dtype) for b in boxes], self.image_shapes)))
        return wide(found)


def best_pairs(pairs: ScoredPairs, positive: Tensor, most: int, images: int) -> Tensor:
    """The numbers of the `most` best pairs of each image, and of all positive ones, in ascending order."""
    taken = positive.clone()
    for i in range(images):
        rows = torch.where(pairs.images == i)[0]
        taken[rows[pairs.scores.detach()[rows].topk(min(most, len(rows))).indices]] = True
    return torch.where(taken)[0]


def mask_overlaps(probabilities: Tensor, boxes: Tensor, target: Target) -> Tensor:
    """(n, G) IoU of predicted masks with the masks of an image's objects; with a crowd the share of the mask that it covers.

    Masks are enlarged to their boxes as torchvision pastes them into the image, and compared there: the same pixels, without
    the rest of the image.

    Args:
        probabilities: (n, M, M).
        boxes: (n, 4) in pixels of the image.
        target: of the image, with masks (G, H, W).
    """
    objects = target["masks"].to(boxes.device) > 0
    crowd = target["iscrowd"].to(boxes.device).bool() if "iscrowd" in target else objects.new_zeros(len(objects))
    _, height, width = objects.shape
    pixels = objects.sum(dim=(1, 2))
    padded, scale = expand_masks(probabilities[:, None], padding=1)
    table = boxes.new_zeros(len(boxes), len(objects), dtype=torch.float64)
    for row, mask, corners in zip(table, padded, expand_boxes(boxes, scale).to(torch.int64).tolist(), strict=True):
        x1, y1, x2, y2 = corners[0], corners[1], max(corners[0], corners[2]) + 1, max(corners[1], corners[3]) + 1
        enlarged = interpolate(mask[None], (y2 - y1, x2 - x1), mode="bilinear", align_corners=False)[0, 0]
        left, top, right, bottom = max(x1, 0), max(y1, 0), min(x2, width), min(y2, height)
        inside = enlarged[top - y1 : bottom - y1, left - x1 : right - x1] > MASK_LEVEL
        shared = (objects[:, top:bottom, left:right] & inside).sum(dim=(1, 2))
        union = inside.sum() + torch.where(crowd, 0, pixels - shared)
        row.copy_(shared.double() / union.clamp(min=1))
    return table


def _areas(target: Target, shape: tuple[int, int]) -> Tensor:
    """(G,) areas of an image's objects, resized with it: as annotated, or of their boxes."""
    if SHARE in target:
        share: Tensor = target[SHARE]
        return share * (shape[0] * shape[1])
    boxes: Tensor = target["boxes"]
    return (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)


def with_shares(images: Sequence[Tensor], targets: Sequence[Target]) -> list[Target]:
    """Targets with their annotated areas as shares of the image, too: the model resizes images, boxes and keypoints only."""
    return [
        {**target, SHARE: target["area"].double() / (image.shape[-2] * image.shape[-1])} if "area" in target else target
        for image, target in zip(images, targets, strict=True)
    ]
