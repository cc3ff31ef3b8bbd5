"""VOC devkit folders: Annotations/*.xml, ImageSets/Main/*.txt, JPEGImages/*."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import DatasetTarget, FileDataset, ImageObjects, Transforms
from stepgrad.data.own_files import OwnFiles, is_below, leads_on
from stepgrad.data.problems import Complaints, Report, loading_report, raise_errors
from stepgrad.data.problems import Degenerate as Degenerate
from stepgrad.data.voc_xml import VOCAnnotation, read_annotation
from stepgrad.errors import ConfigError, DataError, suggest
from stepgrad.names import as_text, on_disk
from stepgrad.number_text import part_counted

# fmt: off
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)
# fmt: on
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
"""Looked for in this order, in capitals too."""
CLASS_FILE = "classes.txt"


class VOCDataset(FileDataset):
    """Images and objects of a VOC devkit folder.

    Args:
        root: the folder with `Annotations`, `ImageSets/Main` and `JPEGImages`.
        split: a list of `ImageSets/Main`, such as "train"; None takes every annotation of the folder.
        class_names: the classes, in the order of the labels. Without it: the lines of `classes.txt` in the folder if
            there is one, else VOC's twenty if they cover the folder, else every name in the folder, sorted.
        need_images: False reads no images and does not look for them: enough to evaluate detections.
        degenerate: "error" refuses reversed boxes, "drop" leaves those objects out.
        transforms: called with (image, target).
        images_outside: True lets links point outside the folder. Otherwise they are refused, because the author of the data
            would choose what is read and shown in reports.
    """

    def __init__(
        self,
        root: str | Path,
        split: str | None = None,
        class_names: Sequence[str] | None = None,
        need_images: bool = True,
        degenerate: Degenerate = "error",
        transforms: Transforms | None = None,
        images_outside: bool = False,
    ) -> None:
        report = loading_report(degenerate)
        self.root = Path(root)
        self.split = split
        self.transforms = transforms
        self.name = f"{self.root.resolve().name}{f' {split}' if split else ''}"
        self.own = OwnFiles(self.root, outside=images_outside)
        self.ids: list[str] = image_ids(self.root, split, self.own, report)
        self._images = self._find_images() if need_images else {}
        self.annotations = [self._read(image_id, report) for image_id in self.ids]
        self.class_names = tuple(class_names) if class_names else infer_classes(self.root, self.annotations, self.own)
        if len(set(self.class_names)) != len(self.class_names):
            raise ConfigError(f"Expected each of class_names once but got {list(self.class_names)}.")
        self._label = {name: label for label, name in enumerate(self.class_names)}
        for annotation in self.annotations:
            check_names(annotation, self.class_names, report)

    def _find_images(self) -> dict[str, str]:
        file_names = index_images(self.root)
        missing = [image_id for image_id in self.ids if image_id not in file_names]
        if missing:
            raise DataError(
                f"{self.root / 'JPEGImages'}: {part_counted(len(missing), len(self.ids), 'image', 'are')} missing, first "
                f"{missing[0]!r}; restore the files, or pass need_images=False if only the objects are needed"
            )
        for image_id in self.ids:
            self.own.refuses(self.root / "JPEGImages" / file_names[image_id], raise_errors)
        return file_names

    def _read(self, image_id: str, report: Report) -> VOCAnnotation:
        annotation = read_annotation(annotation_file(self.root, image_id), self.own, report)
        assert annotation is not None, "loading raises where the doctor continues"
        return annotation

    def objects(self, index: int) -> ImageObjects:
        return self.annotations[index].objects(self._label)

    def target(self, index: int) -> DatasetTarget:
        return self.objects(index).target(self.ids[index])

    def image_size(self, index: int) -> tuple[int, int] | None:
        return self.annotations[index].size

    def devkit_boxes(self, index: int) -> NDArray[np.float64]:
        """(G, 4) the numbers of the XML file, unchanged: 1-based pixels, both corners inside the box."""
        return self.annotations[index].devkit_boxes

    def image_path(self, index: int) -> Path:
        if self.ids[index] not in self._images:
            raise self.no_images()
        return self.root / "JPEGImages" / self._images[self.ids[index]]

    def source(self, index: int) -> str:
        return str(self.annotations[index].path)


def annotation_file(root: Path, image_id: str) -> Path:
    """The XML file of an image."""
    return root / "Annotations" / on_disk(f"{image_id}.xml")


def folder_name(root: Path) -> str:
    """The name of a folder where it lies, even if it is a link or was given as `.`.

    >>> folder_name(Path("VOCdevkit/VOC2012/../VOC2007"))
    'VOC2007'
    """
    return os.path.basename(os.path.abspath(root))


def list_splits(root: Path) -> list[str]:
    """The image sets of a folder, without the per-class ones such as `dog_train`.

    A list is taken for a per-class one when the part after its last underscore is a list too.
    """
    names = sorted(path.stem for path in (root / "ImageSets" / "Main").glob("*.txt"))
    return [name for name in names if "_" not in name or name.rsplit("_", 1)[1] not in names]


def image_ids(root: Path, split: str | None, own: OwnFiles, report: Report = raise_errors) -> list[str]:
    """The image ids of a split in the order of its list, or of all annotations, sorted; each once."""
    if split is None:
        source, ids = root / "Annotations", sorted(as_text(path.stem) for path in (root / "Annotations").glob("*.xml"))
    else:
        source = root / "ImageSets" / "Main" / f"{split}.txt"
        ids = [] if own.refuses(source, report) else read_image_set(source, root, split)
    complain = Complaints(source, report)
    if not ids:
        complain("lists no images", "choose another split, or add images to the list", "no-images")
    seen: set[str] = set()
    for image_id in ids:
        if image_id in seen:
            complain(f"lists image {image_id!r} more than once", "delete the repeated line", "duplicate-id")
        seen.add(image_id)
    return [image_id for image_id in dict.fromkeys(ids) if _stays_inside(image_id, root, complain)]


def _stays_inside(image_id: str, root: Path, complain: Complaints) -> bool:
    """Whether the annotation of an image is in the folder of annotations, where the lists of others may not lead out."""
    if not leads_on(image_id) or is_below(annotation_file(root, image_id), root / "Annotations"):
        return True
    defect = f"lists image {image_id!r}, which points outside {root / 'Annotations'}"
    complain(defect, "correct the line, or copy image and annotation into the folder", "id-outside")
    return False


def read_image_set(path: Path, root: Path, split: str) -> list[str]:
    """The ids of an image set; a second column (-1, 0 or 1 in per-class lists) is passed over."""
    if not os.path.lexists(path):
        splits = list_splits(root)
        have = f"it has {', '.join(splits)}.{suggest(split, splits)}" if splits else "it has none."
        raise DataError(f"{path}: no such image set; {have}")
    return [re.sub(r"\s+(-1|0|1)$", "", line) for line in _read_lines(path, "image id")]


def _read_lines(path: Path, expected: str) -> list[str]:
    """The lines of a text that are not empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected one {expected} per line") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def index_images(root: Path) -> dict[str, str]:
    """File name by image id, of everything in JPEGImages that has the name of an image."""
    folder = root / "JPEGImages"
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; put the images there, or pass need_images=False to work without images"
        )
    ranks = {suffix: rank for rank, suffix in enumerate(IMAGE_SUFFIXES)}
    names = [path.name for path in folder.iterdir() if path.suffix.lower() in ranks]
    names.sort(key=lambda name: (-ranks[Path(name).suffix.lower()], name))  # the preferred suffix comes last and wins
    return {as_text(Path(name).stem): name for name in names}


