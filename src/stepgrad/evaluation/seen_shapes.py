"""Masks, poses and oriented boxes as a protocol sees them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.records import Evidence, GroundTruth
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.base import Flags
from stepgrad.overlaps.keypoints import Keypoints, Poses
from stepgrad.overlaps.masks import Masks, Runs
from stepgrad.overlaps.resized_masks import at_image_size, painted_runs, resized_runs
from stepgrad.overlaps.rotated import ProbIoU, Quads, Rotated, boxes_of_corners
from stepgrad.overlaps.yolo import YoloOriented, YoloPoses

_OF_BOX = 0.53  # what ultralytics takes for the area of a person, as a share of the box


def shapes_seen_by(evidence: Evidence, protocol: Protocol) -> Evidence:
    """The shapes that the protocol compares, and what it compares them by."""
    overlap = evidence.overlap
    if isinstance(overlap, Masks):
        return _with_shapes(evidence, *_masks(evidence, protocol))
    if isinstance(overlap, Keypoints):
        return _poses(evidence, overlap, protocol)
    if isinstance(overlap, (Rotated, ProbIoU)):
        return _oriented(evidence, protocol)
    return evidence


def _with_shapes(evidence: Evidence, found: object, there: object) -> Evidence:
    detections, objects = evidence.detections, evidence.objects
    if found is detections.shapes and there is objects.shapes:
        return evidence
    return replace(evidence, detections=replace(detections, shapes=found), objects=replace(objects, shapes=there))


def _masks(evidence: Evidence, protocol: Protocol) -> tuple[Runs, Runs]:
    """At the protocol's resolution, with its edges; of objects that hide each other only what it takes as visible."""
    found: Runs = evidence.detections.shapes
    there: Runs = evidence.objects.shapes
    if protocol.mask_size is not None:
        if all(runs.counted is not None for runs in (found, there) if runs.masks):
            return _as_counted(found), _as_counted(there)  # the tool had painted them
        found, there = (resized_runs(runs, protocol.mask_size) for runs in (found, there))
    elif protocol.mask_edges == "whole" and found.counted is not None:
        found = at_image_size(found.counted.runs, found.counted.resizing, found.sizes, whole=True)
    if protocol.hidden == "smaller":
        there = painted_runs(there, evidence.objects.images, _painted(evidence.objects, protocol))
    return found, there


def _as_counted(runs: Runs) -> Runs:
    return runs if runs.counted is None else runs.counted.runs


def _painted(objects: GroundTruth, protocol: Protocol) -> Flags:
    """(G,) objects that can hide others: those that the protocol takes as annotated, but for crowds."""
    return ~(objects.crowd | (objects.difficult & (protocol.difficult == "drop")))


def _poses(evidence: Evidence, overlap: Keypoints, protocol: Protocol) -> Evidence:
    """With the areas that the protocol goes by; in single precision as in the resized images that the tool counted in."""
    found: Poses = evidence.detections.shapes
    there: Poses = evidence.objects.shapes
    if protocol.clip and evidence.limits is not None:
        found = found._replace(points=_cut(found.points, evidence.limits[evidence.detections.images]))
    single = protocol.overlaps == "single"
    if single and evidence.resizings is not None:
        found = _resized_poses(found, evidence.resizings[evidence.detections.images])
        there = _resized_poses(there, evidence.resizings[evidence.objects.images])
    if protocol.poses == "box":
        boxes = there.boxes.astype(np.float32) if single else there.boxes
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) * boxes.dtype.type(_OF_BOX)
        there = there._replace(areas=areas.astype(np.float64))
    seen = _with_shapes(evidence, found, there)
    return replace(seen, overlap=YoloPoses(overlap.sigmas, overlap.nms)) if single else seen


def _cut(points: NDArray[np.float64], limits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keypoints (n, k, 3) cut at the edges of their images (n, 2, 4), where these are known."""
    low, high = limits[:, 0, None, :2], limits[:, 1, None, 2:]
    cut = np.clip(points[..., :2], np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high))
    return np.concatenate([cut, points[..., 2:]], axis=2)


def _resized_poses(poses: Poses, resizings: NDArray[np.float64]) -> Poses:
    scale, shift = resizings[:, None, :2], resizings[:, None, 2:]
    points = np.concatenate([poses.points[..., :2] * scale + shift, poses.points[..., 2:]], axis=2)
    boxes = poses.boxes * np.tile(scale[:, 0], 2) + np.tile(shift[:, 0], 2)
    return Poses(points, boxes, poses.areas * scale[:, 0].prod(axis=1))


def _oriented(evidence: Evidence, protocol: Protocol) -> Evidence:
    """As polygons, or as Gaussians in the resized images that the tool counted in."""
    overlap, single = evidence.overlap, protocol.overlaps == "single"
    if isinstance(overlap, ProbIoU):
        return replace(evidence, overlap=YoloOriented(overlap.nms)) if single else evidence
    if protocol.oriented == "polygon":
        return evidence
    found, there = evidence.detections, evidence.objects
    boxes = [_boxes(flat.shapes, flat.images, evidence.resizings) for flat in (found, there)]
    return replace(_with_shapes(evidence, *boxes), overlap=(YoloOriented if single else ProbIoU)(overlap.nms))


def _boxes(quads: Quads, images: NDArray[np.int32], resizings: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """(n, 5) oriented boxes."""
    corners = quads.corners
    if resizings is not None:
        of_images = resizings[images]
        corners = corners * of_images[:, None, :2] + of_images[:, None, 2:]
    return boxes_of_corners(corners)
