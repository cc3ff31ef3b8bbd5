"""The frozen features that heads are trained on: of YOLOv8n's windows, and of AlexNet's, which selective search finds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.frozen_features import load_parts
from experiments.window_head import NUM_CLASSES, Part
from experiments.yolo.sets import SETS as YOLO_SETS
from experiments.yolo.sets import Parts, Set, standardised
from stepgrad.models.fine_tuning import ImageWindows


@dataclass(frozen=True)
class AlexNetSet(Set):
    """VOC 2012 with the windows of selective search, and the first principal components of AlexNet's features."""

    images_kept: tuple[int, int] = (2000, 1000)
    """Of train and val."""
    components: int = 128

    def load(self, data: Path, cache: Path, test: bool) -> Parts:
        train, val = (self._images(part) for part in load_parts(data, cache / "alexnet", *self.images_kept))
        held_out = train[:: self.held_out]
        rest = [image for n, image in enumerate(train) if n % self.held_out]
        return Parts(*standardised(rest, held_out, val if test else []), NUM_CLASSES)

    def _images(self, part: Part) -> list[ImageWindows]:
        return [
            ImageWindows(example.image[:, : self.components].float(), example.windows, dict(example.target))
            for example in part.images
        ]


SETS: dict[str, Set] = {
    "voc": YOLO_SETS["voc"],
    "visdrone": YOLO_SETS["visdrone"],
    "alexnet": AlexNetSet("VOC2012-320", ("train", "val"), 0, held_out=8, nms=0.3, steps=2000),
}