def infer_classes(root: Path, annotations: Iterable[VOCAnnotation], own: OwnFiles) -> tuple[str, ...]:
    """The classes of a folder, the same for all its splits."""
    listed = read_class_file(root, own)
    if listed:
        return listed
    loaded = {annotation.path: annotation for annotation in annotations}
    paths = (root / "Annotations").glob("*.xml")  # of other splits too
    everything = [loaded.get(path) or read_annotation(path, own, lambda problem: None) for path in paths]
    names = {name for annotation in everything if annotation for name in annotation.names}
    return VOC_CLASSES if names <= set(VOC_CLASSES) else tuple(sorted(names))


def read_class_file(root: Path, own: OwnFiles) -> tuple[str, ...] | None:
    """The lines of `classes.txt`, where somebody wrote one."""
    path = root / CLASS_FILE
    if not path.is_file() or own.refuses(path, raise_errors):
        return None
    names = tuple(_read_lines(path, "class name"))
    if len(set(names)) != len(names) or not names:
        raise DataError(f"{path}: expected one class name per line, each once, but it is empty or repeats one")
    return names


def check_names(annotation: VOCAnnotation, class_names: Sequence[str], report: Report) -> None:
    """Report the objects whose class is not among `class_names`."""
    for number, name in zip(annotation.numbers, annotation.names, strict=True):
        if name not in class_names:
            defect = f"object {number}: unknown class {name!r}.{suggest(name, list(class_names))}"
            fix = f"expected one of {', '.join(class_names)}: rename it, or list all classes in {CLASS_FILE}"
            Complaints(annotation.path, report)(defect, fix, "unknown-class")
