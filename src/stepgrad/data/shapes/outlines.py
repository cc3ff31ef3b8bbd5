"""The outlines: six classes and their unlabelled look-alikes, as inside tests of a point.

Every outline fits the square [-1, 1] x [-1, 1]. Only +, -, * and comparisons are used: the same masks everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Coordinates = NDArray[np.float64]
Mask = NDArray[np.bool_]
Outline = Callable[[Coordinates, Coordinates], Mask]

Directions = tuple[tuple[float, float], ...]

# Unit vectors a fifth and a third of a turn apart, rounded: literals are the same on every machine.
FIVE: Directions = (
    (0.0, 1.0),
    (-0.951057, 0.309017),
    (-0.587785, -0.809017),
    (0.587785, -0.809017),
    (0.951057, 0.309017),
)
THREE: Directions = ((0.0, 1.0), (-0.866025, -0.5), (0.866025, -0.5))


def _half_planes(u: Coordinates, v: Coordinates, directions: Directions, distance: float) -> NDArray[np.int32]:
    """For each point, how many of the half-planes {p . d <= distance} hold it."""
    count = np.zeros(u.shape, dtype=np.int32)
    for x, y in directions:
        count += x * u + y * v <= distance
    return count


def disk(u: Coordinates, v: Coordinates) -> Mask:
    return u * u + v * v <= 1.0


def ring(u: Coordinates, v: Coordinates) -> Mask:
    radius2 = u * u + v * v
    return (radius2 <= 1.0) & (radius2 >= 0.3)


def square(u: Coordinates, v: Coordinates) -> Mask:
    return (abs(u) <= 0.8) & (abs(v) <= 0.8)


def triangle(u: Coordinates, v: Coordinates) -> Mask:
    return _half_planes(u, v, THREE, 0.5) == 3


def cross(u: Coordinates, v: Coordinates) -> Mask:
    x, y = abs(u), abs(v)
    return ((x <= 0.32) & (y <= 0.95)) | ((y <= 0.32) & (x <= 0.95))


def star(u: Coordinates, v: Coordinates) -> Mask:
    return _half_planes(u, v, FIVE, 0.309017) >= 4


def ellipse(u: Coordinates, v: Coordinates) -> Mask:
    """Nearly a disk."""
    return u * u + 3.2 * v * v <= 1.0


def horseshoe(u: Coordinates, v: Coordinates) -> Mask:
    """Nearly a ring: a part is missing."""
    return ring(u, v) & ~((u > 0) & (abs(v) < 0.38))


def rectangle(u: Coordinates, v: Coordinates) -> Mask:
    """Nearly a square."""
    return (abs(u) <= 0.95) & (abs(v) <= 0.5)


def trapezium(u: Coordinates, v: Coordinates) -> Mask:
    """Nearly a triangle: the tip is missing."""
    return triangle(u, v) & (v > -0.35)


def tee(u: Coordinates, v: Coordinates) -> Mask:
    """Nearly a cross: an arm is missing."""
    return cross(u, v) & (v > -0.32)


def four_pointed_star(u: Coordinates, v: Coordinates) -> Mask:
    """Nearly a star."""
    x, y = abs(u), abs(v)
    return (x + 3.0 * y <= 1.0) | (3.0 * x + y <= 1.0)


def pentagon(u: Coordinates, v: Coordinates) -> Mask:
    """Nearly a disk, too."""
    return _half_planes(u, v, FIVE, 0.809017) == 5


def bar(u: Coordinates, v: Coordinates) -> Mask:
    """Clutter and occluders."""
    return (abs(u) <= 1.0) & (abs(v) <= 0.16)


CLASSES: dict[str, Outline] = {shape.__name__: shape for shape in (disk, ring, square, triangle, cross, star)}
LOOK_ALIKES: tuple[Outline, ...] = (ellipse, horseshoe, rectangle, trapezium, tee, four_pointed_star, pentagon)
