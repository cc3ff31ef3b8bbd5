"""The public functions, class by class and window by window, from the other oracles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from stepgrad.metric.protocol import Protocol, get_protocol
from tests.oracles import estimators
from tests.oracles.class_scene import ClassScene, class_ap, describe_class
from tests.oracles.paper_mode import PaperMode
from tests.oracles.step_function import NearestSteps, curve_of_score, step_function
from tests.scenes import Array, Batch


class Options(NamedTuple):
    """Keyword arguments of the library's functions; `call()` hands the same ones to the library."""

    protocol: str | Protocol = "voc12"
    nms_threshold: float | None = 0.3
    match_threshold: float | None = None
    through_nms: str = "exact"
    estimator: str = "mee"
    radius: float = 1.0
    min_step: float = 0.0
    absent_classes: str | None = None  # the protocol's own
    balance: str = "none"

    def thresholds(self) -> tuple[float, ...]:
        if self.match_threshold is not None:
            return (self.match_threshold,)
        return get_protocol(self.protocol).match_thresholds

    def skips_absent_classes(self) -> bool:
        return (self.absent_classes or get_protocol(self.protocol).absent_classes) == "skip"

    def call(self, *names: str) -> dict[str, object]:
        """The named options, or the three that every function takes."""
        always = ("protocol", "nms_threshold", "match_threshold")
        return {name: getattr(self, name) for name in (*always, *names)}

    def for_gradient(self) -> dict[str, object]:
        return self.call("through_nms", "estimator", "radius", "min_step", "absent_classes", "balance")


def scene_of(batch: Batch, label: int, options: Options, threshold: float) -> ClassScene:
    protocol = get_protocol(options.protocol)
    return describe_class(batch.boxes, batch.targets, label, protocol, threshold, options.nms_threshold)


def batch_ap(batch: Batch, options: Options) -> list[float]:
    """AP of each class; the mean over thresholds where there are several, and 0 for a class without objects."""
    means = []
    for c in range(batch.K):
        values = [class_ap(scene_of(batch, c, options, t), batch.column(c)).rounded for t in options.thresholds()]
        means.append(math.fsum(values) / len(values))
    return means


def counted_classes(batch: Batch, options: Options) -> list[int]:
    """The classes that enter the mean: all of them, or those with countable objects."""
    everything = range(batch.K)
    if not options.skips_absent_classes():
        return list(everything)
    return [c for c in everything if scene_of(batch, c, options, options.thresholds()[0]).P > 0]


def shown_ap(batch: Batch, options: Options) -> list[float]:
    """AP of each class as it is reported: nan for a class that is left out of the mean."""
    counted = counted_classes(batch, options)
    return [value if c in counted else math.nan for c, value in enumerate(batch_ap(batch, options))]


def batch_map(batch: Batch, options: Options) -> float:
    """Mean AP over the classes that count; 0 when none does."""
    ap, counted = batch_ap(batch, options), counted_classes(batch, options)
    return math.fsum(ap[c] for c in counted) / len(counted) if counted else 0.0


def batch_steps(batch: Batch, options: Options) -> dict[tuple[int, int, int], NearestSteps]:
    """Nearest steps of every score, keyed by (image, window, class)."""
    (threshold,) = options.thresholds()
    found = {}
    for c in range(batch.K):
        scene = scene_of(batch, c, options, threshold)
        for i, b, _ in (w for w in batch.windows() if w[2] == c):
            f = step_function(scene, batch.column(c), i, b, fixed_kept=options.through_nms == "none")
            found[i, b, c] = f.nearest_steps()
    return found


def class_ppds(scene: ClassScene, scores: list[list[float]], options: Options) -> list[list[Fraction | None]]:
    """Pseudo partial derivatives of one class's AP at one threshold; None where the definition has nothing to say."""
    if options.through_nms == "paper":
        return PaperMode(scene, scores, options.estimator, options.min_step).ppds()
    return [[ppd(scene, scores, i, b, options) for b in range(len(s))] for i, s in enumerate(scores)]


def ppd(scene: ClassScene, scores: list[list[float]], i: int, b: int, options: Options) -> Fraction | None:
    fixed = options.through_nms == "none"
    if options.estimator == "radius":
        return estimators.radius(curve_of_score(scene, scores, i, b, fixed), scores[i][b], options.radius)
    f = step_function(scene, scores, i, b, fixed)
    if options.estimator == "mee":
        return estimators.mee(f, options.min_step)
    return estimators.sde(f.x, f.nearest_steps(), options.min_step)


def batch_gradient(batch: Batch, options: Options) -> list[Array]:
    """dmAP/dscores: per class the mean over thresholds, divided by the classes counted; nan = not defined."""
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

    >>> balanced([np.array([[1.0], [3.0], [-2.0]])])[0].ravel().tolist()
    [0.5, 1.5, -2.0]
    """
    result = [g.copy() for g in gradient]
    for c in range(gradient[0].shape[1] if gradient else 0):
        column = np.concatenate([g[:, c] for g in gradient])
        up, down = column[column > 0].sum(), -column[column < 0].sum()
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
