"""Train YOLO of ultralytics for mAP: `trainer=MAPTrainer`, nothing else changes.

    from ultralytics import YOLO
    from stepgrad.models.yolo import MAPTrainer

    YOLO("yolov8n.pt").train(data="my.yaml", epochs=100, trainer=MAPTrainer)
    YOLO("yolov8n.pt").train(data="my.yaml", epochs=100, trainer=MAPTrainer.options(weight=0.5, start=90))

It works for detection, segmentation, pose and oriented boxes (OBB); `MAPTrainer.options(task="masks")` or "keypoints" compares
what such a model is for, in place of boxes. In the epochs after mosaic is closed, mAP over the windows
that the model would pass to NMS is added to its losses. Checkpoints hold no stepgrad objects. ultralytics has the AGPL-3.0
licence or another licence of its makers, which is between them and you. This package contains none of its code, and imports it
only when a trainer is asked for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stepgrad.extras import need
from stepgrad.models.auto_weight import AutoWeight
from stepgrad.models.yolo.counted import save_counted
from stepgrad.models.yolo.resume import watch_resumes
from stepgrad.models.yolo.settings import TRAINERS

if TYPE_CHECKING:
    from stepgrad.models.yolo.trainer import MAPTraining as MAPOBBTrainer
    from stepgrad.models.yolo.trainer import MAPTraining as MAPPoseTrainer
    from stepgrad.models.yolo.trainer import MAPTraining as MAPSegmentationTrainer
    from stepgrad.models.yolo.trainer import MAPTraining as MAPTrainer

__all__ = ["AutoWeight", "MAPOBBTrainer", "MAPPoseTrainer", "MAPSegmentationTrainer", "MAPTrainer", "save_counted"]

if sys.modules.get("ultralytics") is not None:
    watch_resumes()


def __getattr__(name: str) -> Any:
    for task, trainer in TRAINERS.items():
        if name == trainer:
            need("ultralytics", purpose=__name__)
            # it reads images, by a package that ultralytics brings
            from stepgrad.models.yolo.trainer import make_trainer

            return make_trainer(task)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
