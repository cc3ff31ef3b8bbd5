"""YOLO detectors of ultralytics (`Detect` heads: v8, 11 and the like) as a new last class layer sees them.

ultralytics is imported only when such a model is handed in; its own code resizes images, decodes boxes and runs NMS.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepgrad.models.new_head.convolutions import ClassConvolutions
from stepgrad.models.new_head.frozen import Found, FrozenDetector, Pick, in_bytes, inputs_of, replace_layer, rows
from stepgrad.models.yolo.heads import class_layers, head_with_nms, read_inference

NMS_THRESHOLD, LEAST_SCORE, MOST_FOUND = 0.7, 0.001, 300
"""As ultralytics validates by default."""


class YOLODetector(FrozenDetector):
    """A `YOLO`, or the network inside: the last 1 x 1 convolution of each level's class branch is the class layer."""

    nms_threshold = NMS_THRESHOLD

    def __init__(self, model: Any, image_size: int) -> None:
        is_network = isinstance(model.model, nn.Sequential)  # a `YOLO` has the network there
        self.wrapper = None if is_network else model
        self.model = model if self.wrapper is None else model.model
        self.image_size = image_size
        self.head = head_with_nms(self.model)
        self.convolutions = self._convolutions()
        self.slots, self.width = self.convolutions.slots, self.convolutions.width

    def _convolutions(self) -> ClassConvolutions:
        return ClassConvolutions(class_layers(self.head), self.head.nc, centre_only=False)

    def windows(self, image: Tensor, pick: Pick) -> Found:
        pixels = self._letterboxed(image)
        with inputs_of(self.convolutions.layers) as seen:
            boxes, scores = read_inference(self.model(pixels))
        chosen = pick(scores.amax(dim=1))
        slot, features = self.convolutions.read([m[0] for m in seen], chosen)
        return Found(chosen.cpu(), rows(slot, None, features), self._in_pixels(boxes[chosen], pixels, image))

    def detect(self, image: Tensor) -> dict[str, Tensor]:
        """As ultralytics validates: every class of a window that reaches the least score, NMS within classes."""
        pixels = self._letterboxed(image)
        options = {"multi_label": True, "max_det": MOST_FOUND}
        (found,) = _nms()(self.model(pixels), LEAST_SCORE, self.nms_threshold, **options)
        boxes = self._in_pixels(found[:, :4], pixels, image)
        return {"boxes": boxes, "scores": found[:, 4].cpu(), "labels": found[:, 5].long().cpu()}

    def _letterboxed(self, image: Tensor) -> Tensor:
        stride = int(self.model.stride.max())
        letterbox: Any = import_module("ultralytics.data.augment").LetterBox
        ready = letterbox((self.image_size, self.image_size), auto=True, stride=stride)(
            image=np.ascontiguousarray(in_bytes(image).permute(1, 2, 0).cpu().numpy())
        )
        return self.prepared(torch.from_numpy(np.ascontiguousarray(ready)).permute(2, 0, 1))[None]

    def _in_pixels(self, boxes: Tensor, pixels: Tensor, image: Tensor) -> Tensor:
        scaled: Tensor = import_module("ultralytics.utils.ops").scale_boxes(
            pixels.shape[2:], boxes.clone(), image.shape[-2:]
        )
        return scaled.cpu()

    def install(self, weight: Tensor, bias: Tensor, class_names: Sequence[str]) -> None:
        for old, new in zip(self.convolutions.layers, self.convolutions.with_weights(weight, bias), strict=True):
            replace_layer(self.model, old, new)
        head = self.head
        head.nc = weight.shape[1]
        head.no = head.nc + 4 * head.reg_max
        self.model.names = dict(enumerate(class_names))
        if isinstance(getattr(self.model, "yaml", None), dict):
            self.model.yaml["nc"] = head.nc
        self.model.criterion = None  # a loss of the old classes, if there was one
        if self.wrapper is not None:
            self.wrapper.predictor = None  # it has a copy of the old layers
        self.convolutions = self._convolutions()


def _nms() -> Any:
    try:
        return import_module("ultralytics.utils.nms").non_max_suppression
    except ImportError:  # before it had a file of its own
        return import_module("ultralytics.utils.ops").non_max_suppression
