"""The evaluator: torchmetrics' update, compute and reset, any number of protocols in one pass."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from stepgrad.errors import ConfigError, InputError, LikelyMistakeWarning, one_of
from stepgrad.evaluation.coco_numbers import CocoNumbers, coco_numbers
from stepgrad.evaluation.compare import Comparison, compare
from stepgrad.evaluation.errors_by_type import ErrorTypes, error_types
from stepgrad.evaluation.flatten import detections_of, objects_of
from stepgrad.evaluation.metrics import AnyMetric
from stepgrad.evaluation.records import Detections, Evidence, GroundTruth, ImageDict, InputCheck
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.metric.options import get_metric
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.names import ImageId
from stepgrad.overlaps import overlap_of
from stepgrad.overlaps.base import Overlap

Flat = TypeVar("Flat", Detections, GroundTruth)


class Evaluator:
    """AP of final detections. Nothing is suppressed here: apply NMS first (`sg.nms`).

    Args:
        num_classes: labels are in [0, num_classes), without background.
        protocol: a `Protocol`, its name, or a list of either: the first is the one reported.
        class_names: for tables and messages.
        boxes: "given": each protocol adds its `pixel_offset` to the numbers as they are, so "voc07-devkit" expects
            inclusive pixels, as in VOC's files. "continuous": the numbers are continuous boxes, and protocols
            with a pixel offset get them with the right and lower edges moved in by it.
        empty_boxes: "count": a detection without width or height overlaps nothing, so it is a false alarm, as in
            pycocotools; detectors that clip boxes to the image produce such boxes ("lvis" leaves them out, as LVIS's own code
            does). "error" refuses them. Reversed boxes are always refused.
        task: what is compared: "boxes", "masks", "keypoints", "oriented" (boxes) or "segments" (of time); or one of
            `sg.overlaps`, such as `sg.overlaps.Keypoints(sigmas)` or `sg.overlaps.ProbIoU()`.
        metrics: further metrics to report, as `DetectionLoss` takes them: those of `sg.metrics`, such as
            `sg.metrics.RecallAtPrecision(0.95)`, their names or functions of one class's list. `result.metrics` has them.

    Equal scores rank in the order they were given. The value equals that of `MAPLoss` and `mean_average_precision`
    to the last bit when the detections are the windows that NMS kept.

    >>> import torch
    >>> evaluator = Evaluator(2, ["voc12", "coco"], class_names=["cat", "dog"])
    >>> box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    >>> evaluator.update([{"boxes": box, "scores": torch.tensor([0.9]), "labels": torch.tensor([1])}],
    ...                  [{"boxes": box + torch.tensor([0, 0, 0, 4]), "labels": torch.tensor([1])}])
    >>> result = evaluator.compute()
    >>> result.map, result["coco"].map
    (0.5, 0.5)
    >>> print(result["coco"])
    coco, 1 images, 1 detections: mAP 50.0
    class      objects  ignored  detections  recall    AP   AP50  AP75
    cat              0        0           0       -     -      -     -
    dog              1        0           1   100.0  50.0  100.0   0.0
    mean of 1        1        0           1          50.0  100.0   0.0
    """

    def __init__(
        self,
        num_classes: int,
        protocol: str | Protocol | Sequence[str | Protocol] = "voc12",
        class_names: Sequence[str] | None = None,
        *,
        boxes: str = "given",
        empty_boxes: str = "count",
        metrics: Sequence[AnyMetric] = (),
        task: str | Overlap = "boxes",
    ) -> None:
        one_of("boxes", boxes, ["given", "continuous"])
        one_of("empty_boxes", empty_boxes, ["error", "count"])
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
            raise ConfigError(f"Expected num_classes to be an integer of at least 1 but got {num_classes!r}.")
        self.num_classes = num_classes
        self.overlap = overlap_of(task)
        self.protocols = [self.overlap.adapt(p) for p in _protocols(protocol)]
        self.class_names = _class_names(class_names, num_classes)
        self.boxes = boxes
        offset = max(p.pixel_offset for p in self.protocols) if boxes == "given" else 0.0
        self.metrics = [get_metric(metric) for metric in metrics]
        for metric, counted_by in itertools.product(self.metrics, self.protocols):
            metric.check_protocol(counted_by)
        self._checks = InputCheck(num_classes, offset, empty_boxes)
        self.reset()

    def reset(self) -> None:
        """Forget all images."""
        self._detections: list[Detections] = []
        self._objects: list[GroundTruth] = []
        self._image_ids: list[ImageId] = []
        self._seen_ids: set[ImageId] = set()
        self._warned = False

    def update(self, preds: Sequence[ImageDict], targets: Sequence[ImageDict]) -> None:
        """Add the detections and objects of some images.

        Args:
            preds: per image a dict of boxes (M, 4), scores (M,) and labels (M,): the final detections. Other tasks have, in
                place of boxes or besides them: masks (M, H, W) or COCO's run lengths, keypoints (M, k, 2 or 3), oriented
                boxes (M, 5) or (M, 8), segments (M, 2).
            targets: per image a dict of boxes (G, 4) and labels (G,), or masks and so on; optionally difficult, iscrowd and area
                (G,), and image_id: messages name it, and an id that comes twice gives a warning.
        """
        _check_lists(preds, targets)
        first = len(self._image_ids)
        ids = _ids_of(targets, first)
        detections, objects = (
            detections_of(preds, first, ids, self.overlap),
            objects_of(targets, first, ids, self.overlap),
        )
        self._image_ids.extend(ids)
        try:
            self._checks.check_detections(detections, self._image_ids)
            self._checks.check_objects(objects, self._image_ids)
        except InputError:
            del self._image_ids[first:]  # as if nothing had been handed in
            raise
        self._detections.append(detections)
        self._objects.append(objects)
        self._warn_of_repeats([i for i, target in zip(ids, targets, strict=True) if "image_id" in target])

    def compute(self) -> EvaluationResult:
        """The result under the first protocol; those under the others are `result["coco"]` and so on."""
        evidence = self.evidence()
        results = [evaluate_under(evidence, p, self.metrics) for p in self.protocols]
        return replace(results[0], others={p.name: r for p, r in zip(self.protocols[1:], results[1:], strict=True)})

    def compare(self) -> Comparison:
        """All protocols side by side and, for every two, the first detection that they judge differently, and why."""
        return compare(self.evidence(), self.protocols)

    def error_types(self, threshold: float = 0.5, background: float = 0.1) -> ErrorTypes:
        """Mistakes by type (box, class, duplicate, background, both, missed) under the first protocol at one threshold on
        overlaps, and the mAP that fixing each type would gain."""
        return error_types(self.evidence(), self.protocols[0], threshold, background)

    def coco_numbers(
        self,
        max_detections: tuple[int, ...] | None = None,
        areas: Mapping[str, tuple[float, float]] | None = None,
    ) -> CocoNumbers:
        """COCO's twelve numbers, of poses its ten. Difficult objects are not counted, as in our protocol "coco"."""
        return coco_numbers(self.evidence(), max_detections, areas)

    def evidence(self) -> Evidence:
        """The detections and objects of all images so far, as flat arrays."""
        return Evidence(
            _join(self._detections, detections_of([], 0, [], self.overlap), self.overlap),
            _join(self._objects, objects_of([], 0, [], self.overlap), self.overlap),
            list(self._image_ids),
            self.class_names,
            pixel_offset=0.0 if self.boxes == "continuous" else None,
            overlap=self.overlap,
        )

    def _warn_of_repeats(self, image_ids: list[ImageId]) -> None:
        """A warning, not an error: whether ids are unique is up to the caller, and a padded batch should not end a run."""
        repeated = None
        for image_id in image_ids:
            if repeated is None and image_id in self._seen_ids:
                repeated = image_id
            self._seen_ids.add(image_id)
        if repeated is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"image {repeated} was given before, and now counts twice; call reset() before each pass over "
                "the data, and leave out images that a distributed sampler repeats to fill its last batch.",
                LikelyMistakeWarning,
                stacklevel=3,
            )

    def __repr__(self) -> str:
        names = [p.name for p in self.protocols]
        return (
            f"Evaluator({self.num_classes}, {names[0] if len(names) == 1 else names!r}, {len(self._image_ids)} images)"
        )


