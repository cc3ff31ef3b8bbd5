"""Training on several splits at once, such as VOC 2007 and 2012: each keeps its own images, windows and ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from stepgrad.data.base import DetectionDataset
from stepgrad.detector.training.config import DataConfig
from stepgrad.detector.training.inputs import JOIN, Data, Images, find_split
from stepgrad.detector.training.progress import Progress
from stepgrad.errors import ConfigError, DataError


@dataclass(frozen=True)
class TrainingData:
    """The images of one or more splits, numbered through: `count` of them, from the first."""

    parts: Sequence[Data]
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.parts[0].dataset.class_names

    def find(self, index: int) -> tuple[Data, int]:
        """The split of an image, and its number there."""
        for part in self.parts:
            if index < len(part):
                return part, index
            index -= len(part)
        raise IndexError(f"no image {index} beyond the last")


def open_training(config: DataConfig, progress: Progress | None = None) -> TrainingData:
    """The training data of a config, whose `train` may join several splits.

    >>> data = open_training(DataConfig("shapes", train="train[:100]+val[10:30]"))
    >>> len(data), data.find(105)[0].dataset.name, data.find(105)[1]
    (120, 'shapes val', 5)
    """
    return join_training(find_training(config), config, progress)


def find_training(config: DataConfig) -> list[Images]:
    """The training images of a config, split by split, before any windows are looked for."""
    names: list[str | None] = [name.strip() for name in config.train.split(JOIN)] if config.train else [config.train]
    if "" in names:
        raise ConfigError(f"data.train: expected splits with {JOIN!r} between them but got {config.train!r}.")
    if len(names) == 1:
        return [find_split(config, "train")]
    parts = [find_split(replace(config, train=name, train_images=None), "train") for name in names]
    for one, other in combinations(parts, 2):
        _check_images(one, other)
    _limited(sum(part.count for part in parts), config.train_images)
    return parts


def join_training(found: Sequence[Images], config: DataConfig, progress: Progress | None = None) -> TrainingData:
    """The images of `find_training` with their windows."""
    parts = [images.with_windows(progress) for images in found]
    for one, other in combinations(parts, 2):
        _check_windows(one, other)
    total = sum(len(part) for part in parts)
    return TrainingData(parts, total if len(parts) == 1 else _limited(total, config.train_images))


def _limited(total: int, limit: int | None) -> int:
    if limit is not None and limit < 1:
        raise ConfigError(f"data.train_images: expected at least one image but got {limit}.")
    return min(total, limit or total)


def _check_images(one: Images, other: Images) -> None:
    """Raise DataError unless classes agree and no image is in both."""
    a, b = one.dataset, other.dataset
    if a.class_names != b.class_names:
        raise DataError(
            f"Expected the same classes in {a.name} and {b.name} but got {a.class_names} and {b.class_names}; "
            "give data.class_names."
        )
    twice = _sources(one) & _sources(other)
    if twice:
        raise DataError(f"{min(twice)}: is in {a.name} and again in {b.name}; leave one of the two out.")


def _check_windows(one: Data, other: Data) -> None:
    """Raise DataError unless windows of images with the same id stay apart."""
    a, b = one.dataset, other.dataset
    shared = _ids(a) & _ids(b)
    if shared and one.proposals.source == other.proposals.source:
        raise DataError(
            f"{one.proposals.source}: cannot tell image {min(shared)!r} of {a.name} from that of {b.name}; keep the windows "
            f"in separate folders, each with the name of its VOC folder, or leave data.windows out to search for them."
        )


def _sources(images: Images) -> set[str]:
    return {images.dataset.source(index) for index in images.indices}


def _ids(dataset: DetectionDataset) -> set[str]:
    return {str(image_id) for image_id in dataset.ids}
