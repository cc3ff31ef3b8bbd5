"""`stepgrad.Evaluator` as a torchmetrics metric: for Lightning, MetricCollection and several processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepgrad.errors import ConfigError, real_number
from stepgrad.evaluation import EvaluationResult, Evaluator, Evidence
from stepgrad.evaluation.records import ImageDict
from stepgrad.extras import need
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.models.frameworks.shape_rows import packed, unpacked
from stepgrad.overlaps import Boxes, Overlap, Own, overlap_of

need("torchmetrics", purpose="stepgrad.models.frameworks.torchmetrics")

from torchmetrics import Metric

__all__ = ["MAPMetric"]

_DETECTION = 6  # columns of a detection: label, score, box
_OBJECT = 8  # columns of an object: label, box, difficult, crowd, area
_NAMES = ("detections", "objects", "images")
_SHAPE_NAMES = ("detection_shapes", "detection_lengths", "object_shapes", "object_lengths")
_ABSENT = -1.0  # what torchmetrics says where there is no number


class MAPMetric(Metric):
    """mAP of final detections, over the updates of all processes. Nothing is suppressed here: apply NMS first.

    Takes the same input as torchmetrics' MeanAveragePrecision, with boxes as (x1, y1, x2, y2) and "difficult" as a further key
    of the targets, and gives the same output: "map"; "map_50" and "map_75" if the protocol has such thresholds;
    "map_per_class" of the labels in "classes". The number is -1 where there are no objects and the protocol leaves
    such classes out.

    Args:
        num_classes: labels are in [0, num_classes), without background.
        protocol: a `Protocol` or its name.
        class_names: for tables and messages.
        boxes: "given" or "continuous", as for `Evaluator`.
        empty_boxes: "count" or "error", as for `Evaluator`.
        task: "boxes"; or "masks", "keypoints", "oriented", "segments" or one of `sg.overlaps`, with the input that `Evaluator`
            takes for them. Masks are kept as run lengths.
        interval: a probability such as 0.95 adds "map_low" and "map_high": where mAP would lie on other images like these.
        options: those of every torchmetrics metric.

    `evaluator()` is an `Evaluator` with the same detections, for tables and curves.

    >>> metric = MAPMetric(num_classes=2)
    >>> box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    >>> metric.update([{"boxes": box.repeat(2, 1), "scores": torch.tensor([0.9, 0.8]), "labels": torch.tensor([0, 1])}],
    ...               [{"boxes": box + torch.tensor([0, 0, 0, 4]), "labels": torch.tensor([1])}])
    >>> {key: value.tolist() for key, value in metric.compute().items()}
    {'map': 0.5, 'map_50': 1.0, 'map_75': 0.0, 'map_per_class': [-1.0, 0.5], 'classes': [0, 1]}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    detections: list[Tensor] | Tensor
    objects: list[Tensor] | Tensor
    images: list[Tensor] | Tensor

    def __init__(
        self,
        num_classes: int,
        protocol: str | Protocol = "coco",
        class_names: Sequence[str] | None = None,
        *,
        boxes: str = "given",
        empty_boxes: str = "count",
        task: str | Overlap = "boxes",
        interval: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.num_classes = num_classes
        self.protocol = get_protocol(protocol)
        self.class_names = class_names
        self.boxes = boxes
        self.empty_boxes = empty_boxes
        self.overlap = overlap_of(task)
        if isinstance(self.overlap, Own):
            raise ConfigError("Expected an overlap of shapes, which processes can exchange, but got one of your own.")
        if interval is not None and not 0.0 < real_number("interval", interval, "None or a probability") < 1.0:
            raise ConfigError(f"Expected interval to be between 0 and 1, such as 0.95, but got {interval!r}.")
        self.interval = interval
        self._fresh_evaluator()  # says at once what is wrong with the options
        # Rows of all images one after the other, and how many of each kind an image has: tables that can be put one
        # behind the other, by torchmetrics too, and still be told apart.
        self.add_state("detections", default=[], dist_reduce_fx="cat")
        self.add_state("objects", default=[], dist_reduce_fx="cat")
        self.add_state("images", default=[], dist_reduce_fx="cat")
        self.names = [*_NAMES, *(_SHAPE_NAMES if type(self.overlap) is not Boxes else ())]
        for name in self.names[len(_NAMES) :]:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, preds: Sequence[ImageDict], target: Sequence[ImageDict]) -> None:
        """Take in some images: lists of one dict per image, as for `Evaluator.update`."""
        evaluator = self._fresh_evaluator()
        evaluator.update(preds, target)
        rows = [*_tables(evaluator.evidence()), *self._shapes(preds, target)]
        for state, part in zip(self._states(), rows, strict=True):
            state.append(part.to(_home(self.device)))

    def compute(self) -> dict[str, Tensor]:
        """The numbers, each a tensor."""
        result = self.evaluator().compute()
        nothing = all(math.isnan(row.ap) for row in result.classes)
        low_high = (_ABSENT, _ABSENT) if nothing or self.interval is None else result.interval(self.interval)
        bounds = {} if self.interval is None else dict(zip(("map_low", "map_high"), low_high, strict=True))
        present = [row for row in result.classes if row.objects or row.ignored or row.detections]
        numbers: dict[str, Any] = {
            **_means(result),
            **bounds,
            "map_per_class": [_ABSENT if math.isnan(row.ap) else row.ap for row in present],
        }
        tensors = {key: torch.tensor(value, dtype=torch.float32, device=self.device) for key, value in numbers.items()}
        return tensors | {
            "classes": torch.tensor([row.label for row in present], dtype=torch.int32, device=self.device)
        }

    def evaluator(self) -> Evaluator:
        """An `Evaluator` that has seen all updates: of all processes within `compute` and `sync_context`, else of this one."""
        tables = [_joined(state, empty) for state, empty in zip(self._states(), self._nothing(), strict=True)]
        detections, objects, images = tables[:3]
        counts = images.tolist()
        found = [_detections_entry(rows) for rows in detections.split([number for number, _ in counts])]
        there = [_objects_entry(rows) for rows in objects.split([number for _, number in counts])]
        for entries, shapes in ((found, tables[3:5]), (there, tables[5:])):
            if shapes:
                self._add_shapes(entries, *shapes)
        evaluator = self._fresh_evaluator()
        evaluator.update(found, there)
        return evaluator

    def _shapes(self, preds: Sequence[ImageDict], target: Sequence[ImageDict]) -> list[Tensor]:
        """The shapes of all images' detections, how long each is, and the same of the objects."""
        if len(self.names) == len(_NAMES):
            return []
        key, found = self.overlap.key, []
        for images in (preds, target):
            parts = [packed(self.overlap, image[key], f"image {i}: {key}") for i, image in enumerate(images)]
            found += [
                torch.cat([empty, *part]) for empty, part in zip(_no_shapes(), zip(*parts, strict=True), strict=True)
            ]
        return found

    def _add_shapes(self, entries: Sequence[dict[str, Any]], numbers: Tensor, lengths: Tensor) -> None:
        """Give the entries of all images their shapes."""
        of_image = lengths.split([len(entry["labels"]) for entry in entries])
        parts = numbers.split([int(own.sum()) for own in of_image])
        for entry, part, own in zip(entries, parts, of_image, strict=True):
            entry[self.overlap.key] = unpacked(self.overlap, part, own.tolist())

    def sync(self, *arguments: Any, **named: Any) -> None:
        """Join the states of all processes, one of which may have seen nothing."""
        for state, empty in zip(self._states(), self._nothing(), strict=True):
            if isinstance(state, list) and not state:  # torchmetrics would send a tensor of another shape and type
                state.append(empty.to(_home(self.device)))
        super().sync(*arguments, **named)

    def _states(self) -> list[Any]:
        return [getattr(self, name) for name in self.names]

    def _nothing(self) -> list[Tensor]:
        """The tables of no images."""
        return [*_nothing(), *_no_shapes(), *_no_shapes()][: len(self.names)]

    def _fresh_evaluator(self) -> Evaluator:
        return Evaluator(
            self.num_classes,
            self.protocol,
            self.class_names,
            boxes=self.boxes,
            empty_boxes=self.empty_boxes,
            task=self.overlap,
        )


