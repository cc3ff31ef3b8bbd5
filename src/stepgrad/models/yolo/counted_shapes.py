"""Masks, poses and oriented boxes as the validation of ultralytics compares them, as fields of COCO's json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from stepgrad.overlaps.masks import coco_masks
from stepgrad.overlaps.resized_masks import from_border
from stepgrad.overlaps.rotated import quads_of_boxes

Fields = list[dict[str, Any]]
_MOST_PIXELS = 16_000_000  # of masks that are resized at once


@dataclass
class CountedShapes:
    """The shapes that one validation compares, image by image."""

    validator: Any
    found: Fields = field(default_factory=list)
    there: Fields = field(default_factory=list)

    def fields(self) -> tuple[Fields, Fields, list[float] | None]:
        """Those of all objects, those of all detections, and how far annotators differ about each keypoint."""
        sigmas = getattr(self.validator, "sigma", None)
        return self.there, self.found, None if sigmas is None else np.asarray(sigmas, dtype=np.float64).tolist()

    def add(self, i: int, pred: Mapping[str, Tensor], batch: Mapping[str, Any], resizing: list[float]) -> None:
        """Add image `i` of a batch; `resizing` has factors of x and y, then what is added to come to the resized image."""
        of_image = self.validator._prepare_batch(i, batch)  # what it compares detections with
        by_task = {"segment": self._masks, "pose": self._poses, "obb": self._oriented}
        found, there = by_task[self.validator.args.task](pred, of_image, np.array(resizing))
        self.found += found
        self.there += there

    def _poses(
        self, pred: Mapping[str, Tensor], of_image: Mapping[str, Any], resizing: NDArray[np.float64]
    ) -> tuple[Fields, Fields]:
        both = []
        for points in (pred["keypoints"], of_image["keypoints"]):
            numbers = points.detach().cpu().double().numpy()
            seen = numbers[..., 2:3] if numbers.shape[2] > 2 else np.ones((*numbers.shape[:2], 1))
            original = (numbers[..., :2] - resizing[2:]) / resizing[:2]
            rows = np.concatenate([original, seen], axis=2).reshape(len(numbers), 3 * numbers.shape[1])
            both.append([{"keypoints": row} for row in rows.tolist()])
        return both[0], both[1]

    def _oriented(
        self, pred: Mapping[str, Tensor], of_image: Mapping[str, Any], resizing: NDArray[np.float64]
    ) -> tuple[Fields, Fields]:
        both = (corners_in_original(boxes, resizing) for boxes in (pred["bboxes"], of_image["bboxes"]))
        found, there = ([{"poly": row} for row in corners.reshape(-1, 8).tolist()] for corners in both)
        return found, there

    def _masks(
        self, pred: Mapping[str, Tensor], of_image: Mapping[str, Any], resizing: NDArray[np.float64]
    ) -> tuple[Fields, Fields]:
        """Masks at the size of the image, and as they are compared; those of objects at their image as they are labelled."""
        from stepgrad.data.shape_fields import pixels_of, polygon_mask  # needs Pillow

        found, there = pred["masks"].detach().cpu() > 0, of_image["masks"].detach().cpu()
        # Newer versions have done the next two steps already.
        if len(there) != len(of_image["cls"]):  # one picture of all objects, numbered from 1
            there = there == torch.arange(1, len(of_image["cls"]) + 1)[:, None, None]
        if len(there) and there.shape[1:] != found.shape[1:]:
            there = interpolate(there[None].float(), found.shape[1:], mode="bilinear")[0] > 0.5
        size = [int(side) for side in of_image["ori_shape"]]
        network = of_image["imgsz"]
        rate = np.array([found.shape[2] / network[1], found.shape[1] / network[0]])
        of_masks = (resizing * np.tile(rate, 2)).tolist()
        fields = [_of_masks(masks > 0, size, of_masks) for masks in (found, there)]
        for entry, outline in zip(fields[1], self._outlines(of_image, resizing), strict=True):
            if outline is not None:
                entry["segmentation"] = [outline]
                entry["area"] = float(pixels_of([polygon_mask([outline], (size[1], size[0]))], "labels")[0])
        return fields[0], fields[1]

    @cached_property
    def _labels(self) -> dict[str, Mapping[str, Any]]:
        """What the data says of each image; nothing where the dataset is not one of ultralytics."""
        labels = getattr(self.validator.dataloader.dataset, "labels", ())
        return {label["im_file"]: label for label in labels if isinstance(label, Mapping)}

    def _outlines(self, of_image: Mapping[str, Any], resizing: NDArray[np.float64]) -> list[list[float] | None]:
        """The polygon of each object in pixels of its image; None where the data has none.

        The validation has sorted the objects by area, so each is looked up by its class and box.
        """
        from stepgrad.data.shape_fields import in_pixels  # needs Pillow

        label = self._labels.get(of_image["im_file"])
        if label is None or len(label["segments"]) != len(of_image["cls"]):
            return [None] * len(of_image["cls"])
        height, width = of_image["ori_shape"]
        boxes = of_image["bboxes"].detach().cpu().double().numpy()
        boxes = (boxes - np.tile(resizing[2:], 2)) / np.tile(resizing[:2], 2)
        known = np.array(label["bboxes"], dtype=np.float64).reshape(-1, 4) * [width, height, width, height]
        known = np.concatenate([known[:, :2] - known[:, 2:] / 2, known[:, :2] + known[:, 2:] / 2], axis=1)
        classes = np.array(label["cls"]).reshape(-1)
        apart = np.abs(boxes[:, None] - known[None]).max(axis=2)
        labels = of_image["cls"].detach().cpu().numpy()
        if not self.validator.args.single_cls:
            apart[labels[:, None] != classes[None]] = np.inf
        outlines: list[list[float] | None] = []
        for row in apart:
            nearest = int(row.argmin())
            apart[:, nearest] = np.inf  # each is one object's
            outlines.append(
                in_pixels(np.array(label["segments"][nearest]).reshape(-1), (width, height)).ravel().tolist()
            )
        return outlines


def _of_masks(masks: Tensor, size: list[int], resizing: list[float]) -> Fields:
    """Masks (n, h, w) at the size of their image, and as they are."""
    fields: Fields = []
    for some in masks.split(max(1, _MOST_PIXELS // (size[0] * size[1] + 16 * masks.shape[1] * masks.shape[2]))):
        counted, whole = coco_masks(some), coco_masks(from_border(some, resizing, size))
        fields += [
            {"segmentation": mask, "counted": {**of_tool, "resizing": resizing}}
            for mask, of_tool in zip(whole, counted, strict=True)
        ]
    return fields


def corners_in_original(boxes: Tensor, resizing: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 4, 2) corners of oriented boxes of a resized image in pixels of the image itself."""
    rows = boxes.detach().cpu().double().numpy().reshape(-1, 5)
    corners: NDArray[np.float64] = (quads_of_boxes(rows).corners - resizing[2:]) / resizing[:2]
    return corners


def boxes_around(corners: NDArray[np.float64]) -> Tensor:
    """(n, 4) upright boxes."""
    return torch.from_numpy(np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1))
