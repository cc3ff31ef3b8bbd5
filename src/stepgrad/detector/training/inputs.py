"""From a dataset and its windows to the images of a step. Which images those are depends on seed and step alone."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from stepgrad.data import DetectionDataset, Proposals, generate_proposals, load_dataset, load_proposals
from stepgrad.data.base import DatasetTarget
from stepgrad.data.proposals.generate import default_folder, missing_windows
from stepgrad.data.proposals.search import check_installed
from stepgrad.data.shapes import ShapesDataset
from stepgrad.data.voc import VOCDataset, folder_name
from stepgrad.detector.training.config import DataConfig
from stepgrad.detector.training.progress import Progress, QuietProgress
from stepgrad.errors import ConfigError, DataError, MissingDependencyError
from stepgrad.names import from_home, to_utf8

MEMORY_BYTES = 1 << 30
"""Decoded images kept in memory."""
JOIN = "+"
"""Between the splits that a run trains on together."""
_LARGE = 2**63 - 25


class Example(NamedTuple):
    """What the model is given of one image."""

    image: Any
    """(3, H, W) uint8, or the `Features` of a frozen trunk."""
    windows: Tensor
    """(N, 4)."""
    target: DatasetTarget
    place: int = 0
    """In the sequence of all images of the run; the windows drawn depend on it."""


@dataclass(frozen=True)
class Data:
    """A dataset with windows: `count` images from the one numbered `first`, at most `max_windows` windows each."""

    dataset: DetectionDataset
    proposals: Proposals
    count: int
    max_windows: int | None = None
    first: int = 0
    _kept: dict[int, Example] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=Lock, repr=False)

    def __len__(self) -> int:
        return self.count

    def windows(self, index: int) -> Tensor:
        """(N, 4). Where windows come in no order of worth, those used are a random choice fixed by the image's id."""
        image_id = self.dataset.ids[self.first + index]
        best_first = self.proposals.source.endswith(".mat")
        return choose_windows(self.proposals[image_id], self.max_windows, str(image_id), best_first)

    def example(self, index: int, flipped: bool = False) -> Example:
        """One image, mirrored if asked for."""
        with self._lock:
            known = self._kept.get(index)
        if known is None:
            image, target = self.dataset[self.first + index]
            known = Example(image, self.windows(index), target)
            with self._lock:
                if len(self._kept) * image.numel() < MEMORY_BYTES:
                    self._kept[index] = known
        return mirrored(known) if flipped else known

    def facts(self, index: int) -> tuple[Tensor, DatasetTarget]:
        """Windows and objects alone; no image is read."""
        return self.windows(index), self.dataset.target(self.first + index)

    def picture_facts(self, index: int) -> tuple[str, int, int]:
        """Fingerprint, width and height of the image."""
        return self.dataset.fingerprint(self.first + index), *self.dataset.image(self.first + index).size


def choose_windows(windows: Tensor, most: int | None, key: str, best_first: bool = False) -> Tensor:
    """At most so many of the windows: the first where they come best first, else a random choice fixed by `key`."""
    if most is None or len(windows) <= most:
        return windows
    if best_first:
        return windows[:most]
    generator = torch.Generator().manual_seed(zlib.crc32(to_utf8(key)))
    return windows[torch.randperm(len(windows), generator=generator)[:most].sort().values]


def mirrored(example: Example) -> Example:
    """The example seen in a mirror.

    >>> from stepgrad.data import make_target
    >>> seen = mirrored(Example(torch.zeros(3, 4, 10), torch.tensor([[0., 0, 4, 4]]), make_target([[1, 0, 3, 4]], [0], 7)))
    >>> seen.windows.tolist(), seen.target["boxes"].tolist()
    ([[6.0, 0.0, 10.0, 4.0]], [[7.0, 0.0, 9.0, 4.0]])
    """
    width = example.image.shape[-1]
    target = cast(DatasetTarget, {**example.target, "boxes": mirrored_boxes(example.target["boxes"], width)})
    return Example(example.image.flip(-1), mirrored_boxes(example.windows, width), target)


