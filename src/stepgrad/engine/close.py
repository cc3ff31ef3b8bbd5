"""Which shapes of the same image are close enough to be compared.

Masks and polygons are costly to compare, and most pairs of a window and an object have nothing in common. Boxes around the shapes
say so without a look at them; and where only overlaps from a threshold on count, boxes and areas rule out most of the rest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel

_SLACK = 1e-9  # share of both areas by which rounding can make an overlap larger than boxes and areas allow


@kernel
def close_pairs(
    boxes: NDArray[np.float64],
    areas: NDArray[np.float64],
    offsets: NDArray[np.int64],
    others: NDArray[np.float64],
    other_areas: NDArray[np.float64],
    other_offsets: NDArray[np.int64],
    crowd: NDArray[np.bool_],
    least: float,
    among_themselves: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of shapes and of others of the same image whose boxes share area, shape after shape; with `least` above 0, those
    whose IoU (of a crowd: share of the shape) can be as large.

    Args:
        boxes: (n, 4) around shapes, image after image.
        areas: (n,) of the shapes, not of the boxes.
        offsets: (images + 1,) first shape of each image.
        others: (m, 4) around what they are compared with; other_areas and other_offsets likewise.
        crowd: (m,) others that stand for many objects.
        least: overlaps below it do not count.
        among_themselves: the others are the shapes: each pair once, the lower row first.
    """
    room = 1024
    rows = np.empty(room, dtype=np.int64)
    columns = np.empty(room, dtype=np.int64)
    filled = 0
    for image in range(len(offsets) - 1):
        last = other_offsets[image + 1]
        for i in range(offsets[image], offsets[image + 1]):
            first = i + 1 if among_themselves else other_offsets[image]
            # Room for all of the image, so that the inner loop never has to ask.
            if filled + last - first > room:
                room = 2 * (filled + last - first)
                rows = _longer(rows, filled, room)
                columns = _longer(columns, filled, room)
            x1, y1, x2, y2 = boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3]
            area = areas[i]
            for j in range(first, last):
                width = min(x2, others[j, 2]) - max(x1, others[j, 0])
                height = min(y2, others[j, 3]) - max(y1, others[j, 1])
                if width <= 0.0 or height <= 0.0:
                    continue
                if least > 0.0:
                    # Shapes share no more than their boxes do, and no more than the smaller one has.
                    shared = min(width * height, area, other_areas[j])
                    both = area if crowd[j] else area + other_areas[j]
                    whole = area if crowd[j] else both - shared
                    if shared + _SLACK * both < least * whole:
                        continue
                rows[filled] = i
                columns[filled] = j
                filled += 1
    return rows[:filled].copy(), columns[:filled].copy()


@kernel
def _longer(rows: NDArray[np.int64], filled: int, room: int) -> NDArray[np.int64]:
    """The first numbers of an array in a longer one."""
    longer = np.empty(room, dtype=np.int64)
    longer[:filled] = rows[:filled]
    return longer
