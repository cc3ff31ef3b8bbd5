"""The nearest steps of one score for larger scenes: two runs of NMS, then one insertion at a time.

Greedy NMS has two outcomes as the score of b moves: below theta b is suppressed and the rest is NMS without b; above
theta b is kept and the rest is NMS with b first. So only theta and the scores kept with b can be steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from stepgrad.reference.average_precision import AP, average_precision
from stepgrad.reference.class_ap import ClassScene, Scores, judged_detections, kept_windows
from stepgrad.reference.matching import IGNORED, TRUE, match
from stepgrad.reference.nms import greedy
from stepgrad.reference.steps import Curve, NearestSteps

Place = tuple[float, int, int]  # (-score, image, window): sorts detections into their global order


@dataclass
class Insertion:
    """Nearest steps of single scores of one class; what does not depend on the moving score is computed once."""

    scene: ClassScene
    scores: Scores
    judged: list[tuple[Place, str]] = field(init=False)

    def __post_init__(self) -> None:
        kept = kept_windows(self.scene, self.scores)
        self.judged = [((-self.scores[i][b], i, b), v) for i, b, v in judged_detections(self.scene, self.scores, kept)]

    def nearest_steps(self, i: int, b: int) -> NearestSteps:
        """Walk outward from x through the gaps between breakpoints until AP changes."""
        x = self.scores[i][b]
        low, high, theta = self.two_outcomes(i, b)
        others = [(p, v) for p, v in self.judged if p[1] != i]

        def value(y: float) -> AP:
            return self.ap(i, b, y, high if y > theta else low, others)

        breakpoints = sorted({-p[0] for p, _ in others} | {self.scores[i][c] for c in high if c != b} | {theta})
        breakpoints = [y for y in breakpoints if theta <= y and y != -math.inf]
        here = self.ap(i, b, x, greedy(self.scores[i], self.scene.images[i].neighbours)[0], others)
        up = self.first_change(here, [y for y in breakpoints if y >= x], +1, breakpoints, value)
        down = self.first_change(here, [y for y in reversed(breakpoints) if y <= x], -1, breakpoints, value)
        return NearestSteps(here, *up, *down)

    def first_change(
        self, here: AP, walk: list[float], direction: int, breakpoints: list[float], value: Curve
    ) -> tuple[float, AP]:
        """The first breakpoint of the walk beyond which the value differs from `here`."""
        for y in walk:
            beyond = value(just_beyond(y, direction, breakpoints))
            if not beyond.equals(here):
                return y, beyond
        return direction * math.inf, here

    def two_outcomes(self, i: int, b: int) -> tuple[list[int], list[int], float]:
        """Kept windows of image i without b, with b on top, and the score at which one becomes the other."""
        neighbours, scores = self.scene.images[i].neighbours, list(self.scores[i])
        scores[b] = -math.inf
        low = [c for c in greedy(scores, [n - {b} for n in neighbours])[0] if c != b]
        scores[b] = math.inf
        high = greedy(scores, neighbours)[0]
        return low, high, max((self.scores[i][c] for c in low if c in neighbours[b]), default=-math.inf)

    def ap(self, i: int, b: int, y: float, kept: list[int], others: list[tuple[Place, str]]) -> AP:
        """AP with window b of image i at y, `kept` in image i, and the other images as they are."""
        own = list(self.scores[i])
        own[b] = y
        order = [c for _, c in sorted((-own[c], c) for c in kept)][: self.scene.protocol.max_detections]
        verdicts = match(order, self.scene.images[i].objects, self.scene.protocol, self.scene.threshold)
        counted = [p for p, v in others if v != IGNORED]
        hits = [p for p, v in others if v == TRUE]
        for c, verdict in zip(order, verdicts, strict=True):
            if verdict != IGNORED:
                insort(counted, (-own[c], i, c))
            if verdict == TRUE:
                insort(hits, (-own[c], i, c))
        ranks = tuple(bisect_left(counted, p) + 1 for p in hits)
        return average_precision(ranks, self.scene.P, self.scene.protocol)


def just_beyond(y: float, direction: int, breakpoints: list[float]) -> float:
    """A point between breakpoint y and the next one in that direction.

    >>> just_beyond(1.0, +1, [1.0, 2.0]), just_beyond(1.0, -1, [1.0, 2.0])
    (1.5, -1.0)
    """
    j = breakpoints.index(y) + direction
    if 0 <= j < len(breakpoints):
        return y + (breakpoints[j] - y) / 2
    return y + direction * max(2.0, abs(y))
