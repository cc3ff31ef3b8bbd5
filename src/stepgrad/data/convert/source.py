"""A dataset with all its splits, as a conversion reads it."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stepgrad.data.base import DetectionDataset, FileDataset, ImageObjects
from stepgrad.data.coco import COCODataset
from stepgrad.data.coco_json import CocoImage
from stepgrad.data.load import coco_files, load_dataset
from stepgrad.data.problems import raise_errors
from stepgrad.data.read_detections import category_ids
from stepgrad.data.shapes import parse_shapes
from stepgrad.data.shapes.dataset import SPLITS as SHAPES_SPLITS
from stepgrad.data.splits import splits_of
from stepgrad.data.yolo import YOLODataset
from stepgrad.data.yolo_images import image_ids_of
from stepgrad.data.yolo_yaml import SPLITS
from stepgrad.errors import DataError
from stepgrad.names import from_home, is_number

UNLISTED = "unlisted"
"""The split of the images that no list of a VOC folder names."""
Parts = dict[str, tuple[DetectionDataset, Sequence[int]]]


@dataclass(eq=False)
class SourcePicture:
    """One image on its way into the new dataset. One that several splits share is one object."""

    dataset: DetectionDataset
    index: int
    name: str
    """What files of it are called, in formats whose ids are names of files."""
    home: str = ""
    """The new folder of its split; of several, the first."""
    stem: str = ""
    """The name of its new files, without suffix."""
    file: str = ""
    """The name of its new image file."""
    size: tuple[int, int] = (0, 0)
    """Width and height as the new dataset reads it."""

    @cached_property
    def objects(self) -> ImageObjects:
        return self.dataset.objects(self.index)

    @property
    def path(self) -> Path | None:
        """Its file; None if it is drawn."""
        return self.dataset.image_path(self.index) if isinstance(self.dataset, FileDataset) else None

    @property
    def number(self) -> int | None:
        """Its id as a number, where it has one."""
        image_id = self.dataset.ids[self.index]
        if isinstance(image_id, int):
            return image_id
        return int(self.name) if is_number(self.name) else None


@dataclass(frozen=True)
class Source:
    """Everything there is to convert."""

    class_names: tuple[str, ...]
    category_ids: tuple[int, ...]
    """The numbers that a COCO file gives its classes; from 1 where there is none."""
    splits: dict[str, list[SourcePicture]]

    @cached_property
    def pictures(self) -> list[SourcePicture]:
        """Every picture once."""
        return list(dict.fromkeys(picture for pictures in self.splits.values() for picture in pictures))


def open_source(data: str | Path, split: str | None = None, **options: Any) -> Source:
    """A dataset with all its splits, or one of them; options as for `load_dataset`."""
    parts = _read_parts(data, split, options)
    made: dict[Hashable, SourcePicture] = {}
    splits = {}
    for name, (dataset, positions) in parts.items():
        named = zip(positions, _names(dataset, positions), strict=True)
        pictures = [SourcePicture(dataset, i, called) for i, called in named]
        splits[name] = [made.setdefault(_key(picture), picture) for picture in pictures]
    first, _ = next(iter(parts.values()))
    return Source(first.class_names, category_ids(first), splits)


def _read_parts(data: str | Path, split: str | None, options: dict[str, Any]) -> Parts:
    """Of each split, a dataset and the positions of the split's images in it."""
    separate = _separate_splits(data, split)
    if separate:
        datasets = {name: load_dataset(data, part, **options) for name, part in separate.items()}
        _check_classes({separate[name]: dataset for name, dataset in datasets.items()}, data)
        return {name: (dataset, range(len(dataset))) for name, dataset in datasets.items()}
    dataset = load_dataset(data, split, **options)
    splits = splits_of(dataset, raise_errors)
    rest = sorted(set(range(len(dataset))).difference(*splits.values()))
    if rest and isinstance(dataset, COCODataset):
        splits[_split_names([dataset.path])[0]] = rest
    elif rest:
        splits[getattr(dataset, "split", None) or (UNLISTED if splits else "train")] = rest
    return {name: (dataset, positions) for name, positions in splits.items()}


def _separate_splits(data: str | Path, split: str | None) -> dict[str, str]:
    """The splits that are datasets of their own (COCO's files, and those of the built-in set), as `load_dataset` calls them."""
    if str(data).partition(":")[0] == "shapes":
        chosen = parse_shapes(str(data), split).get("split")
        return {name: name for name in ([chosen] if chosen else SHAPES_SPLITS)}
    folder = from_home(data)
    files = coco_files(folder) if split is None and folder.is_dir() else []
    return {name: file.stem for name, file in zip(_split_names(files), files, strict=True)} if len(files) > 1 else {}


def _check_classes(datasets: dict[str, DetectionDataset], data: str | Path) -> None:
    (first, same), *others = [(name, (d.class_names, category_ids(d))) for name, d in datasets.items()]
    other = next((name for name, classes in others if classes != same), None)
    if other:
        raise DataError(f"{data}: {other} has other categories than {first}; convert the files one by one")


def _split_names(files: list[Path]) -> list[str]:
    """`train` for train2017 and so on; the name of the file where that would be no name of its own.

    >>> [_split_names(list(map(Path, names))) for names in (["train2017.json", "val2017.json"], ["a.json"])]
    [['train', 'val'], ['train']]
    """
    stems = [file.stem.removeprefix("instances_") for file in files]
    short = [next((split for split in SPLITS if stem.startswith(split)), stem) for stem in stems]
    if len(stems) == 1 and short[0] not in SPLITS:
        return ["train"]
    return short if len(set(short)) == len(stems) else stems


def _key(picture: SourcePicture) -> Hashable:
    """The same for a picture that several splits share; of COCO's files, each holds it."""
    if not isinstance(picture.dataset, COCODataset):
        return picture.dataset, picture.index
    annotations = picture.dataset.images[picture.index].annotations
    objects = tuple((a.category, a.xywh, a.area, a.crowd) for a in annotations)
    return os.path.abspath(picture.dataset.image_path(picture.index)), picture.name, objects


def _names(dataset: DetectionDataset, positions: Sequence[int]) -> list[str]:
    """A name for each picture of a split, unique in it: YOLO has images/train/a.jpg and images/val/a.jpg."""
    if isinstance(dataset, YOLODataset):
        return image_ids_of([dataset.images[i].path for i in positions], dataset.root)
    if isinstance(dataset, COCODataset):
        return _coco_names(dataset.images)
    ids = [dataset.ids[i] for i in positions]
    return [image_id if isinstance(image_id, str) else f"{image_id:06d}" for image_id in ids]


def _coco_names(images: list[CocoImage]) -> list[str]:
    """The names that the file gives its images, or those of their ids; numbers where these are not unique."""
    given = [image.name for image in images if image.name is not None]
    names = given if len(given) == len(images) else [_name_of_id(image) for image in images]
    return names if len(set(names)) == len(names) else [f"{i:012d}" for i in range(1, len(names) + 1)]


def _name_of_id(image: CocoImage) -> str:
    """The stem of the file's name if that is the id, else the id in twelve digits."""
    stem = Path(image.file_name).stem
    if not isinstance(image.id, int):
        return image.id
    return stem if is_number(stem) and int(stem) == image.id else f"{image.id:012d}"
