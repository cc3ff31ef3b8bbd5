"""What a class is worth at each match threshold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.class_view import ClassView
from stepgrad.kernels.matching import TRUE_POSITIVE, Rules
from stepgrad.kernels.metric_code import NO_CUT
from stepgrad.kernels.roles import roles_of_class, sums_of_class
from stepgrad.metric.arrange import Arrangement


def class_average_precisions(view: ClassView, rules: Rules) -> list[float]:
    """AP of one class at each threshold, or another metric the kernels know; 0 if it has no countable object."""
    if view.P == 0:
        return [0.0] * len(rules.thresholds)
    return [float(value) for value in sums_of_class(view, rules) / view.norm]


def class_values(arrangement: Arrangement, view: ClassView) -> list[float]:
    """The metric of one class at each threshold; 0 if it has no countable object and needs one."""
    metric, rules = arrangement.metric, arrangement.rules
    if metric.is_compiled and metric.needs_objects:
        return class_average_precisions(view, rules)
    if view.P == 0 and metric.needs_objects:
        return [0.0] * len(rules.thresholds)
    images = arrangement.batch.images - arrangement.cuts
    return [metric.of_list(hits, view.P, images, arrangement.protocol) for hits in ranked_hits(view, rules)]


def ranked_hits(view: ClassView, rules: Rules) -> list[NDArray[np.bool_]]:
    """At each threshold, whether each counted detection is a true positive, by decreasing score, down to the cut if any."""
    roles = roles_of_class(view, rules)
    if view.metric.cut != NO_CUT:
        roles = roles[:, : view.position[view.metric.cut]]
    return [row[row <= TRUE_POSITIVE] == TRUE_POSITIVE for row in roles]
