"""Gradients through NMS with the two approximations of Henderson & Ferrari (2016, Sec. 4.4), read literally."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from stepgrad.reference.average_precision import AP, average_precision
from stepgrad.reference.class_ap import ClassScene, Scores, judged_detections, kept_windows, ranks_of_true_positives
from stepgrad.reference.estimators import difference, sde
from stepgrad.reference.matching import TRUE, best_object
from stepgrad.reference.nms import greedy
from stepgrad.reference.steps import NearestSteps, step_function

PPDs = list[list[Fraction | None]]  # one list per image; None where the definition has nothing to say


@dataclass(frozen=True)
class PaperMode:
    """One class, its scores, and the options that the approximations need."""

    scene: ClassScene
    scores: Scores
    estimator: str = "mee"
    min_step: float = 0.0

    def ppds(self) -> PPDs:
        """Pass (i) for every window, then (ii) and (iii) for the windows of missed objects."""
        gradient: PPDs = []
        for i, scores in enumerate(self.scores):
            suppressor = greedy(scores, self.scene.images[i].neighbours)[1]
            pushes = [Fraction(0)] * len(scores)
            for b, d, c in self.missed(i, suppressor):
                pushes[b] += c
                pushes[d] -= c
            owners = [b if d < 0 else d for b, d in enumerate(suppressor)]
            own = [self.estimate(scores[b], self.inherited_steps(i, b, d)) for b, d in enumerate(owners)]
            gradient.append([None if e is None else e + p for e, p in zip(own, pushes, strict=True)])
        return gradient

    def inherited_steps(self, i: int, b: int, d: int) -> NearestSteps:
        """(i) the steps of the kept window d; its down-step only for a score above that step."""
        steps = step_function(self.scene, self.scores, i, d, fixed_kept=True).nearest_steps()
        if b != d and self.scores[i][b] <= steps.down_at:
            return steps._replace(down_at=-math.inf, down_value=steps.value)
        return steps

    def estimate(self, x: float, steps: NearestSteps) -> Fraction | None:
        """The closed forms: a borrowed step need not belong to any step function of x."""
        one_sided = steps.up_at == math.inf or steps.down_at == -math.inf
        if self.estimator == "sde" or one_sided:
            return sde(x, steps, self.min_step)
        if steps.up_at == steps.down_at:
            return None
        return difference(steps.up_value.exact - steps.down_value.exact, steps.up_at - steps.down_at, 0.0) / 2

    def missed(self, i: int, suppressor: list[int]) -> list[tuple[int, int, Fraction]]:
        """(ii), (iii): (window, its suppressor, c) for the suppressed windows of objects that no detection maps to."""
        objects = self.scene.images[i].objects
        protocol = self.scene.protocol
        last = protocol.last_of_equal_overlaps if protocol.duplicates == "best" else False
        wants = [best_object(o, self.scene.threshold, protocol.equality, last) for o in objects.overlaps]
        judged = judged_detections(self.scene, self.scores, kept_windows(self.scene, self.scores))
        found = {
            wants[b] for j, b, _ in judged if j == i
        }  # not by a kept window beyond the limit, which is no detection
        entries = []
        for b, d in enumerate(suppressor):
            o = wants[b]
            if d < 0 or o is None or o in found or objects.ignored[o]:
                continue
            before, after = self.ap_with_true_positive_at(None), self.ap_with_true_positive_at((i, d))
            gap = self.scores[i][d] - self.scores[i][b]
            entries.append((b, d, difference(after.exact - before.exact, gap, self.min_step) / 2))
        return entries

    def ap_with_true_positive_at(self, place: tuple[int, int] | None) -> AP:
        """AP when the detection at `place` (image, window) gives way to a true positive; as it is for None."""
        judged = judged_detections(self.scene, self.scores, kept_windows(self.scene, self.scores))
        verdicts = [TRUE if (i, b) == place else verdict for i, b, verdict in judged]
        return average_precision(ranks_of_true_positives(verdicts), self.scene.P, self.scene.protocol)
