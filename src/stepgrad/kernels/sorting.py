"""Stable descending order of scores by radix sort: equal scores keep the order of their indices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.jit import kernel

_BITS = 11
_BUCKETS = 1 << _BITS


@kernel
def _counts_to_starts(counts: NDArray[np.int64]) -> None:
    """In place: how many keys lie in the buckets before each."""
    start = 0
    for bucket in range(len(counts)):
        count = counts[bucket]
        counts[bucket] = start
        start += count


@kernel
def _radix_order(keys: NDArray[np.uint64], digits: int) -> NDArray[np.int32]:
    """Indices that sort `keys` ascending and stably; only the lowest `digits` digits of 11 bits are looked at."""
    n = len(keys)
    counts = np.zeros((digits, _BUCKETS), dtype=np.int64)
    mask = np.uint64(_BUCKETS - 1)
    for i in range(n):
        for d in range(digits):
            counts[d, (keys[i] >> np.uint64(_BITS * d)) & mask] += 1
    order = np.empty(n, dtype=np.int32)
    other = np.empty(n, dtype=np.int32)
    for i in range(n):
        order[i] = i
    for d in range(digits):
        shift = np.uint64(_BITS * d)
        if n > 0 and counts[d, (keys[0] >> shift) & mask] == n:
            continue  # this digit is the same everywhere
        _counts_to_starts(counts[d])
        for i in range(n):
            index = order[i]
            bucket = (keys[index] >> shift) & mask
            other[counts[d, bucket]] = index
            counts[d, bucket] += 1
        order, other = other, order
    return order


@kernel
def _order_of_singles(bits: NDArray[np.uint32]) -> NDArray[np.int32]:
    """The same for float32 bit patterns: key and index travel together in one word, so that nothing is looked up."""
    n = len(bits)
    counts = np.zeros((3, _BUCKETS), dtype=np.int64)
    mask = np.uint64(_BUCKETS - 1)
    pairs = np.empty(n, dtype=np.uint64)
    other = np.empty(n, dtype=np.uint64)
    for i in range(n):
        key = np.uint64(bits[i] if bits[i] & np.uint32(0x80000000) else ~bits[i] ^ np.uint32(0x80000000))
        pairs[i] = key << np.uint64(32) | np.uint64(i)
        for d in range(3):
            counts[d, (key >> np.uint64(_BITS * d)) & mask] += 1
    for d in range(3):
        shift = np.uint64(32 + _BITS * d)
        if n > 0 and counts[d, (pairs[0] >> shift) & mask] == n:
            continue  # this digit is the same everywhere
        _counts_to_starts(counts[d])
        for i in range(n):
            bucket = (pairs[i] >> shift) & mask
            other[counts[d, bucket]] = pairs[i]
            counts[d, bucket] += 1
        pairs, other = other, pairs
    order = np.empty(n, dtype=np.int32)
    for i in range(n):
        order[i] = pairs[i] & np.uint64(0xFFFFFFFF)
    return order


@kernel
def _descending_keys(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """IEEE bit patterns to unsigned integers whose ascending order is the descending order of the numbers."""
    keys = np.empty(len(bits), dtype=np.uint64)
    sign = np.uint64(1) << np.uint64(63)
    for i in range(len(bits)):
        keys[i] = bits[i] if bits[i] & sign else ~bits[i] ^ sign
    return keys


def descending_order(scores: NDArray[np.floating]) -> NDArray[np.int32]:
    """Window indices by decreasing score, ties by increasing index.

    >>> descending_order(np.array([0.5, 2.0, 0.5, -1.0])).tolist()
    [1, 0, 2, 3]
    """
    if scores.dtype == np.float32:
        return _order_of_singles((scores + np.float32(0.0)).view(np.uint32))  # adding zero makes -0.0 equal 0.0
    bits = (np.ascontiguousarray(scores, dtype=np.float64) + 0.0).view(np.uint64)
    return _radix_order(_descending_keys(bits), 6)
