"""What a new head is trained by where boxes are not what counts: how well masks, poses or oriented boxes fit the objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stepgrad.errors import ConfigError
from stepgrad.models.new_head.frozen import Found, FrozenDetector
from stepgrad.overlaps import Boxes, Keypoints, Masks, Overlap, ProbIoU, Rotated, overlap_of

AT_ONCE = 50  # masks as large as the image


def shapes_key(overlap: Overlap | None) -> str:
    """The key of a target, and of detections, that has the shapes; "boxes" where these are all there is.

    >>> shapes_key(Rotated()), shapes_key(Masks()), shapes_key(None)
    ('oriented', 'masks', 'boxes')
    """
    if overlap is None:
        return "boxes"
    return "oriented" if isinstance(overlap, (Rotated, ProbIoU)) else overlap.key


def asked_overlap(task: str | Overlap, detector: FrozenDetector) -> Overlap | None:
    """The overlap of a task, None for boxes; ConfigError unless the detector predicts such shapes."""
    overlap = overlap_of(task)
    asked = None if type(overlap) is Boxes else overlap
    fits = [*(["boxes"] if detector.shapes != "oriented" else []), *([detector.shapes] if detector.shapes else [])]
    if shapes_key(asked) not in fits or (
        asked is not None and not isinstance(asked, (Masks, Keypoints, Rotated, ProbIoU))
    ):
        raise ConfigError(f"Expected task to be one of {fits} for {type(detector.model).__name__} but got {task!r}.")
    return asked


def as_named(found: Mapping[str, Any], overlap: Overlap | None) -> dict[str, Any]:
    """Detections or a target with the shapes where the overlap looks for them."""
    key = shapes_key(overlap)
    return {**found, "boxes": found["oriented"]} if key == "oriented" else dict(found)


def table_of(overlap: Overlap, found: Found, target: Mapping[str, Any]) -> Tensor:
    """(N, G) how well the shapes of windows fit the objects of their image."""
    assert found.shapes is not None
    there, crowd = as_named(target, overlap), target.get("iscrowd")
    rows = torch.arange(len(found.boxes)).split(AT_ONCE)
    parts = [overlap(found.shapes(some), there, crowd) for some in rows]
    joined = torch.cat([torch.zeros(0, len(target["labels"]), dtype=torch.float64), *parts])
    return joined.nan_to_num(0.0).clamp(0.0, 1.0).float()


def unlabelled(overlap: Overlap, target: Mapping[str, Any]) -> Tensor:
    """(G,) objects that are not counted, as there is nothing to compare with: poses without a labelled keypoint."""
    flags = overlap.unlabelled(overlap.objects(as_named(target, overlap), "target"))
    count = len(target["labels"])
    return torch.zeros(count, dtype=torch.bool) if flags is None else torch.from_numpy(flags).reshape(count)
