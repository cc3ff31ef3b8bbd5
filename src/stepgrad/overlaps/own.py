"""A likeness of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepgrad.errors import ConfigError, InputError
from stepgrad.overlaps.base import Flags, Floats, Overlap, Rows, Target
from stepgrad.plain_tensors import tensor_of


class Own(Overlap):
    """A likeness of your own: `function(windows, target)` gives the (N, G) table of one image.

    Windows are what the loss gets as boxes, or as `shapes`; `target` is the image's dict. Values lie in [0, 1]; for crowds they
    are the share of the window that the region covers.

    >>> same_colour = Own(lambda colours, target: colours[:, None] == target["colours"][None])
    >>> same_colour(torch.tensor([1, 2]), {"colours": torch.tensor([2])}).tolist()
    [[0.0], [1.0]]
    """

    key = "shapes"

    def __init__(self, function: Callable[[Any, Target], Any], nms: str = "boxes") -> None:
        if nms != "boxes":
            raise ConfigError("Expected nms='boxes' for an overlap of your own; pass neighbours= for another NMS.")
        super().__init__(nms)
        self.function = function

    def windows(self, given: Any, where: str) -> Any:
        return given

    def objects(self, target: Target, where: str) -> Target:
        return target

    def count(self, shapes: Any) -> int:
        return len(shapes)

    def windows_of_images(self, given: Sequence[Any], where: Callable[[int], str]) -> tuple[list[Any], Rows]:
        return list(given), np.array([len(shapes) for shapes in given], dtype=np.int64)

    def objects_of_images(self, targets: Sequence[Target], where: Callable[[int], str]) -> tuple[list[Target], Rows]:
        """The targets as they are; what of them are objects only the function knows."""
        return list(targets), np.zeros(len(targets), dtype=np.int64)

    def pairs(
        self,
        windows: Sequence[Any],
        offsets: Rows,
        objects: Sequence[Target],
        object_offsets: Rows,
        crowd: Flags,
        least: float = 0.0,
    ) -> tuple[Rows, Rows, Floats]:
        none = np.zeros(0, dtype=np.int64)
        parts = [(none, none, np.zeros(0))]
        for i, shape in enumerate(zip(np.diff(offsets).tolist(), np.diff(object_offsets).tolist(), strict=True)):
            if 0 not in shape:
                table = checked_table(
                    self.function(windows[i], objects[i]), shape, f"image {i}: the overlaps of your function"
                )
                rows, columns = np.nonzero(table)
                parts.append((rows + offsets[i], columns + object_offsets[i], table[rows, columns]))
        first, second, overlap = (np.concatenate(column) for column in zip(*parts, strict=True))
        return first, second, overlap

    def __call__(self, windows: Any, objects: Any, crowd: Any = None) -> Tensor:
        return torch.from_numpy(checked_table(self.function(windows, objects), None, "the overlaps of your function"))


def checked_table(given: Any, shape: tuple[int, int] | None, where: str) -> Floats:
    """(N, G) overlaps as numbers; raises unless they have this shape and lie in [0, 1]."""
    table = tensor_of(given, where, "overlaps").detach().to("cpu", torch.float64).numpy()
    if table.size == 0 and shape is not None and 0 in shape:
        return np.zeros(shape)
    if table.ndim != 2 or (shape is not None and table.shape != shape):
        wanted = "(N, G)" if shape is None else str(shape)
        raise InputError(
            f"{where}: expected a table {wanted}, a row per window and a column per object, but got {tuple(table.shape)}."
        )
    wrong = ~((table >= 0.0) & (table <= 1.0))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"{where}: expected overlaps in [0, 1] but that of window {row} and object {column} is {table[row, column]}; "
            "distances need sg.overlaps.Distance."
        )
    return table
