"""The paper's two estimators at one point, in float64 (Henderson & Ferrari 2016, Sec. 4.3); see `stepgrad.steps.estimators`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.jit import inlined, kernel
from stepgrad.kernels.nms_steps import StepSums

_TINY = float(np.finfo(np.float64).tiny)
_HUGE = float(np.finfo(np.float64).max)


@inlined
def _slope(rise: float, run: float) -> float:
    """rise / run, never inf or nan; 0 where the run is infinite or zero."""
    if not (0.0 < run < np.inf):
        return 0.0
    return min(max(rise / max(run, _TINY), -_HUGE), _HUGE)


@inlined
def sde_at(x: float, f: float, up_at: float, up_f: float, down_at: float, down_f: float, min_step: float) -> float:
    """The symmetric difference estimator at one point; see `sde`."""
    return 0.5 * _slope(up_f - f, max(up_at - x, min_step)) + 0.5 * _slope(f - down_f, max(x - down_at, min_step))


@inlined
def mee_at(x: float, f: float, up_at: float, up_f: float, down_at: float, down_f: float, min_step: float) -> float:
    """The mean envelope estimator at one point; see `mee`."""
    if np.isinf(up_at) or np.isinf(down_at):
        return sde_at(x, f, up_at, up_f, down_at, down_f, min_step)
    width = up_at - down_at  # zero if x is tied on both sides: then only the bound can give it a length
    return 0.5 * _slope(up_f - down_f, width if width > 0.0 else min_step)


@kernel
def each_sde(columns: NDArray[np.float64], min_step: float) -> NDArray[np.float64]:
    out = np.empty(columns.shape[1])
    for i in range(len(out)):
        x, f, up_at, up_f, down_at, down_f = columns[:, i]
        out[i] = sde_at(x, f, up_at, up_f, down_at, down_f, min_step)
    return out


@kernel
def each_mee(columns: NDArray[np.float64], min_step: float) -> NDArray[np.float64]:
    out = np.empty(columns.shape[1])
    for i in range(len(out)):
        x, f, up_at, up_f, down_at, down_f = columns[:, i]
        out[i] = mee_at(x, f, up_at, up_f, down_at, down_f, min_step)
    return out


@kernel
def add_estimates(
    out: NDArray[np.float64],
    slot_of: NDArray[np.int32],
    scores: NDArray[np.float64],
    steps: StepSums,
    t: int,
    norm: float,
    symmetric: bool,
    min_step: float,
) -> None:
    """out[window] += the estimates from the window's nearest steps at threshold t, SDE if `symmetric`, else MEE."""
    value = steps.present[t] / norm
    for window in range(len(out)):
        s = slot_of[window]
        up, down = steps.up_sum[t, s] / norm, steps.down_sum[t, s] / norm
        up_at, down_at = steps.up_at[t, s], steps.down_at[t, s]
        if up_at == np.inf and down_at == -np.inf:  # most windows have no steps
            continue
        if symmetric:
            out[window] += sde_at(scores[s], value, up_at, up, down_at, down, min_step)
        else:
            out[window] += mee_at(scores[s], value, up_at, up, down_at, down, min_step)
