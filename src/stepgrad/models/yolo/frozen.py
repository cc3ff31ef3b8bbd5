"""YOLOs of ultralytics with NMS (v8, 11 and the like), for boxes, masks, poses or oriented boxes, as a new class layer sees them.

ultralytics is imported only when such a model is handed in; its own code resizes images, decodes boxes and runs NMS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import grid_sample

from stepgrad.models.new_head.convolutions import ClassConvolutions
from stepgrad.models.new_head.frozen import Found, FrozenDetector, Pick, in_bytes, inputs_of, replace_layer, rows
from stepgrad.models.switch import wide
from stepgrad.models.yolo.heads import class_layers, head_with_nms, read_inference
from stepgrad.models.yolo.shapes import upright

SHAPES = {"Detect": None, "Segment": "masks", "Pose": "keypoints", "OBB": "oriented"}
"""What heads predict besides boxes."""
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
        self.shapes = SHAPES[type(self.head).__name__]
        self.convolutions = self._convolutions()
        self.slots, self.width = self.convolutions.slots, self.convolutions.width

    def _convolutions(self) -> ClassConvolutions:
        return ClassConvolutions(class_layers(self.head), self.head.nc, centre_only=False)

    def windows(self, image: Tensor, pick: Pick) -> Found:
        pixels = self._letterboxed(image)
        with inputs_of(self.convolutions.layers) as seen:
            output = self.model(pixels)
        boxes, scores, more = read_inference(output, self.head.nc, self.shapes == "oriented")
        chosen = pick(scores.amax(dim=1))
        slot, features = self.convolutions.read([m[0] for m in seen], chosen)
        kept = rows(slot, None, features)
        if self.shapes is None:
            return Found(chosen.cpu(), kept, self._in_pixels(boxes[chosen], pixels, image))
        prototypes = prototypes_of(output) if self.shapes == "masks" else None
        around, shapes = self._shaped(boxes[chosen], more[chosen], prototypes, pixels, image)
        return Found(chosen.cpu(), kept, around, shapes)

    def detect(self, image: Tensor) -> dict[str, Tensor]:
        """As ultralytics validates: every class of a window that reaches the least score, NMS within classes."""
        pixels = self._letterboxed(image)
        options: dict[str, Any] = {"multi_label": True, "max_det": MOST_FOUND, "nc": self.head.nc}
        if self.shapes == "oriented":
            options["rotated"] = True
        output = self.model(pixels)
        prototypes = prototypes_of(output) if self.shapes == "masks" else None
        first = output[0] if isinstance(output, (tuple, list)) else output
        (found,) = _nms()(first, LEAST_SCORE, self.nms_threshold, **options)
        kept = {"scores": found[:, 4].cpu(), "labels": found[:, 5].long().cpu()}
        if self.shapes is None:
            return {"boxes": self._in_pixels(found[:, :4], pixels, image), **kept}
        boxes, shapes = self._shaped(found[:, :4], found[:, 6:], prototypes, pixels, image)
        return {"boxes": boxes, **kept, self.shapes: shapes(torch.arange(len(boxes)))}

    def _shaped(
        self, boxes: Tensor, more: Tensor, prototypes: Tensor | None, pixels: Tensor, image: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Boxes (N, 4) in pixels of the image, and what gives the shapes of some of them.

        Args:
            boxes: (N, 4) in pixels of the input; oriented ones as centre and size.
            more: (N, numbers) that the head says of each besides.
            prototypes: of masks.
            pixels: the input.
            image: before it was made ready.
        """
        place = Letterboxed.of(pixels, image)
        if self.shapes == "oriented":
            turned = torch.cat([place.back(boxes[:, :2]), boxes[:, 2:] / place.scale, more[:, :1]], dim=1).cpu()
            return upright(turned), lambda some: turned[some]
        around = self._in_pixels(boxes, pixels, image)
        if prototypes is not None:
            return around, lambda some: place.masks(prototypes, more[some.to(more.device)], around[some])
        points = more.unflatten(1, tuple(self.head.kpt_shape))
        seen = points[..., 2:3] if points.shape[-1] > 2 else torch.ones_like(points[..., :1])
        poses = torch.cat([place.back(points[..., :2]), seen], dim=-1).cpu()
        return around, lambda some: poses[some]

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


@dataclass(frozen=True)
class Letterboxed:
    """Where an image lies in the network's input."""

    scale: float
    shift: tuple[float, float]  # of x and y, in pixels of the input
    inputs: tuple[int, int]  # height and width of the input
    size: tuple[int, int]  # height and width of the image

    @staticmethod
    def of(pixels: Tensor, image: Tensor) -> Letterboxed:
        """As ultralytics scales boxes back."""
        inputs, size = tuple(pixels.shape[2:]), tuple(image.shape[-2:])
        scale = min(inputs[0] / size[0], inputs[1] / size[1])
        shift = tuple(float(round((inputs[i] - round(size[i] * scale)) / 2 - 0.1)) for i in (1, 0))
        return Letterboxed(scale, shift, inputs, size)  # type: ignore[arg-type]

    def back(self, points: Tensor) -> Tensor:
        """Points (..., 2) of the input in pixels of the image."""
        return (points - torch.tensor(self.shift, dtype=points.dtype, device=points.device)) / self.scale

    def masks(self, prototypes: Tensor, coefficients: Tensor, boxes: Tensor) -> Tensor:
        """(n, H, W) masks of the image's size, on the CPU: a pixel is in where its logit is above 0 and it lies in the box.

        Args:
            prototypes: (channels, h, w), of the input as a whole.
            coefficients: (n, channels).
            boxes: (n, 4) in pixels of the image.
        """
        logits = torch.einsum("nc,chw->nhw", wide(coefficients), wide(prototypes))
        height, width = self.size
        x, y = (torch.arange(n, dtype=logits.dtype, device=logits.device) + 0.5 for n in (width, height))
        # grid_sample calls the centre of the input 0 and its edges -1 and 1
        places = [
            2 * (c * self.scale + s) / n - 1 for c, s, n in zip((x, y), self.shift, self.inputs[::-1], strict=True)
        ]
        grid = torch.stack([places[0].expand(height, width), places[1][:, None].expand(height, width)], dim=-1)
        shown = grid_sample(logits[None], grid[None], padding_mode="border", align_corners=False)[0].cpu() > 0
        x, y, boxes = x.cpu(), y.cpu()[:, None], boxes.to(x.dtype)[:, :, None, None]
        inside: Tensor = (x > boxes[:, 0]) & (x < boxes[:, 2]) & (y > boxes[:, 1]) & (y < boxes[:, 3])
        return shown & inside


def prototypes_of(output: Any) -> Tensor:
    """(channels, h, w) prototypes of masks of the first image, from what a model in eval mode gives."""
    inside = output[0] if isinstance(output[0], (tuple, list)) else output[1]  # the latter before 8.4
    found: Tensor = inside[-1] if isinstance(inside[-1], Tensor) else inside[-1][-1]
    return found[0]


def _nms() -> Any:
    try:
        return import_module("ultralytics.utils.nms").non_max_suppression
    except ImportError:  # before it had a file of its own
        return import_module("ultralytics.utils.ops").non_max_suppression