def mirrored_boxes(boxes: Tensor, width: float) -> Tensor:
    """x becomes W - x, and left and right change places."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack([width - x2, y1, width - x1, y2], dim=-1)


@dataclass(frozen=True)
class Images:
    """`count` images of a dataset from the one numbered `first`, whose windows have not been looked for yet."""

    dataset: DetectionDataset
    count: int
    first: int
    windows: str | None
    """Where the windows are; None: they are searched for."""
    max_windows: int | None

    @property
    def indices(self) -> range:
        """The numbers of the images in their dataset."""
        return range(self.first, self.first + self.count)

    def with_windows(self, progress: Progress | None = None) -> Data:
        """The images ready for use; a search may take hours, so everything that can be wrong is best checked before."""
        progress = progress or QuietProgress()
        proposals = self._searched(progress) if self.windows is None else self._named(self.windows)
        return Data(self.dataset, proposals, self.count, self.max_windows, self.first)

    def _named(self, source: str) -> Proposals:
        return load_proposals(_own_folder(source, self.dataset), self.dataset, verify=False, indices=self.indices)

    def check_packages(self) -> None:
        """Raise MissingDependencyError if windows must be searched for and OpenCV, which the search needs, is missing."""
        if self.windows is None:
            try:
                check_installed()
            except MissingDependencyError:
                if missing_windows(self.dataset, default_folder(self.dataset, "fast"), indices=self.indices):
                    raise

    def _searched(self, progress: Progress) -> Proposals:
        self.check_packages()
        folder = default_folder(self.dataset, "fast")
        missing = missing_windows(self.dataset, folder, indices=self.indices)
        if missing:
            progress.say(
                f"windows of {self.dataset.name}: {folder} has them for {self.count - len(missing)} of {self.count} images"
            )
            with progress.stage("searching windows", len(missing)) as tick:
                workers = os.cpu_count() or 1
                outcome = generate_proposals(
                    self.dataset, folder, workers=workers, progress=tick, indices=missing, say=progress.say
                )
            if outcome.failed:
                raise DataError(f"{len(outcome.failed)} images could not be searched, first: {outcome.failed[0]}")
        return load_proposals(folder, self.dataset, verify=False, indices=self.indices)


def find_split(config: DataConfig, part: str) -> Images:
    """The training (`part="train"`) or validation (`"val"`) images of a config."""
    is_val = part == "val"
    path = (config.val_path or config.path) if is_val else config.path
    windows = (config.val_windows or config.windows) if is_val else config.windows
    split = config.val if is_val else config.train
    limit = config.val_images if is_val else config.train_images
    if JOIN in (split or ""):
        raise ConfigError(
            f"data.{part}: expected one split here but got {split!r}; only training takes several at once."
        )
    return find_images(path, split, windows, limit, config.max_windows, config.class_names, config.images_outside)


def open_split(config: DataConfig, part: str, progress: Progress | None = None) -> Data:
    """The images of `find_split` with their windows."""
    return find_split(config, part).with_windows(progress)


def open_data(
    path: str,
    split: str | None,
    windows: str | None = None,
    limit: int | None = None,
    max_windows: int | None = None,
    class_names: Sequence[str] | None = None,
    progress: Progress | None = None,
    images_outside: bool = False,
) -> Data:
    """The images of `find_images` with their windows.

    >>> open_data("shapes", "val[10:30]").count
    20
    """
    return find_images(path, split, windows, limit, max_windows, class_names, images_outside).with_windows(progress)


def find_images(
    path: str,
    split: str | None,
    windows: str | None = None,
    limit: int | None = None,
    max_windows: int | None = None,
    class_names: Sequence[str] | None = None,
    images_outside: bool = False,
) -> Images:
    """A dataset, or a part of it.

    Args:
        path: as for `load_dataset`.
        split: the name of a split, or a part of one: `train[1000:1500]`.
        windows: as for `load_proposals`; None: the built-in ones, or a search.
        limit: use only the first so many images.
        max_windows: and at most so many windows of each.
        images_outside: as for `load_dataset`.
    """
    name, first, end = parse_split(split)
    dataset = load_dataset(path, name, class_names=class_names, images_outside=images_outside)
    end = len(dataset) if end is None else min(end, len(dataset))
    if first >= end:
        raise DataError(f"{dataset.name}: has {len(dataset)} images, none of them in {split!r}.")
    if limit is not None and limit < 1:
        raise ConfigError(f"Expected at least one image of {dataset.name} but got a limit of {limit}.")
    if windows is None and isinstance(dataset, ShapesDataset):
        windows = "built-in"
    return Images(dataset, min(limit or end - first, end - first), first, windows, max_windows)


def parse_split(split: str | None) -> tuple[str | None, int, int | None]:
    """Name, first image and end of a split.

    >>> parse_split("train[1000:1500]"), parse_split("val[:200]"), parse_split("test")
    (('train', 1000, 1500), ('val', 0, 200), ('test', 0, None))
    """
    part = re.fullmatch(r"(.*)\[(\d*):(\d*)\]", split or "")
    if part is None:
        return split, 0, None
    name, first, end = part.groups()
    return name or None, int(first or 0), int(end) if end else None


def _own_folder(source: str, dataset: DetectionDataset) -> str:
    """Where `source` has a folder with the name of a VOC folder, its windows are there: `proposals/VOC2007`."""
    if isinstance(dataset, VOCDataset):
        own = from_home(source) / folder_name(dataset.root)
        return str(own) if own.is_dir() else source
    return source


class Order:
    """The endless sequence of (image, mirrored?) pairs: every pair once per epoch, shuffled again for each.

    >>> order = Order(count=2, flip=True, seed=0)
    >>> sorted(order.entries(0, 4))
    [(0, False), (0, True), (1, False), (1, True)]
    >>> order.entries(2, 3) == order.entries(0, 5)[2:]   # whatever was asked for before
    True
    """

    def __init__(self, count: int, flip: bool, seed: int) -> None:
        self.count = count
        self.sides = 2 if flip else 1
        self.seed = seed
        self._epoch, self._shuffled = -1, torch.zeros(0)

    def entries(self, first: int, n: int) -> list[tuple[int, bool]]:
        """The pairs at positions first, first + 1, ..., first + n - 1 of the sequence."""
        return [self.entry(position) for position in range(first, first + n)]

    def entry(self, position: int) -> tuple[int, bool]:
        """The pair at one position."""
        epoch, offset = divmod(position, self.count * self.sides)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mix(self.seed, epoch, 1))
            self._epoch, self._shuffled = epoch, torch.randperm(self.count * self.sides, generator=generator)
        entry = int(self._shuffled[offset])
        return entry % self.count, entry >= self.count


def mix(*numbers: int) -> int:
    """One seed from several numbers, so that each step of each run has its own randomness.

    >>> mix(3, 0) != mix(0, 3)
    True
    """
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = ((mixed ^ (number + 0x7F4A7C15)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed ^= mixed >> 31
    return mixed % _LARGE
