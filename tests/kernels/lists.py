"""Ranked lists from the roles of their windows."""

from __future__ import annotations

import numpy as np

from stepgrad.kernels.matching import ABSENT, FALSE_POSITIVE
from stepgrad.kernels.metric_code import NO_CUT
from stepgrad.kernels.ranked_list import Ranked, rank_detections
from stepgrad.metric.metrics import AP
from tests.scenes import Array


def lists_of(roles: Array, cumulative: Array) -> Ranked:
    """Lists of windows by position, `roles` (t, N) or (N,); every second false positive is taken for a contender too."""
    table = np.atleast_2d(roles).astype(np.int8)
    false, absent = (table == FALSE_POSITIVE).all(axis=0), (table == ABSENT).all(axis=0)
    plain = false & (np.arange(table.shape[1]) % 2 == 0)
    at = np.flatnonzero(~plain & ~absent).astype(np.int32)
    metric = AP().code(len(cumulative) - 1, 1, NO_CUT)
    return rank_detections(plain, at, np.ascontiguousarray(table[:, at]), cumulative, metric, NO_CUT)
