"""The similarity of poses (OKS) of many pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel

_SLACK = 1e-8  # far more than sums of some dozens of numbers below 1 can be off
_TINY = 2.0**-52  # added to areas, so that none is 0 (COCO)


@kernel
def similarities(
    windows: NDArray[np.float64],
    objects: NDArray[np.float64],
    boxes: NDArray[np.float64],
    areas: NDArray[np.float64],
    scale: NDArray[np.float64],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    least: float,
) -> NDArray[np.float64]:
    """(M,) OKS of window rows[m] and object columns[m], which have points (n, k, 3) each; what cannot reach `least` gets 0.

    Args:
        windows: (N, k, 3) x, y, visibility.
        objects: (G, k, 3).
        boxes: (G, 4) around the objects.
        areas: (G,) of the objects.
        scale: (k,) squares of the sigmas, doubled before.
    """
    k = len(scale)
    found = np.zeros(len(rows))
    exponent = np.empty(k)
    bound = np.empty(k)
    for m in range(len(rows)):
        window, target = windows[rows[m]], objects[columns[m]]
        area = areas[columns[m]] + _TINY
        labelled = 0
        for p in range(k):
            labelled += target[p, 2] > 0.0
        for p in range(k):
            dx = window[p, 0] - target[p, 0]
            dy = window[p, 1] - target[p, 1]
            exponent[p] = (dx * dx + dy * dy) / scale[p] / area / 2.0
        if labelled == 0:
            _outside(window, boxes[columns[m]], scale, area, exponent)
        # exp(-e) is at most 1 / (1 + e), which is cheaper, and for poses far apart small enough to end here.
        for p in range(k):
            bound[p] = 1.0 / (1.0 + exponent[p])
        highest = 0.0
        counted = labelled if labelled > 0 else k
        for p in range(k):
            if labelled == 0 or target[p, 2] > 0.0:
                highest += bound[p]
        if highest < (least - _SLACK) * counted:
            continue
        total = 0.0
        for p in range(k):
            if labelled == 0 or target[p, 2] > 0.0:
                total += np.exp(-exponent[p])
        found[m] = total / counted
    return found


@kernel
def _outside(
    window: NDArray[np.float64],
    box: NDArray[np.float64],
    scale: NDArray[np.float64],
    area: float,
    exponent: NDArray[np.float64],
) -> None:
    """Exponents for an object without labelled points (COCO): how far points lie outside its box, doubled to every side."""
    width, height = box[2] - box[0], box[3] - box[1]
    for p in range(len(scale)):
        dx = max(0.0, (box[0] - width) - window[p, 0]) + max(0.0, window[p, 0] - (box[0] + width * 2.0))
        dy = max(0.0, (box[1] - height) - window[p, 1]) + max(0.0, window[p, 1] - (box[1] + height * 2.0))
        exponent[p] = (dx * dx + dy * dy) / scale[p] / area / 2.0