def _protocols(protocol: str | Protocol | Sequence[str | Protocol]) -> list[Protocol]:
    one_or_more = [protocol] if isinstance(protocol, (str, Protocol)) else protocol
    protocols = [get_protocol(p) for p in one_or_more]
    names = [p.name for p in protocols]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"Expected one or more protocols of different names but got {names}.")
    return protocols


def _class_names(names: Sequence[str] | None, num_classes: int) -> tuple[str, ...]:
    if names is None:
        return tuple(str(c) for c in range(num_classes))
    if isinstance(names, str) or len(names) != num_classes:
        raise ConfigError(f"Expected {num_classes} class names, one per class, but got {names!r}.")
    return tuple(str(name) for name in names)


def _check_lists(preds: Any, targets: Any) -> None:
    for name, images in (("preds", preds), ("targets", targets)):
        if isinstance(images, (Tensor, Mapping, str)) or not isinstance(images, Sequence):
            raise InputError(f"Expected {name} to be a list with one dict per image but got {type(images).__name__}.")
    if len(preds) != len(targets):
        raise InputError(f"Expected as many preds as targets but got {len(preds)} and {len(targets)}.")


def _ids_of(targets: Sequence[Any], first: int) -> list[ImageId]:
    """The id of each image; `first` is how many there were before. Few bring one, and to look at each takes time."""
    if all(type(target) is dict and "image_id" not in target for target in targets):
        return list(range(first, first + len(targets)))
    return [_image_id(target, first + i) for i, target in enumerate(targets)]


def _image_id(target: Any, position: int) -> ImageId:
    """The id a target brings, else the number of the image in the order of updates."""
    image_id = target.get("image_id", position) if isinstance(target, Mapping) else position
    if isinstance(image_id, Tensor) and image_id.numel() == 1:
        return int(image_id)
    return image_id if isinstance(image_id, (str, int)) else str(image_id)


def _join(parts: list[Flat], empty: Flat, overlap: Overlap) -> Flat:
    if len(parts) == 1:
        return parts[0]
    every: list[Any] = [empty, *parts]
    columns: dict[str, Any] = {
        f.name: np.concatenate([getattr(part, f.name) for part in every]) for f in fields(empty) if f.name != "shapes"
    }
    if every[0].shapes is not None:
        columns["shapes"] = overlap.join([part.shapes for part in every])
    return type(empty)(**columns)
