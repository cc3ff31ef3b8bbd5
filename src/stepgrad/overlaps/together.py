"""Several images at once: what was handed in put together, and work split among threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.threads import run_threads

Result = TypeVar("Result")


def in_stretches(work: Callable[[tuple[int, int]], Result], count: int, fewest: int = 512) -> list[Result]:
    """work((a, b)) of stretches that together are 0 to count, on torch's number of threads; `fewest` are left to one."""
    threads = min(torch.get_num_threads(), max(1, count // fewest))
    bounds = [count * i // threads for i in range(threads + 1)]
    return run_threads(work, pairwise(bounds), threads)


def put_together(
    entries: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> tuple[Mapping[str, Any], NDArray[np.int64]] | None:
    """Dicts of tensors, or lists, of several images as one, and how many rows each has; None where they do not fit together.

    Dense masks stay apart: putting them together would copy them.
    """
    keys = [key for key in keys if any(isinstance(entry, Mapping) and key in entry for entry in entries)]
    columns: dict[str, list[Any]] = {}
    try:
        for key in keys:
            columns[key] = [entry[key] for entry in entries]
        counts = [[len(part) for part in column] for column in columns.values()]
        if not counts or any(other != counts[0] for other in counts):
            return None
        whole = {key: _put_together(column, key != "masks") for key, column in columns.items()}
    except (KeyError, TypeError, RuntimeError):
        return None
    return None if any(part is None for part in whole.values()) else (whole, np.array(counts[0], dtype=np.int64))


def _put_together(parts: list[Any], tensors: bool) -> Any:
    if all(type(part) is list for part in parts):
        return list(chain.from_iterable(parts))
    filled = [part for part in parts if len(part)]
    fit = tensors and all(isinstance(part, Tensor) and part.dtype == filled[0].dtype for part in filled)
    return torch.cat(filled) if fit and filled else None
