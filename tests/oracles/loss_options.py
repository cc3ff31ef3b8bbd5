"""A loss with all its options, by brute force: each class alone, then joined, clipped, balanced and regularised in plain Python.

The definitions of AP and of its pseudogradients are those of `stepgrad.reference`; nothing of the fast code is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.reference.class_ap import ClassScene, ImageOfClass, class_ap, describe_class
from stepgrad.reference.map_loss import class_ppds
from stepgrad.reference.matching import Objects
from stepgrad.reference.mean_ap import Batch, Options

Array = np.ndarray
EVERY_SIZE = (0.0, math.inf)


@dataclass(frozen=True)
class LossSettings:
    """What a loss is made with, beside the options of the pseudogradient."""

    log: bool = True
    eps: float = 0.01
    l4: float | None = None
    clip: float | None = None
    score_floor: float | None = None
    class_weights: tuple[float, ...] | None = None
    area: tuple[float, float] = EVERY_SIZE

    def keeps(self, scores: Array) -> Array:
        return scores >= (-math.inf if self.score_floor is None else self.score_floor)


@dataclass(frozen=True)
class BruteLoss:
    """What a loss should be; nan in the gradient where its definition has nothing to say."""

    value: float
    metric: float
    by_class: list[float]  # nan for a class that is left out
    gradient: list[Array]


@dataclass(frozen=True)
class OneClass:
    """A class by itself: the windows that score enough, and its value and slopes, means over the thresholds."""

    rows: list[Array]  # per image, the windows that take part
    objects: int
    value: float
    slopes: list[list[float]]


def brute_loss(batch: Batch, options: Options, settings: LossSettings) -> BruteLoss:
    """The loss of a batch, its metric by class, and its gradient."""
    classes = [one_class(batch, c, options, settings) for c in range(batch.K)]
    weights = class_shares(classes, options.skips_absent_classes(), settings.class_weights)
    metric = math.fsum(w * c.value for w, c in zip(weights, classes, strict=True))
    outer = -1.0 / (metric + settings.eps) if settings.log else -1.0
    value = -math.log(metric + settings.eps) if settings.log else 1.0 - metric
    gradient = [np.zeros(s.shape) for s in batch.scores]
    for c, (weight, of_class) in enumerate(zip(weights, classes, strict=True)):
        column = [outer * weight * slope for image in of_class.slopes for slope in image]
        scores = [float(v) for s, rows in zip(batch.scores, of_class.rows, strict=True) for v in s[rows, c]]
        finished = iter(finish(column, scores, settings.clip, options.balance))
        for g, rows in zip(gradient, of_class.rows, strict=True):
            g[rows, c] = [next(finished) for _ in rows]
    if settings.l4 is not None:
        parts = [np.where(settings.keeps(s), s, 0.0) for s in batch.scores]
        value += settings.l4 * math.fsum(v**4 for s in parts for v in s.ravel().tolist())
        gradient = [g + 4.0 * settings.l4 * s**3 for g, s in zip(gradient, parts, strict=True)]
    skips = options.skips_absent_classes()
    shown = [math.nan if skips and c.objects == 0 else c.value for c in classes]
    return BruteLoss(value, metric, shown, gradient)


def class_shares(classes: Sequence[OneClass], skips: bool, class_weights: Sequence[float] | None) -> list[float]:
    """The share of each class in the mean; all 0 where no class counts."""
    given = class_weights or [1.0] * len(classes)
    weights = [0.0 if skips and c.objects == 0 else w for w, c in zip(given, classes, strict=True)]
    total = math.fsum(weights)
    return [w / total if total else 0.0 for w in weights]


def one_class(batch: Batch, c: int, options: Options, settings: LossSettings) -> OneClass:
    """One class of the batch, as if windows that score below the floor did not exist for it."""
    rows = [np.flatnonzero(settings.keeps(s[:, c])) for s in batch.scores]
    boxes = [(b if b.ndim == 2 else b[:, c])[r] for b, r in zip(batch.boxes, rows, strict=True)]
    scores = [s[r, c].tolist() for s, r in zip(batch.scores, rows, strict=True)]
    thresholds = options.thresholds()
    slopes = [[0.0] * len(r) for r in rows]
    values = []
    for t in thresholds:
        scene = scene_of_sizes(batch, boxes, c, options, t, settings.area)
        values.append(class_ap(scene, scores).rounded)
        if scene.P == 0:
            continue
        for i, image in enumerate(class_ppds(scene, scores, options)):
            for b, slope in enumerate(image):
                slopes[i][b] += math.nan if slope is None else float(slope) / len(thresholds)
    return OneClass(rows, scene.P, math.fsum(values) / len(values), slopes)


def scene_of_sizes(
    batch: Batch, boxes: Sequence[Array], c: int, options: Options, threshold: float, area: tuple[float, float]
) -> ClassScene:
    """The class with objects of some sizes only, by their annotated areas where targets have them."""
    protocol = get_protocol(options.protocol)
    scene = describe_class(boxes, batch.targets, c, protocol, threshold, options.nms_threshold, area)
    if area == EVERY_SIZE or all("area" not in target for target in batch.targets):
        return scene
    plain = describe_class(boxes, batch.targets, c, protocol, threshold, options.nms_threshold)
    images = [
        replace(image, objects=_by_annotated_area(whole, image, target, c, protocol, area))
        for whole, image, target in zip(plain.images, scene.images, batch.targets, strict=True)
    ]
    return replace(scene, images=images)


def _by_annotated_area(
    whole: ImageOfClass,
    image: ImageOfClass,
    target: dict[str, Array],
    c: int,
    protocol: Protocol,
    area: tuple[float, float],
) -> Objects:
    """Objects of other areas are ignored, and forgive one detection each; `whole` has objects of every size."""
    assert (protocol.difficult, protocol.crowds) == ("ignore", "region")  # so all objects are there, in their order
    written = np.asarray(target["area"])[np.asarray(target["labels"]) == c].tolist()
    outside = {g for g, a in enumerate(written) if not area[0] <= a <= area[1]}
    wrong_size = frozenset(g for g in outside if not whole.objects.ignored[g])
    ignored = tuple(old or g in wrong_size for g, old in enumerate(whole.objects.ignored))
    return replace(image.objects, ignored=ignored, wrong_size=wrong_size)


def finish(column: Sequence[float], scores: Sequence[float], clip: float | None, balance: str) -> list[float]:
    """The gradient of a class, clipped; then its pushes up and down made equal; then freed of its stretch of the scores.

    >>> finish([1.0, 3.0, -2.0], [0.0, 1.0, 2.0], None, "class")
    [0.5, 1.5, -2.0]
    >>> finish([1.0, 0.0, -1.0], [0.0, 1.0, 2.0], None, "class+scale")      # all of it was stretch
    [0.0, 0.0, 0.0]
    """
    bound = math.inf if clip is None else clip
    found = [min(max(g, -bound), bound) if not math.isnan(g) else g for g in column]
    if balance == "none":
        return found
    up, down = math.fsum(g for g in found if g > 0), -math.fsum(g for g in found if g < 0)
    smaller = min(up, down)
    if any(map(math.isnan, found)):
        return [math.nan] * len(found)
    found = [0.0 if smaller == 0.0 else g * smaller / (up if g > 0 else down) for g in found]
    return found if balance == "class" else _without_stretch(found, scores, bound)


def _without_stretch(gradient: list[float], scores: Sequence[float], bound: float) -> list[float]:
    """Without what lies along the scores, centred over those with a gradient; all of it scaled down to the bound."""
    moved = [i for i, g in enumerate(gradient) if g != 0.0]
    middle = math.fsum(scores[i] for i in moved) / max(len(moved), 1)
    along = math.fsum(gradient[i] * (scores[i] - middle) for i in moved)
    square = math.fsum((scores[i] - middle) ** 2 for i in moved)
    if square > 0.0:
        for i in moved:
            gradient[i] -= (scores[i] - middle) * along / square
    largest = max(map(abs, gradient), default=0.0)
    return [g * bound / largest for g in gradient] if largest > bound else gradient
