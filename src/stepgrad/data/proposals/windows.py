"""Windows by image id, wherever they come from, and the checks of arrays of windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.data.base import DetectionDataset, ImageId
from stepgrad.data.shapes import ShapesDataset
from stepgrad.errors import DataError
from stepgrad.number_text import counted, part_counted

NUMBERS = "iuf"
WHOLE_NUMBERS = "iu"
TEXTS = "U"
IDS = "USiu"
_WORDS = {NUMBERS: "numbers", WHOLE_NUMBERS: "whole numbers", TEXTS: "text", IDS: "names or whole numbers"}
"""In words, what the NumPy kinds of an array stand for."""


class Proposals(Mapping[ImageId, Tensor], ABC):
    """`proposals[image_id]`: (N, 4) float32 continuous windows. Ids compare as text: 7 and "7" are the same image."""

    def __init__(self, source: str, places: Mapping[str, Any]) -> None:
        self.source = source
        """Where the windows come from, for messages."""
        self._places = places
        """By the id of an image as text, the place of its windows. No windows are a record, too."""

    @abstractmethod
    def _read(self, place: Any) -> NDArray[Any]:
        """The windows (N, 4) at a place."""

    def windows(self, image_id: ImageId) -> NDArray[Any]:
        """The windows of one image as they are stored; KeyError if there are none on record."""
        return self._read(self._places[self._key(image_id)])

    def __getitem__(self, image_id: ImageId) -> Tensor:
        if image_id not in self:
            raise KeyError(f"{self.source} has no windows for image {image_id!r}")
        return torch.from_numpy(self.windows(image_id).astype(np.float32).reshape(-1, 4))

    def __contains__(self, image_id: object) -> bool:
        return self._key(image_id) in self._places

    def __iter__(self) -> Iterator[ImageId]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _key(self, image_id: object) -> str:
        return str(image_id)

    def missing(self, dataset: DetectionDataset, indices: Sequence[int] | None = None) -> list[ImageId]:
        """The images of a dataset, or of `indices`, without a record."""
        ids = dataset.ids if indices is None else [dataset.ids[index] for index in indices]
        return [image_id for image_id in ids if image_id not in self]

    def check(self, dataset: DetectionDataset, verify: bool = True, indices: Sequence[int] | None = None) -> None:
        """Raise DataError unless every image of the dataset, or of `indices`, has windows that were made for it."""
        missing = self.missing(dataset, indices)
        if missing:
            count = counted(len(dataset if indices is None else indices), "image")
            raise DataError(
                f"{self.source}: has no windows for {len(missing)} of the {count} of {dataset.name}, "
                f"first {missing[0]!r}; make them with `stepgrad propose`, or pass the windows of this dataset"
            )


class PackedProposals(Proposals):
    """Windows of many images in one array: image `ids[i]` has `boxes[offsets[i]:offsets[i + 1]]`.

    >>> packed = PackedProposals(["a", "b"], [0, 1, 1], [[0, 0, 9, 9]], "example")
    >>> packed["a"], len(packed["b"])
    (tensor([[0., 0., 9., 9.]]), 0)
    """

    def __init__(self, ids: Any, offsets: Any, boxes: Any, source: str) -> None:
        super().__init__(source, {str(image_id): i for i, image_id in enumerate(ids)})
        self.offsets, self.boxes = np.asarray(offsets, dtype=np.int64), np.asarray(boxes).reshape(-1, 4)
        count, total = len(ids), len(self.boxes)
        if len(self) != count:
            raise DataError(f"{source}: an image id occurs more than once; make the file again")
        ends = self.offsets
        if ends.shape != (count + 1,) or ends[0] != 0 or ends[-1] != total or (np.diff(ends) < 0).any():
            raise DataError(
                f"{source}: expected {count + 1} offsets (one more than ids) that rise from 0 to {total}; "
                "make the file again"
            )

    def _read(self, place: int) -> NDArray[Any]:
        return self.boxes[self.offsets[place] : self.offsets[place + 1]]


class ShapesProposals(Proposals):
    """The windows that come with the built-in set."""

    def __init__(self, dataset: ShapesDataset) -> None:
        super().__init__(f"{dataset.name} (built-in windows)", {str(image_id): image_id for image_id in dataset.ids})
        self.dataset = dataset

    def _read(self, place: int) -> NDArray[Any]:
        return self.dataset.windows(place).numpy()


def check_windows(boxes: NDArray[Any], source: str) -> None:
    """Refuse windows that are not finite or are reversed, in the single precision they are used in."""
    with np.errstate(over="ignore"):
        boxes = boxes.astype(np.float32)
    good = np.isfinite(boxes).all(axis=1) & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    if not good.all():
        first = int(np.argmin(good))
        count = part_counted(int((~good).sum()), len(good), "window", "are")
        raise DataError(
            f"{source}: {count} not finite or without area, first number {first}, "
            f"{boxes[first].tolist()}; expected x1 y1 x2 y2 with x1 < x2, y1 < y2: check the column order"
        )


def read_arrays(path: Path, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names, each of one of its NumPy kinds, or a DataError that names no fix; nothing is unpickled."""
    try:
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:  # NumPy leaves bad files open
            missing = [name for name in kinds if name not in file]
            arrays = {name: file[name] for name in kinds if name not in missing}
    except Exception as error:  # NumPy, zipfile and its four decompressors each raise what they stumble over
        raise DataError(f"{path}: is not a readable .npz file ({error or type(error).__name__})") from error
    if missing:
        *most, last = kinds
        raise DataError(f"{path}: expected arrays {', '.join(most)} and {last} but {', '.join(missing)} is missing")
    for name, array in arrays.items():
        if array.dtype.kind not in kinds[name]:
            raise DataError(f"{path}: expected {_WORDS[kinds[name]]} in {name} but got an array of {array.dtype}")
    return arrays
