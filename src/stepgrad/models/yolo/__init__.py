"""Train YOLO of ultralytics for mAP: `trainer=MAPTrainer`, nothing else changes.

    from ultralytics import YOLO
    from stepgrad.integrations.ultralytics import MAPTrainer

    YOLO("yolov8n.pt").train(data="my.yaml", epochs=100, trainer=MAPTrainer)
    YOLO("yolov8n.pt").train(data="my.yaml", epochs=100, trainer=MAPTrainer.options(weight=0.5, start=90))

It works for detection, and for the boxes of segmentation and pose. In the epochs after mosaic is closed, mAP over the windows
that the model would pass to NMS is added to its losses. Checkpoints hold no stepgrad objects. ultralytics has the AGPL-3.0
licence or another licence of its makers, which is between them and you. This package contains none of its code, and imports it
only when a trainer is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepgrad.integrations._auto_weight import AutoWeight
from stepgrad.integrations._yolo_trainer import TRAINERS, make_trainer

if TYPE_CHECKING:
    from stepgrad.integrations._yolo_trainer import MAPTraining as MAPPoseTrainer
    from stepgrad.integrations._yolo_trainer import MAPTraining as MAPSegmentationTrainer
    from stepgrad.integrations._yolo_trainer import MAPTraining as MAPTrainer

__all__ = ["AutoWeight", "MAPPoseTrainer", "MAPSegmentationTrainer", "MAPTrainer"]


def __getattr__(name: str) -> Any:
    for task, trainer in TRAINERS.items():
        if name == trainer:
            return make_trainer(task)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
