"""Windows by image id, wherever they come from."""

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
from stepgrad.names import from_home
from stepgrad.number_text import counted


class Proposals(Mapping[ImageId, Tensor], ABC):
    """`proposals[image_id]`: (N, 4) float32 continuous windows. Ids compare as text: 7 and "7" are the same image."""

    source: str
    """Where the windows come from, for messages."""

    @abstractmethod
    def windows(self, key: str) -> NDArray[Any]:
        """The windows of one image; KeyError if there are none on record (an empty array is a record)."""

    def __getitem__(self, image_id: ImageId) -> Tensor:
        try:
            windows = self.windows(str(image_id))
        except KeyError:
            raise KeyError(f"{self.source} has no windows for image {image_id!r}") from None
        return torch.from_numpy(windows.astype(np.float32).reshape(-1, 4))

    def missing(self, dataset: DetectionDataset, indices: Sequence[int] | None = None) -> list[ImageId]:
        """The images of a dataset, or of `indices`, without a record."""
        ids = dataset.ids if indices is None else [dataset.ids[index] for index in indices]
        return [image_id for image_id in ids if image_id not in self]

    def check(self, dataset: DetectionDataset, verify: bool = True, indices: Sequence[int] | None = None) -> None:
        """Raise DataError unless every image of the dataset, or of `indices`, has windows that were made for it."""
        missing = self.missing(dataset, indices)
        if missing:
            count = len(dataset if indices is None else indices)
            raise DataError(
                f"{self.source}: has no windows for {len(missing)} of the {counted(count, 'image')} of {dataset.name}, "
                f"first {missing[0]!r}; make them with `stepgrad propose`, or pass the windows of this dataset"
            )


class PackedProposals(Proposals):
    """Windows of many images in one array: image `ids[i]` has `boxes[offsets[i]:offsets[i + 1]]`.

    >>> packed = PackedProposals(["a", "b"], [0, 1, 1], [[0, 0, 9, 9]], "example")
    >>> packed["a"], len(packed["b"])
    (tensor([[0., 0., 9., 9.]]), 0)
    """

    def __init__(self, ids: Any, offsets: Any, boxes: Any, source: str) -> None:
        self.source = source
        self.offsets, self.boxes = np.asarray(offsets, dtype=np.int64), np.asarray(boxes).reshape(-1, 4)
        self._position = {str(image_id): i for i, image_id in enumerate(ids)}
        if len(self._position) != len(ids):
            raise DataError(f"{source}: an image id occurs more than once; make the file again")
        if not _partition(self.offsets, len(ids), len(self.boxes)):
            raise DataError(
                f"{source}: expected {len(ids) + 1} offsets (one more than ids) that rise from 0 to {len(self.boxes)}; "
                "make the file again"
            )

    def windows(self, key: str) -> NDArray[Any]:
        i = self._position[key]
        return self.boxes[self.offsets[i] : self.offsets[i + 1]]

    def __contains__(self, image_id: object) -> bool:
        return str(image_id) in self._position

    def __iter__(self) -> Iterator[ImageId]:
        return iter(self._position)

    def __len__(self) -> int:
        return len(self._position)


def _partition(offsets: NDArray[np.int64], count: int, total: int) -> bool:
    if offsets.shape != (count + 1,):
        return False
    return bool(offsets[0] == 0 and offsets[-1] == total and (np.diff(offsets) >= 0).all())


class ShapesProposals(Proposals):
    """The windows that come with the built-in set."""

    def __init__(self, dataset: ShapesDataset) -> None:
        self.dataset, self.source = dataset, f"{dataset.name} (built-in windows)"

    def windows(self, key: str) -> NDArray[Any]:
        if key not in self:
            raise KeyError(key)
        return self.dataset.windows(int(key)).numpy()

    def __contains__(self, image_id: object) -> bool:
        return str(image_id).isdecimal() and int(str(image_id)) in self.dataset.ids

    def __iter__(self) -> Iterator[ImageId]:
        return iter(self.dataset.ids)

    def __len__(self) -> int:
        return len(self.dataset)


def load_proposals(
    source: str | Path,
    dataset: DetectionDataset | None = None,
    verify: bool = True,
    indices: Sequence[int] | None = None,
) -> Proposals:
    """The windows at `source`, checked against `dataset` where one is given.

    Args:
        source: a cache folder written by `stepgrad propose`, a packed `.npz` (ids, offsets, boxes), one of Girshick's
            selective_search_data `.mat` files, or `built-in` for the windows of `shapes`.
        dataset: raise DataError unless the windows were made for these images.
        verify: compare the bytes of every image with the cache's fingerprint; False checks only that a record exists.
        indices: only the images of these numbers need windows; None: all.
    """
    proposals = _open(source, dataset)
    if dataset is not None:
        proposals.check(dataset, verify, indices)
    return proposals


def _open(source: str | Path, dataset: DetectionDataset | None) -> Proposals:
    from stepgrad.data.proposals.cache import CachedProposals
    from stepgrad.data.proposals.imports import import_mat, import_npz

    if str(source) == "built-in":
        if not isinstance(dataset, ShapesDataset):
            raise DataError("Only `shapes` has built-in windows; make some for this dataset with `stepgrad propose`")
        return ShapesProposals(dataset)
    path = from_home(source)
    if path.is_dir():
        return CachedProposals(path)
    if path.suffix == ".npz":
        return import_npz(path)
    if path.suffix == ".mat":
        return import_mat(path)
    defect = "expected a cache folder, an .npz or a .mat file" if path.exists() else "no such file or folder"
    raise DataError(f"{path}: {defect}; make windows with `stepgrad propose`")
