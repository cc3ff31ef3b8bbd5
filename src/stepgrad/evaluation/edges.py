"""Boxes as a protocol sees them (cut at the edges of their image or not), and files that hold only boxes that were cut."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.records import Detections, Evidence, GroundTruth
from stepgrad.evaluation.seen_shapes import shapes_seen_by
from stepgrad.metric.protocol import Protocol

Flat = TypeVar("Flat", Detections, GroundTruth)
_ROUNDING = 0.001, 2e-6  # pixels, and share of the image's size, by which files of `yolo val` may round an edge away
_MANY = 0.05  # share of boxes that end at an edge, from which on the reader is told


def seen_by(evidence: Evidence, protocol: Protocol) -> Evidence:
    """The boxes as the protocol counts them: cut or not, and in its pixel convention.

    A tool that computes overlaps in single precision gets the pixels of the images that it counted in: the same numbers are
    rounded.
    """
    if evidence.has_shapes:  # conventions of boxes say nothing about masks and poses
        return shapes_seen_by(evidence, protocol)
    seen = clipped(evidence) if protocol.clip else evidence
    seen = in_resized_images(seen) if protocol.overlaps == "single" else seen
    return seen.seen_with(protocol.pixel_offset)


def clipped(evidence: Evidence) -> Evidence:
    """The same with boxes cut at the edges of their images; those in images of unknown size stay as they are."""
    if evidence.limits is None:
        return evidence
    detections = _cut(evidence.detections, evidence.limits)
    return replace(evidence, detections=detections, objects=_cut(evidence.objects, evidence.limits))


def _cut(flat: Flat, limits: NDArray[np.float64]) -> Flat:
    """Boxes that lie inside keep their numbers to the last bit, also the sizes that a file gave."""
    low, high = limits[flat.images].transpose(1, 0, 2)
    beyond = ((flat.boxes < low) | (flat.boxes > high)).any(axis=1, keepdims=True)  # nan is on no side
    cut = flat.with_boxes(np.where(beyond, np.clip(flat.boxes, low, high), flat.boxes))
    return replace(cut, sizes=np.where(beyond, cut.sizes, flat.sizes))


def in_resized_images(evidence: Evidence) -> Evidence:
    """The boxes in the resized images in which a tool counted them, where the annotations tell how they were resized.

    Numbers that were single precision there are so again, to the last bit.
    """
    if evidence.resizings is None:
        return evidence
    scale, shift = np.tile(evidence.resizings[:, :2], 2), np.tile(evidence.resizings[:, 2:], 2)
    moved = [
        flat.with_boxes(flat.boxes * scale[flat.images] + shift[flat.images])
        for flat in (evidence.detections, evidence.objects)
    ]
    return replace(evidence, detections=moved[0], objects=moved[1], limits=None, resizings=None)


def note_on_edges(evidence: Evidence) -> str | None:
    """A note for readers of detections that were cut at the edges of their images: many end there, and none reaches beyond.

    None if they were not, or if the sizes of the images are not known.
    """
    if evidence.limits is None or not len(evidence.detections):
        return None
    boxes = evidence.detections.boxes
    low, high = evidence.limits[evidence.detections.images].transpose(1, 0, 2)
    slack = _ROUNDING[0] + _ROUNDING[1] * (high - low)[:, :2].max(axis=1, keepdims=True)
    inwards = np.concatenate([(boxes - low)[:, :2], (high - boxes)[:, 2:]], axis=1)
    at_edge = int((np.abs(inwards) <= slack).any(axis=1).sum())
    if (inwards < -slack).any() or at_edge < _MANY * len(boxes):
        return None
    return (
        f"{at_edge} of {len(boxes)} boxes end exactly at an edge of their image. If `yolo val` saved them: it counts boxes "
        "before it cuts them there (from version 8.3.168 on), so the mAP that it prints can be some tenths of a point lower, or "
        "more. This file cannot tell by how much. For the same mAP to the last digit, save what it counts: `from "
        "stepgrad.models.yolo import save_counted`, then `save_counted(model)` before `model.val(...)`"
    )