def _tables(evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
    """Detections (M, 6), objects (G, 8), and (images, 2) how many of each an image has."""
    found = evidence.detections
    truth = evidence.objects
    detections = np.column_stack([found.labels, found.scores, found.boxes])
    objects = np.column_stack([truth.labels, truth.boxes, truth.difficult, truth.crowd, truth.area])
    counts = [np.bincount(rows.images, minlength=evidence.num_images) for rows in (found, truth)]
    return torch.from_numpy(detections), torch.from_numpy(objects), torch.from_numpy(np.column_stack(counts))


def _nothing() -> tuple[Tensor, Tensor, Tensor]:
    """The tables of no images."""
    detections, objects = (torch.zeros(0, columns, dtype=torch.float64) for columns in (_DETECTION, _OBJECT))
    return detections, objects, torch.zeros(0, 2, dtype=torch.int64)


def _no_shapes() -> tuple[Tensor, Tensor]:
    return torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)


def _joined(state: list[Tensor] | Tensor, empty: Tensor) -> Tensor:
    """A state as one table on the CPU: torchmetrics makes a tensor of a list when it joins processes."""
    return (state if isinstance(state, Tensor) else torch.cat([empty, *(part.cpu() for part in state)])).cpu()


def _home(device: torch.device) -> torch.device:
    """Where rows are kept: with the metric, so that processes can exchange them, if the device has double precision."""
    return torch.device("cpu") if device.type == "mps" else device


def _detections_entry(rows: Tensor) -> dict[str, Any]:
    return {"labels": rows[:, 0].long(), "scores": rows[:, 1], "boxes": rows[:, 2:]}


def _objects_entry(rows: Tensor) -> dict[str, Any]:
    return {
        "labels": rows[:, 0].long(),
        "boxes": rows[:, 1:5],
        "difficult": rows[:, 5],
        "iscrowd": rows[:, 6],
        "area": rows[:, 7],
    }


def _means(result: EvaluationResult) -> dict[str, float]:
    """mAP, also at the thresholds people ask for where the protocol has them."""
    thresholds = [t for t in (0.5, 0.75) if any(math.isclose(t, other) for other in result.protocol.match_thresholds)]
    means = {"map": result.map, **{f"map_{100 * t:.0f}": result.map_at(t) for t in thresholds}}
    nothing = all(math.isnan(row.ap) for row in result.classes)
    return dict.fromkeys(means, _ABSENT) if nothing else means
