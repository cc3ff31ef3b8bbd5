"""Fewer points, the same look."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MOST_POINTS = 200


def thin(x: Floats, y: Floats, most: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """At most `most` of the points of a line whose x never falls: those a drawing of it cannot do without.

    First, points inside a vertical or horizontal run go: nothing changes. If that does not suffice, each of most / 4
    columns keeps its first, lowest, highest and last point, so that no peak is lost.

    >>> thin(np.arange(1000.0), np.zeros(1000))
    (array([  0., 999.]), array([0., 0.]))
    """
    kept = _corners_only(x, y)
    x, y = x[kept], y[kept]
    if len(x) > most:
        kept = _extremes(x, y, max(1, most // 4))
        x, y = x[kept], y[kept]
    return x, y


def _corners_only(x: Floats, y: Floats) -> NDArray[np.int64]:
    """Without points that lie between both neighbours on one axis-parallel line."""
    if len(x) < 3:
        return np.arange(len(x))
    upright = (x[:-2] == x[1:-1]) & (x[1:-1] == x[2:]) & (np.sign(y[1:-1] - y[:-2]) == np.sign(y[2:] - y[1:-1]))
    level = (y[:-2] == y[1:-1]) & (y[1:-1] == y[2:])
    return np.flatnonzero(np.concatenate([[True], ~(upright | level), [True]]))


def _extremes(x: Floats, y: Floats, columns: int) -> NDArray[np.int64]:
    """First, lowest, highest and last of each column of equal width."""
    span = x[-1] - x[0]
    column = np.zeros(len(x), dtype=np.int64)
    if span > 0:
        column = np.minimum(((x - x[0]) / span * columns).astype(np.int64), columns - 1)
    starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    kept: set[int] = set()
    for start, stop in zip(starts, np.append(starts[1:], len(x)), strict=True):
        inside = y[start:stop]
        kept |= {int(start), int(start + inside.argmin()), int(start + inside.argmax()), int(stop - 1)}
    return np.array(sorted(kept), dtype=np.int64)


def smooth(values: Floats, share: float = 0.08) -> Floats:
    """A centred moving mean over that share of the points, narrower at both ends.

    >>> smooth(np.array([0.0, 3.0, 0.0]), share=1.0)
    array([0., 1., 0.])
    """
    half = int(len(values) * share / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    reach = np.minimum(np.minimum(at, at[::-1]), half)
    return (sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1)
