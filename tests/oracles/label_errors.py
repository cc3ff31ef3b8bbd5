"""What mAP would gain by a changed label, the slow and obvious way: change it, and evaluate everything again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepgrad.evaluation import Evidence, GroundTruth, LabelError
from stepgrad.evaluation.judge import judge
from stepgrad.evaluation.result import result_from
from stepgrad.metric.boxes import areas_of
from stepgrad.metric.protocol import Protocol


def with_label_changed(evidence: Evidence, error: LabelError) -> Evidence:
    """The same detections, and the labels with one of them changed in its place, gone, or one more at the end."""
    labels = evidence.objects
    if error.kind == "remove":
        return replace(evidence, objects=labels.take(np.arange(len(labels)) != error.object))
    if error.kind == "swap":
        classes = labels.labels.copy()
        classes[error.object] = error.label
        return replace(evidence, objects=replace(labels, labels=classes))
    assert error.detection is not None
    detection = evidence.detections.take(np.array([error.detection]))
    sizes = detection.sizes
    new = GroundTruth(
        detection.images,
        detection.labels,
        detection.boxes,
        difficult=np.zeros(1, dtype=np.bool_),
        crowd=np.zeros(1, dtype=np.bool_),
        area=areas_of(sizes, evidence.pixel_offset or 0.0),
        sizes=sizes,
    )
    before = len(labels) if error.kind == "add" else error.object
    after = len(labels) if error.kind == "add" else error.object + 1
    parts = labels.take(np.arange(before)), new, labels.take(np.arange(after, len(labels)))
    columns = {name: np.concatenate([vars(p)[name] for p in parts]) for name in vars(new) if name != "shapes"}
    return replace(evidence, objects=GroundTruth(**columns))


def map_of(evidence: Evidence, protocol: Protocol) -> float:
    """mAP of the detections."""
    return result_from(judge(evidence, protocol), evidence, protocol).map


def gain(evidence: Evidence, error: LabelError, protocol: Protocol) -> float:
    """mAP with the label changed, minus mAP as it is."""
    return map_of(with_label_changed(evidence, error), protocol) - map_of(evidence, protocol)
