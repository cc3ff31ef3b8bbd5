"""mAP after NMS as a loss (Henderson & Ferrari 2016, Sec. 4.5): its value and its pseudogradient, window by window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from stepgrad.reference import estimators
from stepgrad.reference.class_ap import ClassScene
from stepgrad.reference.mean_ap import Array, Batch, Options, batch_map, counted_classes, scene_of
from stepgrad.reference.paper_nms import PaperMode
from stepgrad.reference.steps import NearestSteps, curve_of_score, step_function


def batch_steps(batch: Batch, options: Options) -> dict[tuple[int, int, int], NearestSteps]:
    """Nearest steps of every score, keyed by (image, window, class)."""
    (threshold,) = options.thresholds()
    nearest = {}
    for c in range(batch.K):
        scene = scene_of(batch, c, options, threshold)
        for i, b, _ in (w for w in batch.windows() if w[2] == c):
            f = step_function(scene, batch.column(c), i, b, fixed_kept=options.through_nms == "none")
            nearest[i, b, c] = f.nearest_steps()
    return nearest


def ppd(scene: ClassScene, scores: list[list[float]], i: int, b: int, options: Options) -> Fraction | None:
    """Pseudo partial derivative of one class's AP in the score of window b of image i."""
    fixed = options.through_nms == "none"
    if options.estimator == "radius":
        return estimators.radius(curve_of_score(scene, scores, i, b, fixed), scores[i][b], options.radius)
    f = step_function(scene, scores, i, b, fixed)
    if options.estimator == "mee":
        return estimators.mee(f, options.min_step)
    return estimators.sde(f.x, f.nearest_steps(), options.min_step)


def class_ppds(scene: ClassScene, scores: list[list[float]], options: Options) -> list[list[Fraction | None]]:
    """Pseudo partial derivatives of one class's AP at one threshold; None where the definition has nothing to say."""
    if options.through_nms == "paper":
        return PaperMode(scene, scores, options.estimator, options.min_step).ppds()
    return [[ppd(scene, scores, i, b, options) for b in range(len(s))] for i, s in enumerate(scores)]


def batch_gradient(batch: Batch, options: Options) -> list[Array]:
    """dmAP/dscores: per class the mean over thresholds, divided by the classes counted; nan = not defined.

    >>> boxes = np.array([[0.0, 0, 10, 10], [20.0, 0, 30, 10]])
    >>> batch = Batch([np.array([[2.0], [1.0]])], [boxes], [{"boxes": boxes[1:], "labels": np.array([0])}])
    >>> batch_gradient(batch, Options())[0].ravel().tolist()    # one step of half an AP, one unit away, on one side
    [-0.25, 0.25]
    """
    gradient = [np.zeros(s.shape) for s in batch.scores]
    counted = counted_classes(batch, options)
    for c in counted:
        share = Fraction(1, len(counted) * len(options.thresholds()))
        for t in options.thresholds():
            ppds = class_ppds(scene_of(batch, c, options, t), batch.column(c), options)
            for i, b, _ in (w for w in batch.windows() if w[2] == c):
                v = ppds[i][b]
                gradient[i][b, c] += math.nan if v is None else float(v * share)
    return balanced(gradient) if options.balance == "class" else gradient


def balanced(gradient: Sequence[Array]) -> list[Array]:
    """Per class both signs scaled to the smaller of their two totals; nothing is left where one sign is missing.

    Adding a constant to all scores of a class changes no AP, so pushes up and down should sum to zero. Not in the paper.

    >>> balanced([np.array([[1.0], [3.0], [-2.0]])])[0].ravel().tolist()
    [0.5, 1.5, -2.0]
    """
    result = [g.copy() for g in gradient]
    for c in range(gradient[0].shape[1] if gradient else 0):
        column = np.concatenate([g[:, c] for g in gradient])
        up = column[column > 0].sum()
        down = -column[column < 0].sum()
        smaller = min(up, down)
        for g in result:
            g[:, c] *= np.where(g[:, c] > 0, smaller / (up or 1.0), smaller / (down or 1.0))
    return result


def loss_value(batch: Batch, options: Options, eps: float, l4: float | None) -> float:
    """-log(mAP + eps) + l4 * sum of s^4."""
    fourth = math.fsum(v**4 for s in batch.scores for v in s.ravel().tolist())
    return -math.log(batch_map(batch, options) + eps) + (l4 or 0.0) * fourth


def loss_gradient(
    batch: Batch, options: Options, log: bool, eps: float, clip: float | None, l4: float | None
) -> list[Array]:
    """Chain rule through the log, then clip, then balance, then the L4 term."""
    slope = -1.0 / (batch_map(batch, options) + eps) if log else -1.0
    gradient = [slope * g for g in batch_gradient(batch, options._replace(balance="none"))]
    if clip is not None:
        gradient = [np.clip(g, -clip, clip) for g in gradient]
    if options.balance == "class":
        gradient = balanced(gradient)
    return [g + 4.0 * (l4 or 0.0) * s**3 for g, s in zip(gradient, batch.scores, strict=True)]
