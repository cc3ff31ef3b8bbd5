"""From a dataset and its windows to the images of a step. Which images those are depends on seed and step alone."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
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
class Images:
    """`count` images of a dataset from the one numbered `first`; `with_windows` makes them ready for use."""

    dataset: DetectionDataset
    count: int
    first: int
    source: str
    """Where the windows are, or will be once they have been searched for."""
    search: bool
    """Whether windows that are missing are searched for."""
    max_windows: int | None
    """Largest number of windows to use per image."""
    proposals: Proposals | None = None
    _kept: dict[int, Example] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return self.count

    @property
    def indices(self) -> range:
        """The numbers of the images in their dataset."""
        return range(self.first, self.first + self.count)

    def windows(self, index: int) -> Tensor:
        """(N, 4). Where windows come in no order of worth, those used are a random choice fixed by the image's id."""
        assert self.proposals is not None, "with_windows() comes first"
        image_id = self.dataset.ids[self.first + index]
        best_first = self.proposals.source.endswith(".mat")
        return choose_windows(self.proposals[image_id], self.max_windows, str(image_id), best_first)

    def facts(self, index: int) -> tuple[Tensor, DatasetTarget]:
        """Windows and objects alone; no image is read."""
        return self.windows(index), self.dataset.target(self.first + index)

    def example(self, index: int, flipped: bool = False) -> Example:
        """One image, mirrored if asked for."""
        known = self._kept.get(index)
        if known is None:
            image, target = self.dataset[self.first + index]
            known = Example(image, self.windows(index), target)
            if len(self._kept) * image.numel() < MEMORY_BYTES:
                self._kept[index] = known
        return mirrored(known, known.image.shape[-1]) if flipped else known

    def fingerprint(self, index: int) -> str:
        """A hash of the picture."""
        return self.dataset.fingerprint(self.first + index)

    def check_packages(self) -> None:
        """Raise MissingDependencyError if windows must be searched for and OpenCV, which the search needs, is missing."""
        if self.search:
            try:
                check_installed()
            except MissingDependencyError:
                if missing_windows(self.dataset, self.source, indices=self.indices):
                    raise

    def with_windows(self, progress: Progress | None = None) -> Images:
        """The images ready for use; a search may take hours, so everything that can be wrong is best checked before."""
        if self.search:
            self._search(progress or QuietProgress())
        proposals = load_proposals(self.source, self.dataset, verify=False, indices=self.indices)
        return replace(self, proposals=proposals)

    def _search(self, progress: Progress) -> None:
        self.check_packages()
        missing = missing_windows(self.dataset, self.source, indices=self.indices)
        if not missing:
            return
        there = self.count - len(missing)
        progress.say(f"windows of {self.dataset.name}: {self.source} has them for {there} of {self.count} images")
        with progress.stage("searching windows", len(missing)) as tick:
            workers = os.cpu_count() or 1
            outcome = generate_proposals(
                self.dataset, self.source, workers=workers, progress=tick, indices=missing, say=progress.say
            )
        if outcome.failed:
            raise DataError(f"{len(outcome.failed)} images could not be searched, first: {outcome.failed[0]}")


def choose_windows(windows: Tensor, most: int | None, key: str, best_first: bool = False) -> Tensor:
    """At most so many of the windows: the first where they come best first, else a random choice fixed by `key`."""
    if most is None or len(windows) <= most:
        return windows
    if best_first:
        return windows[:most]
    generator = torch.Generator().manual_seed(zlib.crc32(to_utf8(key)))
    return windows[torch.randperm(len(windows), generator=generator)[:most].sort().values]


def mirrored(example: Example, width: float) -> Example:
    """The example seen in a mirror; features are those of the mirror image already.

    >>> from stepgrad.data import make_target
    >>> example = Example(torch.zeros(3, 4, 10), torch.tensor([[0., 0, 4, 4]]), make_target([[1, 0, 3, 4]], [0], 7))
    >>> seen = mirrored(example, 10)
    >>> seen.windows.tolist(), seen.target["boxes"].tolist()
    ([[6.0, 0.0, 10.0, 4.0]], [[7.0, 0.0, 9.0, 4.0]])
    """
    image = example.image.flip(-1) if isinstance(example.image, Tensor) else example.image
    target = cast(DatasetTarget, {**example.target, "boxes": mirrored_boxes(example.target["boxes"], width)})
    return Example(image, mirrored_boxes(example.windows, width), target)


