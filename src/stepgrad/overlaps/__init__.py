"""How much a window and an object have in common: what matching compares with its thresholds, and NMS with its own.

Losses and metrics compare boxes unless told otherwise. `MAPLoss(80, "coco", overlap=sg.overlaps.Masks())` is mAP of masks;
docs/overlaps.md has an example for each kind. Any other likeness can be handed in as numbers: `loss_fn(scores, boxes, targets,
overlaps=[...])`.
"""

from stepgrad.overlaps.base import Boxes, Overlap, Own, Segments
from stepgrad.overlaps.distance import Distance
from stepgrad.overlaps.keypoints import COCO_SIGMAS, Keypoints
from stepgrad.overlaps.masks import Masks
from stepgrad.overlaps.rotated import ProbIoU, Rotated

__all__ = [
    "COCO_SIGMAS",
    "Boxes",
    "Distance",
    "Keypoints",
    "Masks",
    "Overlap",
    "Own",
    "ProbIoU",
    "Rotated",
    "Segments",
]
