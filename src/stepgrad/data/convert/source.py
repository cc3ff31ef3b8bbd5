"""A dataset with all its splits, as a conversion reads it."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepgrad.data.base import DetectionDataset, FileDataset
from stepgrad.data.coco import COCODataset
from stepgrad.data.coco_json import CocoImage
from stepgrad.data.load import coco_files, load_dataset, locate
from stepgrad.data.own_files import OwnFiles
from stepgrad.data.problems import raise_errors
from stepgrad.data.shapes import ShapesDataset, parse_shapes
from stepgrad.data.shapes.dataset import SPLITS as SHAPES_SPLITS
from stepgrad.data.voc import Degenerate, VOCDataset, image_ids, list_splits
from stepgrad.data.yolo import YOLODataset, check_split, is_number
from stepgrad.data.yolo_images import image_ids_of, list_images
from stepgrad.data.yolo_yaml import SPLITS, read_data_yaml
from stepgrad.errors import DataError
from stepgrad.names import from_home

UNLISTED = "unlisted"
"""The split of the images that no list of a VOC folder names."""


@dataclass(frozen=True, eq=False)
class SourcePicture:
    """One image of the source. One that several splits share is one object."""

    dataset: DetectionDataset
    index: int
    name: str
    """What files of it are called, in formats whose ids are names of files."""

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

    kind: str
    class_names: tuple[str, ...]
    category_ids: tuple[int, ...] | None
    """The numbers that a COCO file gives its classes."""
    splits: dict[str, list[SourcePicture]]

    @property
    def as_shown(self) -> bool:
        """Whether boxes are of the pictures as viewers show them, EXIF orientation applied."""
        return self.kind == "yolo"

    @property
    def pictures(self) -> list[SourcePicture]:
        """Every picture once."""
        return list(dict.fromkeys(picture for pictures in self.splits.values() for picture in pictures))


def open_source(
    data: str | Path,
    split: str | None = None,
    *,
    class_names: Sequence[str] | None = None,
    images: str | Path | None = None,
    degenerate: Degenerate = "error",
    images_outside: bool = False,
) -> Source:
    """A dataset with all its splits, or one of them; arguments as for `load_dataset`."""
    path = from_home(data)
    files = coco_files(path) if split is None and path.is_dir() else []
    if len(files) > 1:
        own = OwnFiles(path, outside=images_outside)
        for file in files:
            own.refuses(file, raise_errors)
        return _coco_source([COCODataset(file, images, True, degenerate, None, images_outside) for file in files])
    located = locate(data, split, images_outside)
    if located.kind == "shapes":
        return _shapes_source(str(data), split)
    dataset = load_dataset(
        data,
        split,
        class_names=class_names,
        images=images,
        degenerate=degenerate,
        images_outside=images_outside,
    )
    if isinstance(dataset, COCODataset):
        return _coco_source([dataset])
    if isinstance(dataset, YOLODataset):
        return _yolo_source(dataset, images_outside)
    assert isinstance(dataset, VOCDataset)
    return _voc_source(dataset)


def _voc_source(dataset: VOCDataset) -> Source:
    pictures = {image_id: SourcePicture(dataset, i, image_id) for i, image_id in enumerate(dataset.ids)}
    if dataset.split is not None:
        return Source("voc", dataset.class_names, None, {dataset.split: list(pictures.values())})
    splits = {}
    for name in list_splits(dataset.root):
        listed = image_ids(dataset.root, name, dataset.own)
        unknown = next((image_id for image_id in listed if image_id not in pictures), None)
        if unknown is not None:
            raise DataError(
                f"{dataset.root}: {name}.txt lists {unknown!r}, which has no annotation; run `stepgrad doctor`"
            )
        splits[name] = [pictures[image_id] for image_id in listed]
    listed_ones = {picture for listed in splits.values() for picture in listed}
    rest = [picture for picture in pictures.values() if picture not in listed_ones]
    if rest:
        splits[UNLISTED if splits else "train"] = rest
    return Source("voc", dataset.class_names, None, splits)


def _coco_source(datasets: list[COCODataset]) -> Source:
    first = datasets[0]
    for dataset in datasets[1:]:
        if (dataset.class_names, dataset.category_ids) != (first.class_names, first.category_ids):
            raise DataError(f"{dataset.path}: has other categories than {first.path}; convert the files one by one")
    names = _split_names([dataset.path.stem.removeprefix("instances_") for dataset in datasets])
    made: dict[Hashable, SourcePicture] = {}
    splits = {
        name: [_coco_picture(dataset, i, called, made) for i, called in enumerate(_coco_names(dataset))]
        for name, dataset in zip(names, datasets, strict=True)
    }
    return Source("coco", first.class_names, first.category_ids, splits)


def _split_names(stems: list[str]) -> list[str]:
    """`train` for train2017 and so on; the name of the file where that would be no name of its own.

    >>> _split_names(["train2017", "val2017"]), _split_names(["train_a", "train_b"]), _split_names(["instances"])
    (['train', 'val'], ['train_a', 'train_b'], ['train'])
    """
    short = [next((split for split in SPLITS if stem.startswith(split)), stem) for stem in stems]
    if len(stems) == 1 and short[0] not in SPLITS:
        return ["train"]
    return short if len(set(short)) == len(stems) else stems


def _coco_picture(dataset: COCODataset, index: int, name: str, made: dict[Hashable, SourcePicture]) -> SourcePicture:
    """A picture; one that another file has with the same objects is the same, as in trainval and train."""
    objects = tuple((a.category, a.xywh, a.area, a.crowd) for a in dataset.images[index].annotations)
    key = (os.path.abspath(dataset.image_path(index)), name, objects)
    return made.setdefault(key, SourcePicture(dataset, index, name))


def _coco_names(dataset: COCODataset) -> list[str]:
    """The names that the file gives its images, or those of their ids; numbers where these are not unique."""
    named = [image.name for image in dataset.images if image.name is not None]
    names = named if len(named) == len(dataset) else [_name_of_id(image) for image in dataset.images]
    return names if len(set(names)) == len(names) else [f"{i:012d}" for i in range(1, len(names) + 1)]


def _name_of_id(image: CocoImage) -> str:
    """The stem of the file's name if that is the id, else the id in twelve digits."""
    stem = Path(image.file_name).stem
    if not isinstance(image.id, int):
        return image.id
    return stem if is_number(stem) and int(stem) == image.id else f"{image.id:012d}"


