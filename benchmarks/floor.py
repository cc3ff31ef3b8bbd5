"""The physical floor: what any loss of this kind must at least do, as fast as this machine does it.

Nobody ranks N x K scores without sorting them, and nobody knows what NMS does without looking once at every pair of
overlapping windows in every class. Finding those pairs, matching, AP and the steps themselves come for free here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.ops import box_iou

from benchmarks.scenes import Scene


def floor_cases(scene: Scene, threads: int, threshold: float = 0.3) -> dict[str, Callable[[], object]]:
    """The two stable sorts at hand (the faster one counts) and the sweep over pairs."""
    columns = torch.cat(scene.scores).T.contiguous()  # (K, N)
    array = columns.numpy()
    first, second = overlapping_pairs(scene, threshold)
    beaten = np.zeros(array.shape, dtype=np.bool_)
    pool = ThreadPoolExecutor(threads)

    def numpy_sort() -> object:
        return list(pool.map(lambda column: np.argsort(-column, kind="stable"), array))

    def sweep() -> object:
        return list(pool.map(lambda k: _sweep(array[k], first, second, beaten[k]), range(len(array))))

    def torch_sort() -> object:
        return torch.sort(columns, dim=1, descending=True, stable=True)

    return {"floor: torch.sort": torch_sort, "floor: numpy.argsort": numpy_sort, "floor: pair sweep": sweep}


def overlapping_pairs(scene: Scene, threshold: float) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Every unordered pair of windows of one image with IoU above the threshold, as rows of the whole batch."""
    firsts, seconds, start = [], [], 0
    for boxes in scene.boxes:
        pairs = torch.triu(box_iou(boxes, boxes) > threshold, diagonal=1).nonzero() + start
        firsts.append(pairs[:, 0])
        seconds.append(pairs[:, 1])
        start += len(boxes)
    return torch.cat(firsts).int().numpy(), torch.cat(seconds).int().numpy()


@numba.njit(nogil=True, cache=True)
def _sweep(
    scores: NDArray[np.float32], first: NDArray[np.int32], second: NDArray[np.int32], beaten: NDArray[np.bool_]
) -> None:
    """Mark the lower-scored window of every pair."""
    for pair in range(len(first)):
        a, b = first[pair], second[pair]
        if scores[b] > scores[a]:
            beaten[a] = True
        else:
            beaten[b] = True
