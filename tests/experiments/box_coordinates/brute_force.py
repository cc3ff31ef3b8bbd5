"""The AP of a class as a step function of one box coordinate, by brute force.

Every overlap of the moving box with another box is sampled, not solved for: between the other box's edges its numerator and
denominator are straight lines, so what a threshold or another overlap is compared with is a polynomial of degree two at
most, and three samples give it. The metric is then evaluated from the start between all the roots.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from stepgrad.metric.protocol import get_protocol
from stepgrad.reference import estimators
from stepgrad.reference.average_precision import AP
from stepgrad.reference.boxes import areas, intersections
from stepgrad.reference.class_ap import ClassScene, class_ap, describe_class
from stepgrad.reference.mean_ap import counted_classes, scene_of
from stepgrad.reference.steps import NearestSteps
from tests.oracles.options import Options
from tests.scenes import Array, Batch

FAR = 1000.0  # beyond every step of a small scene
ONE_PLACE = 1e-9  # of a side: places closer than this are one
Function = Callable[[float], float]


class Coordinate(NamedTuple):
    """Coordinate q (x1, y1, x2, y2) of the box of a window, as a class sees it."""

    image: int
    window: int
    label: int
    q: int


def own_box(batch: Batch, at: Coordinate) -> Array:
    box = batch.boxes[at.image][at.window]
    return (box if box.ndim == 1 else box[at.label]).copy()


def moved(batch: Batch, at: Coordinate, y: float) -> Array:
    """The boxes of the image, (N, 4), as the class sees them, with the coordinate at y."""
    boxes = batch.boxes[at.image]
    boxes = (boxes if boxes.ndim == 2 else boxes[:, at.label]).copy()
    boxes[at.window, at.q] = y
    return boxes


def curve_of(batch: Batch, options: Options, threshold: float, at: Coordinate) -> Callable[[float], AP]:
    """AP of the class as a function of the coordinate: everything anew."""
    scene, scores = scene_of(batch, at.label, options, threshold), batch.column(at.label)
    protocol = get_protocol(options.protocol)

    def curve(y: float) -> AP:
        boxes, target = moved(batch, at, y), batch.targets[at.image]
        one = describe_class([boxes], [target], at.label, protocol, threshold, options.nms_threshold).images[0]
        images = [one if i == at.image else image for i, image in enumerate(scene.images)]
        return class_ap(ClassScene(images, scene.protocol, threshold), scores)

    return curve


class Overlap(NamedTuple):
    """Numerator and denominator of an overlap as the coordinate moves, and where either may bend."""

    top: Function
    bottom: Function
    bends: list[float]


def overlap_with(box: Array, q: int, other: Array, crowd: bool, offset: float) -> Overlap:
    def at(y: float) -> Array:
        return np.where(np.arange(4) == q, y, box)

    def top(y: float) -> float:
        return intersections(at(y), other, offset).item()

    def bottom(y: float) -> float:
        own = areas(at(y), offset).item()
        return own if crowd else own + areas(other, offset).item() - top(y)

    edges = [float(v) for v in (other[q % 2], other[q % 2 + 2], box[(q + 2) % 4])]
    return Overlap(top, bottom, [e + d for e in edges for d in (-offset, 0.0, offset)])


def roots(f: Function, bends: Sequence[float], low: float, high: float) -> list[float]:
    """Where f, a polynomial of degree two at most between its bends, may change sign; the bends as well."""
    found = sorted({low, high, *(b for b in bends if low < b < high)})
    places = found[1:-1]
    for a, b in itertools.pairwise(found):
        at_ends, middle = (f(a), f(b)), f(a / 2 + b / 2)
        # in s from -1 to 1: middle + linear s + quadratic s^2
        quadratic, linear = (at_ends[0] + at_ends[1]) / 2 - middle, (at_ends[1] - at_ends[0]) / 2
        size = max(abs(quadratic), abs(linear), abs(middle))
        if size == 0.0:
            continue
        coefficients = [c if abs(c) > 1e-13 * size else 0.0 for c in (quadratic, linear, middle)]
        for s in [*np.roots(coefficients), *np.roots(np.polyder(coefficients))]:
            if abs(s.imag) < 1e-6 and abs(s.real) <= 1 + 1e-9:
                places.append(a / 2 + b / 2 + s.real * (b - a) / 2)
    return places


def places_of(batch: Batch, options: Options, threshold: float, at: Coordinate, low: float, high: float) -> list[float]:
    """Everywhere the AP may change."""
    protocol = get_protocol(options.protocol)
    box, target = own_box(batch, at), batch.targets[at.image]
    windows = np.delete(moved(batch, at, box[at.q]), at.window, axis=0)
    mine = np.flatnonzero(target["labels"] == at.label)
    crowd = target.get("iscrowd", np.zeros(len(target["labels"]), dtype=bool))
    objects = [overlap_with(box, at.q, target["boxes"][o], bool(crowd[o]), protocol.pixel_offset) for o in mine]
    others = [overlap_with(box, at.q, other, False, 0.0) for other in windows]
    found: list[float] = []
    for o in others if options.nms_threshold is not None else []:
        found += roots(excess(o, options.nms_threshold or 0.0), o.bends, low, high)
    for i, o in enumerate(objects):
        found += roots(excess(o, threshold), o.bends, low, high)
        for p in objects[:i]:
            found += roots(lead(o, p), [*o.bends, *p.bends], low, high)
    return found


def excess(o: Overlap, threshold: float) -> Function:
    """Positive where the overlap is above the threshold."""
    return lambda y: o.top(y) - threshold * o.bottom(y)


def lead(o: Overlap, p: Overlap) -> Function:
    """Positive where the first overlap is the larger."""
    return lambda y: o.top(y) * p.bottom(y) - p.top(y) * o.bottom(y)


def nearest_steps(batch: Batch, options: Options, threshold: float, at: Coordinate, reach: float) -> NearestSteps:
    """Walk away from the coordinate on both sides until the AP between two places is another."""
    box = own_box(batch, at)
    x, side = float(box[at.q]), float(box[at.q % 2 + 2] - box[at.q % 2])
    opposite, same = float(box[(at.q + 2) % 4]), ONE_PLACE * side
    low, high = x - min(reach * side, FAR), x + min(reach * side, FAR)
    low, high = (low, min(high, opposite)) if at.q < 2 else (max(low, opposite), high)
    places = [y for y in places_of(batch, options, threshold, at, low, high) if low + same < y < high - same]
    curve = curve_of(batch, options, threshold, at)
    up = first_change(curve, x, [y for y in places if y >= x - same], high, same)
    down = first_change(curve, x, [y for y in places if y <= x + same], low, same)
    return NearestSteps(curve(x), *up, *down)


def first_change(
    curve: Callable[[float], AP], x: float, places: Sequence[float], end: float, same: float
) -> tuple[float, AP]:
    """The nearest place beyond which the AP is not that at x, and the AP there."""
    here, away = curve(x), math.copysign(1.0, end - x)
    distances = sorted(max(0.0, (y - x) * away) for y in places)
    apart = [d for d, before in zip(distances, [-math.inf, *distances], strict=False) if d - before > same]
    apart = [0.0 if d <= same else d for d in apart]
    for d, further in zip(apart, [*apart, abs(end - x)][1:], strict=True):
        value = curve(x + away * (d + further) / 2)
        if not value.equals(here):
            return x + away * d, value
    return away * math.inf, here


class Taken(NamedTuple):
    """How a slope is taken; lengths in sides of the box."""

    estimator: str = "mee"
    radius: float = 0.1
    min_step: float = 0.02
    reach: float = 0.5


def slope(batch: Batch, options: Options, threshold: float, at: Coordinate, how: Taken) -> float:
    """The pseudo partial derivative of one class's AP at one threshold."""
    box = own_box(batch, at)
    x, side = float(box[at.q]), float(box[at.q % 2 + 2] - box[at.q % 2])
    if how.estimator == "radius":
        return float(estimators.radius(curve_of(batch, options, threshold, at), x, how.radius * side))
    steps = nearest_steps(batch, options, threshold, at, how.reach)
    least = how.min_step * side
    both = math.isfinite(steps.up_at) and math.isfinite(steps.down_at)
    if how.estimator == "sde" or not both:
        return float(estimators.sde(x, steps, least))
    width = steps.up_at - steps.down_at
    return float(estimators.difference(steps.up_value.exact - steps.down_value.exact, width or least, 0.0) / 2)


def box_gradient(batch: Batch, options: Options, how: Taken) -> list[Array]:
    """dmAP / dboxes, shaped like the boxes: the mean over classes and thresholds."""
    gradient = [np.zeros(boxes.shape) for boxes in batch.boxes]
    counted = counted_classes(batch, options)
    share = Fraction(1, max(len(counted), 1) * len(options.thresholds()))
    for i, b, c in batch.windows():
        for q in range(4 if c in counted else 0):
            slopes = [slope(batch, options, t, Coordinate(i, b, c, q), how) for t in options.thresholds()]
            own = gradient[i][b] if gradient[i].ndim == 2 else gradient[i][b, c]
            own[q] += float(math.fsum(slopes) * share)
    return gradient
