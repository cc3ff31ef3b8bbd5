"""Outputs of exported detectors: which layout they have, and the windows they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import DataError
from stepgrad.models.exported.pixels import Placement

Array = NDArray[np.float64]
Kind = Literal["v5", "v8", "end-to-end", "boxes", "detr"]
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))
EXPECTED = (
    "expected one of: v5 (1, windows, 5 + classes), 3 windows per place; v8 and 11 (1, 4 + classes, places); end to end, as "
    "YOLO26 and v10, or with NMS inside (1, detections, 6); torchvision, RT-DETR and D-FINE by the names boxes, labels, "
    "scores; DETR by logits (or pred_logits) and pred_boxes"
)


@dataclass(frozen=True)
class Windows:
    """What a network says of one picture, in pixels of the picture."""

    boxes: Array  # (N, 4) x1 y1 x2 y2
    scores: Array  # (N, C) of every class, or (N,) of the one in `labels`
    labels: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Layout:
    """How to read the outputs of one network."""

    kind: Kind
    classes: int | None
    """The number of classes, where the output tells it."""
    softmax: bool = False
    """Of DETR's logits: softmax with a last class for nothing, else a sigmoid each."""
    first_label: int = 0
    """The label of the first class, where the model gives labels."""
    in_picture: bool = False
    """Whether boxes are in pixels of the picture already."""

    @property
    def dense(self) -> bool:
        """Whether it has a row for each place of the image, in the same order whatever the image shows."""
        return self.kind in ("v5", "v8")

    def read(self, outputs: Mapping[str, NDArray[Any]], placed: Placement) -> Windows:
        """The windows of one picture."""
        if self.kind == "detr":
            return self._read_queries(outputs, placed)
        if self.kind == "boxes":
            boxes, scores = (_rows(outputs, name) for name in ("boxes", "scores"))
            labels = _rows(outputs, "labels").astype(np.int64) - self.first_label
            return Windows(
                boxes.reshape(-1, 4) if self.in_picture else placed.back(boxes.reshape(-1, 4)), scores, labels
            )
        rows = _first_image(outputs)
        if self.kind == "end-to-end":
            return Windows(placed.back(rows[:, :4]), rows[:, 4], rows[:, 5].astype(np.int64))
        if self.kind == "v8":
            rows = rows.T
            scores = rows[:, 4 : 4 + (self.classes or 0)]
        else:
            scores = rows[:, 5 : 5 + (self.classes or 0)] * rows[:, 4:5]
        return Windows(placed.back(corners(rows[:, :4])), scores)

    def _read_queries(self, outputs: Mapping[str, NDArray[Any]], placed: Placement) -> Windows:
        logits = _rows(outputs, "logits" if "logits" in outputs else "pred_logits")
        if self.softmax:
            powers = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores = (powers / powers.sum(axis=1, keepdims=True))[:, :-1]
        else:
            scores = 1.0 / (1.0 + np.exp(-logits))
        return Windows(placed.back(corners(_rows(outputs, "pred_boxes")) * np.tile(placed.input, 2)), scores)


def corners(boxes: Array) -> Array:
    """Centres and sizes as x1 y1 x2 y2.

    >>> corners(np.array([[2.0, 1.0, 4.0, 2.0]]))
    array([[0., 0., 4., 2.]])
    """
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def recognise(
    outputs: Mapping[str, NDArray[Any]],
    size: tuple[int, int],
    classes: int | None,
    where: str,
    sizes_given: bool = False,
) -> Layout:
    """The layout of these outputs.

    Args:
        outputs: what the network said of some picture, by name.
        size: height and width of its input.
        classes: the number of its classes, if that is known.
        where: the name of the model, for messages.
        sizes_given: whether the model is told the size of the picture, as RT-DETR is, and answers in its pixels.
    """
    shapes = {name: value.shape for name, value in outputs.items()}
    if {"boxes", "labels", "scores"} <= set(outputs):
        return Layout("boxes", classes, in_picture=sizes_given)
    logits = next((name for name in ("logits", "pred_logits") if name in outputs), None)
    if logits is not None and "pred_boxes" in outputs:
        columns = shapes[logits][-1]
        if classes is not None and columns not in (classes, classes + 1):
            raise DataError(
                f"{where}: expected logits of {classes} classes, or of one more for nothing, but got {columns} columns; "
                "name its classes with --model-classes"
            )
        softmax = classes is None or columns == classes + 1
        return Layout("detr", columns - 1 if softmax else columns, softmax=softmax)
    first = next(iter(shapes.values()), ())
    if len(first) == 3 and first[0] == 1:
        rest = list(shapes.values())[1:]
        masks = rest[0][1] if rest and len(rest[0]) == 4 else 0
        places = {sum((size[0] // s) * (size[1] // s) for s in strides) for strides in _STRIDES}
        if first[2] in places and first[1] - masks > 4:
            return Layout("v8", _columns(first[1] - 4 - masks, classes, where))
        if first[1] in {3 * n for n in places} and first[2] - masks > 5:
            return Layout("v5", _columns(first[2] - 5 - masks, classes, where))
        if first[2] == 6 + masks:
            return Layout("end-to-end", classes)
    told = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "nothing"
    raise DataError(
        f"{where}: unknown output; {EXPECTED}; but got {told}, from an input of {size[0]} x {size[1]} pixels"
    )


def _columns(found: int, classes: int | None, where: str) -> int:
    """The number of classes; columns behind theirs are those of keypoints."""
    if classes is not None and found < classes:
        raise DataError(
            f"{where}: expected scores of {classes} classes, as the model's names say, but its output has room for {found}; "
            "name its classes with --model-classes"
        )
    return found if classes is None else classes


def _first_image(outputs: Mapping[str, NDArray[Any]]) -> Array:
    return np.asarray(next(iter(outputs.values()))[0], dtype=np.float64)


def _rows(outputs: Mapping[str, NDArray[Any]], name: str) -> Array:
    """An output without its axis for images, if it has one: labels are (N,), boxes (N, 4)."""
    value = outputs[name]
    plain = 1 if name in ("labels", "scores") else 2
    return np.asarray(value[0] if value.ndim > plain else value, dtype=np.float64)
