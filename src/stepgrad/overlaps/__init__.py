"""How much a window and an object have in common: what matching compares with its thresholds, and NMS with its own.

Losses and metrics compare boxes unless told otherwise. `MAPLoss(80, "coco", overlap=sg.overlaps.Masks())` is mAP of masks;
docs/overlaps.md has an example for each kind. Any other likeness can be handed in as numbers: `loss_fn(scores, boxes, targets,
overlaps=[...])`.
"""

from stepgrad.errors import ConfigError, one_of
from stepgrad.overlaps.base import Boxes, Overlap, Segments
from stepgrad.overlaps.distance import Distance
from stepgrad.overlaps.keypoints import COCO_SIGMAS, Keypoints
from stepgrad.overlaps.masks import Masks
from stepgrad.overlaps.own import Own
from stepgrad.overlaps.rotated import ProbIoU, Rotated

TASKS = {"boxes": Boxes, "masks": Masks, "keypoints": Keypoints, "oriented": Rotated, "segments": Segments}
"""The overlap of each task by its usual settings."""


def overlap_of(task: str | Overlap) -> Overlap:
    """The overlap of a task, or the overlap itself.

    >>> overlap_of("masks")
    Masks(nms='boxes')
    """
    if isinstance(task, Overlap):
        return task
    if not isinstance(task, str):
        raise ConfigError(f"Expected task to be one of {list(TASKS)} or of sg.overlaps but got {task!r}.")
    one_of("task", task, list(TASKS))
    made: Overlap = TASKS[task]()
    return made


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
