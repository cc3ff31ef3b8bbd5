"""Any metric of a ranked list as a step function of one score, through NMS and matching, by brute force.

As in steps.py, with one place more where the metric may change: a fixed threshold of the score itself.
"""

from __future__ import annotations

from collections.abc import Callable

from stepgrad.reference.class_ap import ClassScene, Kept, Scores, judged_detections, kept_windows
from stepgrad.reference.list_metrics import Hits
from stepgrad.reference.matching import IGNORED, TRUE
from stepgrad.reference.steps import Curve, StepFunction, Value, trace

OfList = Callable[[Hits, int, int], Value]  # of hits, objects and images


def cut_list(scene: ClassScene, scores: Scores, kept: Kept | None, threshold: float | None) -> list[bool]:
    """Hits of the counted detections by decreasing score; only those that score at least the threshold, if there is one."""
    judged = judged_detections(scene, scores, kept_windows(scene, scores) if kept is None else kept)
    passing = [v for i, b, v in judged if threshold is None or scores[i][b] >= threshold]
    return [v == TRUE for v in passing if v != IGNORED]


def metric_curve(
    scene: ClassScene, scores: Scores, i: int, b: int, metric: OfList, threshold: float | None, fixed_kept: bool = False
) -> Curve:
    """The metric as a function of the score of window b of image i; with `fixed_kept` NMS is not run again."""
    kept = kept_windows(scene, scores) if fixed_kept else None

    def curve(y: float) -> Value:
        moved = [list(s) for s in scores]
        moved[i][b] = y
        return metric(cut_list(scene, moved, kept, threshold), scene.P, len(scene.images))

    return curve


def metric_steps(
    scene: ClassScene, scores: Scores, i: int, b: int, metric: OfList, threshold: float | None, fixed_kept: bool = False
) -> StepFunction:
    """The same, evaluated between all places where it can change.

    >>> from stepgrad.metric.protocol import VOC12
    >>> from stepgrad.reference.class_ap import describe_class
    >>> from stepgrad.reference.list_metrics import f1
    >>> import numpy as np
    >>> box = np.array([[0.0, 0, 10, 10]])
    >>> scene = describe_class([box], [{"boxes": box, "labels": np.array([0])}], 0, VOC12, 0.5, None)
    >>> steps = metric_steps(scene, [[0.2]], 0, 0, lambda hits, P, images: f1(hits, P), threshold=0.5)
    >>> steps.nearest_steps().up_at, steps.nearest_steps().up_value.rounded
    (0.5, 1.0)
    """
    others = [s for j, image in enumerate(scores) for c, s in enumerate(image) if (j, c) != (i, b)]
    curve = metric_curve(scene, scores, i, b, metric, threshold, fixed_kept)
    return trace(curve, scores[i][b], others + ([] if threshold is None else [threshold]))
