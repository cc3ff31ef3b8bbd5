"""What mAP would gain by a changed label, the slow and obvious way: change it, and evaluate everything again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepgrad.engine.matching import IGNORED, TRUE_POSITIVE
from stepgrad.evaluation import Evidence, GroundTruth, LabelError
from stepgrad.evaluation.counted import counted_overlaps
from stepgrad.evaluation.edges import seen_by
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


def likely(evidence: Evidence, error: LabelError, protocol: Protocol) -> float:
    """What a look at the label is worth: gain, number of labels, the chance that the label is wrong, and how far apart."""
    if error.detection is None:
        return 0.0
    judged = judge(evidence, protocol)
    verdicts = {
        int(d): int(v) for row in judged for d, v in zip(row.detections, row.verdicts[0], strict=True) if v != IGNORED
    }
    scores = evidence.detections.scores
    order = sorted((d for row in judged for d in row.detections.tolist() if d in verdicts), key=lambda d: -scores[d])
    hits = np.array([verdicts[d] == TRUE_POSITIVE for d in order], dtype=np.float64)
    at = order.index(error.detection)
    # The best falling fit at a place: the lowest, over where it begins, of the highest mean over where it ends.
    right = min(max(hits[a : b + 1].mean() for b in range(at, len(hits))) for a in range(at + 1))
    seen = seen_by(evidence, protocol)
    there = np.flatnonzero(seen.objects.images == error.image)
    overlaps = counted_overlaps(seen, np.array([error.detection]), there, protocol) if len(there) else np.zeros((1, 1))
    apart = 1.0 if error.kind == "swap" else 1.0 - float(overlaps.max())
    labels = judged[error.label].P
    return error.gain * labels * 0.05 / (1.05 - right) * apart**2


def gain(evidence: Evidence, error: LabelError, protocol: Protocol) -> float:
    """mAP with the label changed, minus mAP as it is."""
    return map_of(with_label_changed(evidence, error), protocol) - map_of(evidence, protocol)
