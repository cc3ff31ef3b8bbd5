"""Masks, poses and oriented boxes of a YOLO: how well what it predicts at an anchor fits the objects of an image.

They are compared by ultralytics' own functions, as its validation does: masks from coefficients and prototypes, at the
prototypes' resolution; poses by OKS, with an object's area taken as 0.53 of its box; oriented boxes by probIoU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from stepgrad.errors import ConfigError
from stepgrad.metric.batch import Target
from stepgrad.models.switch import wide

TASKS = {
    "detect": ("boxes",),
    "segment": ("boxes", "masks"),
    "pose": ("boxes", "keypoints"),
    "obb": ("oriented",),
}
"""What models of each task of ultralytics can train for; the first is the default."""
_AREA_OF_BOX = 0.53  # that people fill, on average; ultralytics' validation takes it for all poses
_AT_ONCE = 250  # masks
Compare = Callable[[int, Tensor, Target], Tensor]
"""Of image i, anchors (n,) and the image's target: (n, G) overlaps."""


def task_of(asked: str | None, model_task: str | None) -> str:
    """What to compare; ConfigError unless models of this task of ultralytics predict it."""
    fits = TASKS.get(model_task or "detect", ("boxes",))
    if asked is not None and asked not in fits:
        raise ConfigError(f"Expected task to be one of {list(fits)} for a YOLO for {model_task!r} but got {asked!r}.")
    return asked or fits[0]


def extras_of(part: Any, task: str) -> Sequence[Any]:
    """What a head says of the shapes: (B, channels, A) numbers, and for masks the (B, channels, h, w) prototypes."""
    if not isinstance(part, Mapping):  # before 8.4: after the maps of boxes and classes
        return [extra.detach() for extra in part[1:]]
    names = {"masks": ["mask_coefficient", "proto"], "keypoints": ["kpts"], "oriented": ["angle"]}[task]
    found = [part[name] for name in names]
    return [(extra[0] if isinstance(extra, tuple) else extra).detach() for extra in found]


def compare_masks(extras: Sequence[Tensor], boxes: Tensor, size: Sequence[int]) -> Compare:
    """Overlaps of masks, which end at their boxes (B, A, 4)."""
    coefficients, prototypes = (extra.float() for extra in extras)

    def compare(i: int, anchors: Tensor, target: Target) -> Tensor:
        ops, metrics = import_module("ultralytics.utils.ops"), import_module("ultralytics.utils.metrics")
        objects = target["masks"].float()
        if len(objects) and objects.shape[1:] != prototypes.shape[2:]:
            resized = interpolate(objects[None], prototypes.shape[2:], mode="bilinear", align_corners=False)[0]
            objects = (resized > 0.5).float()
        seen, where = anchors.unique(return_inverse=True)
        tables = [torch.zeros(0, len(objects), device=objects.device)]
        for some in seen.split(_AT_ONCE) if len(objects) else ():
            of_anchors = coefficients[i, :, some].T
            masks = ops.process_mask(prototypes[i], of_anchors, boxes[i, some].float(), tuple(size))
            tables.append(metrics.mask_iou(masks.flatten(1).float(), objects.flatten(1)))
        return torch.cat(tables)[where] if len(objects) else tables[0].new_zeros(len(anchors), 0)

    return compare


def compare_poses(points: Tensor, sigmas: Sequence[float]) -> Compare:
    """Overlaps of poses (B, A, k, 2 or 3) in pixels."""

    def compare(i: int, anchors: Tensor, target: Target) -> Tensor:
        area = (target["boxes"][:, 2:] - target["boxes"][:, :2]).prod(dim=1) * _AREA_OF_BOX
        kpt_iou = import_module("ultralytics.utils.metrics").kpt_iou
        alike: Tensor = kpt_iou(target["keypoints"].to(points), points[i, anchors], sigma=sigmas, area=area.to(points))
        return alike.T

    return compare


def compare_oriented(oriented: Tensor) -> Compare:
    """Overlaps of oriented boxes (B, A, 5)."""
    return lambda i, anchors, target: prob_iou(oriented[i, anchors], target["oriented"].to(oriented))


def prob_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """(n, m) likeness of oriented boxes (n, 5) and (m, 5)."""
    alike: Tensor = import_module("ultralytics.utils.metrics").batch_probiou(boxes, others)
    return alike


def near_pairs(oriented: Tensor, classes: Tensor, threshold: float) -> Tensor:
    """(E, 2) those of n candidates (n, 5) of a class that suppress each other."""
    close = (prob_iou(oriented, oriented) > threshold) & (classes[:, None] == classes)
    return close.triu(1).nonzero()


def upright(oriented: Tensor) -> Tensor:
    """(..., 4) corners of the boxes around boxes (..., 5) centre, size, angle."""
    centre, (width, height, angle) = oriented[..., :2], oriented[..., 2:].unbind(-1)
    cos, sin = angle.cos().abs(), angle.sin().abs()
    half = torch.stack([width * cos + height * sin, width * sin + height * cos], dim=-1) / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def object_shapes(batch: Mapping[str, Any], task: str, numbered: bool, i: int) -> dict[str, Tensor]:
    """Masks, keypoints or oriented boxes of the objects of image i, in pixels; masks as large as ultralytics made them.

    Args:
        batch: of ultralytics.
        task: which of them.
        numbered: whether there is one mask for an image, with the objects' numbers, and not one for an object.
        i: the image.
    """
    mine = batch["batch_idx"].view(-1) == i
    height, width = batch["img"].shape[2:]
    if task == "masks":
        masks = batch["masks"]
        numbers = torch.arange(1, int(mine.sum()) + 1, device=masks.device)[:, None, None]
        return {"masks": masks[i] == numbers if numbered else masks[mine] > 0}
    if task == "keypoints":
        points = wide(batch["keypoints"][mine])
        scale = torch.tensor([width, height], dtype=points.dtype, device=points.device)
        seen = points[..., 2:] if points.shape[-1] == 3 else torch.ones_like(points[..., :1])
        return {"keypoints": torch.cat([points[..., :2] * scale, seen], dim=-1)}
    boxes = wide(batch["bboxes"].view(-1, 5)[mine])
    scale = torch.tensor([width, height, width, height, 1], dtype=boxes.dtype, device=boxes.device)
    return {"oriented": boxes * scale}