def mirrored_boxes(boxes: Tensor, width: float) -> Tensor:
    """x becomes W - x, and left and right change places."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack([width - x2, y1, width - x1, y2], dim=-1)


def find_split(config: DataConfig, part: str) -> Images:
    """The training (`part="train"`) or validation (`"val"`) images of a config, before any windows are looked for."""
    is_val = part == "val"
    path = (config.val_path or config.path) if is_val else config.path
    windows = (config.val_windows or config.windows) if is_val else config.windows
    split = config.val if is_val else config.train
    limit = config.val_images if is_val else config.train_images
    if JOIN in (split or ""):
        raise ConfigError(
            f"data.{part}: expected one split here but got {split!r}; only training takes several at once."
        )
    name, first, end = parse_split(split)
    dataset = load_dataset(path, name, class_names=config.class_names, images_outside=config.images_outside)
    end = len(dataset) if end is None else min(end, len(dataset))
    if first >= end:
        raise DataError(f"{dataset.name}: has {len(dataset)} images, none of them in {split!r}.")
    if limit is not None and limit < 1:
        raise ConfigError(f"Expected at least one image of {dataset.name} but got a limit of {limit}.")
    if windows is None and isinstance(dataset, ShapesDataset):
        windows = "built-in"
    source = str(default_folder(dataset, "fast")) if windows is None else _own_folder(windows, dataset)
    return Images(dataset, min(limit or end - first, end - first), first, source, windows is None, config.max_windows)


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


def open_split(config: DataConfig, part: str, progress: Progress | None = None) -> Images:
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
) -> Images:
    """A dataset, or a part of it, with its windows.

    Args:
        path: as for `load_dataset`.
        split: the name of a split, or a part of one: `train[1000:1500]`.
        windows: as for `load_proposals`; None: the built-in ones, or a search.
        limit: use only the first so many images.
        max_windows: and at most so many windows of each.
        images_outside: as for `load_dataset`.

    >>> len(open_data("shapes", "val[10:30]"))
    20
    """
    config = DataConfig(
        path=path,
        val=split,
        windows=windows,
        val_images=limit,
        max_windows=max_windows,
        class_names=None if class_names is None else tuple(class_names),
        images_outside=images_outside,
    )
    return open_split(config, "val", progress)


def find_training(config: DataConfig) -> list[Images]:
    """The training images of a config, whose `train` may join several splits, such as VOC 2007 and 2012.

    >>> [len(images) for images in find_training(DataConfig("shapes", train="train[:100]+val[10:30]", train_images=110))]
    [100, 10]
    """
    names = (config.train or "").split(JOIN)
    if len(names) == 1:
        return [find_split(config, "train")]
    if not all(name.strip() for name in names):
        raise ConfigError(f"data.train: expected splits with {JOIN!r} between them but got {config.train!r}.")
    left = config.train_images
    if left is not None and left < 1:
        raise ConfigError(f"data.train_images: expected at least one image but got {left}.")
    parts = [find_split(replace(config, train=name.strip(), train_images=None), "train") for name in names]
    for one, other in combinations(parts, 2):
        _check_apart(one, other)
    chosen = []
    for part in parts:
        count = len(part) if left is None else min(left, len(part))
        chosen += [replace(part, count=count)] if count else []
        left = None if left is None else left - count
    return chosen


def _check_apart(one: Images, other: Images) -> None:
    """Raise DataError unless classes agree, no image is in both, and images with the same id have windows of their own."""
    a, b = one.dataset, other.dataset
    if a.class_names != b.class_names:
        raise DataError(
            f"Expected the same classes in {a.name} and {b.name} but got {a.class_names} and {b.class_names}; "
            "give data.class_names."
        )
    twice = {a.source(i) for i in one.indices} & {b.source(i) for i in other.indices}
    if twice:
        raise DataError(f"{min(twice)}: is in {a.name} and again in {b.name}; leave one of the two out.")
    shared = {str(image_id) for image_id in a.ids} & {str(image_id) for image_id in b.ids}
    if shared and one.source == other.source != "built-in":
        raise DataError(
            f"{one.source}: cannot tell image {min(shared)!r} of {a.name} from that of {b.name}; keep the windows "
            f"in separate folders, each with the name of its VOC folder, or leave data.windows out to search for them."
        )


def with_windows(found: Sequence[Images], progress: Progress | None = None) -> list[Images]:
    """The same images with their windows. Those that are named come first: a wrong name shows at once."""
    named = {i: images.with_windows(progress) for i, images in enumerate(found) if not images.search}
    return [named[i] if i in named else images.with_windows(progress) for i, images in enumerate(found)]


def locate(parts: Sequence[Images], index: int) -> tuple[Images, int]:
    """The split of an image that is numbered through all splits, and its number there."""
    for part in parts:
        if index < len(part):
            return part, index
        index -= len(part)
    raise IndexError(f"no image {index} beyond the last")


class Order:
    """The endless sequence of (image, mirrored?) pairs: every pair once per epoch, shuffled again for each.

    >>> order = Order(count=2, flip=True, seed=0)
    >>> sorted(order.entry(place) for place in range(4))
    [(0, False), (0, True), (1, False), (1, True)]
    """

    def __init__(self, count: int, flip: bool, seed: int) -> None:
        self.count = count
        self.sides = 2 if flip else 1
        self.seed = seed
        self._epoch, self._shuffled = -1, torch.zeros(0)

    def entry(self, place: int) -> tuple[int, bool]:
        """The pair at one place of the sequence, whatever was asked for before."""
        epoch, offset = divmod(place, self.count * self.sides)
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
