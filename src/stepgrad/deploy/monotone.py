"""Strictly rising maps from scores to probabilities: by isotonic regression, or with two parameters where objects are few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SLOPE = 1e-3
"""The least slope of a map: a thousandth of the score is mixed in, so that a plateau keeps the order of its scores."""
GRID = 128
"""Pieces of a map with two parameters."""
_BINS = 1000  # that isotonic regression begins with; it joins most of them
_EDGE = 1e-6  # scores nearer to 0 or 1 count as this far away in logarithms
_STEPS = 60  # of Newton's method, which takes about six


@dataclass(frozen=True, eq=False)
class RisingMap:
    """Straight lines between points (x, y), both rising from 0 or more to 1 or less; x begins at 0 and ends at 1."""

    x: Floats
    y: Floats

    def __call__(self, scores: Floats) -> Floats:
        """The probabilities of scores in [0, 1].

        Each operation rounds in a way that never turns the order of two scores; they stay apart if they differ by more than
        the rounding of y (2e-16) over the least slope.
        """
        piece = np.clip(np.searchsorted(self.x, scores, side="right") - 1, 0, len(self.x) - 2)
        line = self.y[piece] + (scores - self.x[piece]) * self.slopes[piece]
        return np.asarray(np.minimum(line, self.y[piece + 1]))

    @property
    def slopes(self) -> Floats:
        return np.diff(self.y) / np.diff(self.x)


def strictly(x: Floats, y: Floats) -> RisingMap:
    """The map through points of which y never falls, with a little of the score mixed in."""
    return RisingMap(x, (1 - SLOPE) * np.clip(y, 0.0, 1.0) + SLOPE * x)


def isotonic(scores: Floats, hits: NDArray[np.bool_]) -> RisingMap:
    """Straight lines through the middles of the blocks of isotonic regression.

    >>> round(float(isotonic(np.array([0.2, 0.4, 0.8]), np.array([False, True, True]))(np.array([0.8]))[0]), 2)
    1.0
    """
    order = np.argsort(scores, kind="stable")
    parts = np.array_split(order, min(len(order), _BINS))
    weights = np.array([len(part) for part in parts], dtype=np.float64)
    centres = np.array([scores[part].mean() for part in parts])
    shares = np.array([hits[part].mean() for part in parts])
    blocks = pool_violators(shares, weights)
    total = np.bincount(blocks, weights)
    x = np.bincount(blocks, weights * centres) / total
    y = np.bincount(blocks, weights * shares) / total
    inside = (x > 0.0) & (x < 1.0)
    x, y = x[inside], y[inside]
    x, first = np.unique(x, return_index=True)
    y = np.maximum.accumulate(y[first])
    ends = (y[0], y[-1]) if len(y) else (float(hits.mean()),) * 2
    return strictly(np.concatenate([[0.0], x, [1.0]]), np.concatenate([ends[:1], y, ends[1:]]))


def pool_violators(values: Floats, weights: Floats) -> NDArray[np.int64]:
    """The block of each value in the nearest sequence that never falls (pool adjacent violators).

    >>> pool_violators(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4)).tolist()
    [0, 1, 1, 2]
    """
    means: list[float] = []
    sizes: list[float] = []
    counts: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        means.append(value)
        sizes.append(weight)
        counts.append(1)
        while len(means) > 1 and means[-2] >= means[-1]:
            mean, size, count = means.pop(), sizes.pop(), counts.pop()
            joined = sizes[-1] + size
            means[-1] = (means[-1] * sizes[-1] + mean * size) / joined
            sizes[-1] = joined
            counts[-1] += count
    return np.repeat(np.arange(len(counts)), counts)


def two_parameters(scores: Floats, hits: NDArray[np.bool_], squash: bool = False) -> RisingMap:
    """Platt's map: the log odds of a hit are a line in those of the score, by a likelihood of slightly softened labels.

    Scores that were squashed into [0, 1] are log odds, or like them, as they were before.
    """
    odds_of = unsquashed if squash else _log_odds
    good, bad = int(np.count_nonzero(hits)), int(np.count_nonzero(~hits))
    labels = np.where(hits, (good + 1) / (good + 2), 1 / (bad + 2))
    slope, shift = _line(odds_of(scores), labels)
    x = np.linspace(0.0, 1.0, GRID + 1) ** (1 if squash else 2)  # finer where most scores are
    return strictly(x, _share(slope * odds_of(x) + shift))


def squashed(scores: Floats) -> Floats:
    """Any numbers in [0, 1], by a map that rises everywhere.

    >>> squashed(np.array([-3.0, 0.0, 1.0])).tolist(), unsquashed(np.array([0.125, 0.5, 0.75])).tolist()
    ([0.125, 0.5, 0.75], [-3.0, 0.0, 1.0])
    """
    return np.asarray(0.5 + 0.5 * scores / (1.0 + np.abs(scores)))


def unsquashed(shares: Floats) -> Floats:
    """The inverse of `squashed`."""
    doubled = 2 * np.clip(shares, _EDGE, 1 - _EDGE) - 1
    return np.asarray(doubled / (1 - np.abs(doubled)))


def _line(odds: Floats, labels: Floats) -> tuple[float, float]:
    """Slope and shift of greatest likelihood, by Newton's method; a slope that would fall is 0."""
    columns = np.stack([odds, np.ones(len(odds))], axis=1)
    found = np.array([1.0, 0.0])
    for _ in range(_STEPS):
        p = _share(columns @ found)
        # The pull towards (1, 0) of about one detection keeps one that is all right, or all wrong, from infinity.
        pull = found - np.array([1.0, 0.0])
        gradient = columns.T @ (p - labels) + pull
        bend = (columns * (p * (1 - p))[:, None]).T @ columns + np.eye(2)
        step = np.linalg.solve(bend, gradient)
        found = found - step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-10:
            break
    if found[0] > 0:
        return float(found[0]), float(found[1])
    share = float(np.clip(labels.mean(), _EDGE, 1 - _EDGE))
    return 0.0, float(np.log(share / (1 - share)))


def _share(odds: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(odds, -40, 40))))


def _log_odds(scores: Floats) -> Floats:
    inside = np.clip(scores, _EDGE, 1 - _EDGE)
    return np.asarray(np.log(inside / (1 - inside)))