def _yolo_source(dataset: YOLODataset, images_outside: bool) -> Source:
    """Names are unique in their split, not over all: YOLO has images/train/a.jpg and images/val/a.jpg."""
    data = read_data_yaml(dataset.path, images_outside)
    assert data is not None, "it was read before"
    check_split(data, dataset.split)
    position = {os.path.abspath(image.path): i for i, image in enumerate(dataset.images)}
    made: dict[int, SourcePicture] = {}
    splits = {}
    for name in data.splits if dataset.split is None else [dataset.split]:
        paths = list_images(data, name)
        for path, image_id in zip(paths, image_ids_of(paths, data.root), strict=True):
            index = position[os.path.abspath(path)]
            made.setdefault(index, SourcePicture(dataset, index, image_id))
        splits[name] = [made[position[os.path.abspath(path)]] for path in paths]
    return Source("yolo", dataset.class_names, None, splits)


def _shapes_source(data: str, split: str | None) -> Source:
    arguments = parse_shapes(data, split)
    names = [arguments["split"]] if "split" in arguments else list(SHAPES_SPLITS)
    datasets = {name: ShapesDataset(**(arguments | {"split": name})) for name in names}
    splits = {
        name: [SourcePicture(dataset, i, f"{i:06d}") for i in range(len(dataset))] for name, dataset in datasets.items()
    }
    return Source("shapes", datasets[names[0]].class_names, None, splits)
