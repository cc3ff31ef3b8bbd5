"""DOTA's folders: a text file of oriented boxes for each image in `labelTxt`, and the pictures in `images` beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepgrad.data.base import DatasetTarget, FileDataset, ImageObjects, Transforms, make_objects
from stepgrad.data.detection_rows import numbers_in
from stepgrad.data.own_files import OwnFiles
from stepgrad.data.problems import DROP, Complaints, Degenerate, Report, brief, loading_report
from stepgrad.data.shape_fields import LARGEST, Task, quad_defect
from stepgrad.data.voc import IMAGE_SUFFIXES
from stepgrad.errors import ConfigError, DataError, suggest

_HEADERS = ("imagesource:", "gsd:")
Line = tuple[str, bool, tuple[float, ...], int]
"""Class, whether it is difficult, eight numbers, and the line of the file."""


@dataclass(frozen=True)
class DotaImage:
    """One image with its objects, in the order of the file."""

    label_path: Path
    lines: tuple[Line, ...]

    def objects(self, label_of: dict[str, int], task: str = "oriented") -> ImageObjects:
        """The objects with the label of each class; boxes are those around the oriented ones."""
        corners = np.array([line[2] for line in self.lines], dtype=np.float64).reshape(-1, 4, 2)
        return make_objects(
            np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1),
            labels=[label_of[line[0]] for line in self.lines],
            difficult=[line[1] for line in self.lines],
            shapes=list(corners.reshape(-1, 8)) if task == "oriented" else None,
        )


class DOTADataset(FileDataset):
    """Images and objects of a folder of DOTA, with lines `x1 y1 x2 y2 x3 y3 x4 y4 class difficult`.

    Args:
        path: the folder `labelTxt`; the pictures are in `images` beside it.
        class_names: the classes in the order of the labels; None: those of the files, by name.
        need_images: False reads no images and does not look for them: enough to evaluate detections.
        degenerate: "error" refuses boxes without area, "drop" leaves those objects out.
        transforms: called with (image, target).
        images_outside: True lets links lead out of the folder of the data.
        task: "oriented", or "boxes" for those around the oriented ones.
    """

    def __init__(
        self,
        path: str | Path,
        class_names: Sequence[str] | None = None,
        need_images: bool = True,
        degenerate: Degenerate = "error",
        transforms: Transforms | None = None,
        images_outside: bool = False,
        task: Task = "oriented",
    ) -> None:
        if task not in ("boxes", "oriented"):
            raise ConfigError(f"task: {path} has oriented boxes only but got {task}.")
        self.path, self.task, self.transforms, self.need_images = Path(path), task, transforms, need_images
        self.name = self.path.parent.resolve().name
        self.own = OwnFiles(self.path.parent, outside=images_outside)
        self.images = read_dota(self.path, self.own, loading_report(degenerate))
        self.ids: list[str] = [image.label_path.stem for image in self.images]
        found = dota_classes(self.images)
        self.class_names = tuple(class_names or found)
        unknown = next((name for name in found if name not in self.class_names), None)
        if unknown is not None:
            close = suggest(unknown, list(self.class_names))
            raise DataError(
                f"{self.path}: has objects of class {unknown!r}, which is not among the class names.{close}"
            )
        self.unread = {"oriented": sum(len(image.lines) for image in self.images)} if task == "boxes" else {}
        self._label = {name: label for label, name in enumerate(self.class_names)}

    def objects(self, index: int) -> ImageObjects:
        return self.images[index].objects(self._label, self.task)

    def target(self, index: int) -> DatasetTarget:
        return self.objects(index).target(self.ids[index], self.task)

    def image_path(self, index: int) -> Path:
        if not self.need_images:
            raise self.no_images()
        found = picture_of(self.images[index], self.own, loading_report("error"))
        if found is None:
            raise DataError(f"{self.source(index)}: has no picture in {self.path.parent / 'images'}; restore it")
        return found

    def source(self, index: int) -> str:
        return str(self.images[index].label_path)


def dota_classes(images: Sequence[DotaImage]) -> tuple[str, ...]:
    """The classes of all objects, by name."""
    return tuple(sorted({line[0] for image in images for line in image.lines}))


def picture_of(image: DotaImage, own: OwnFiles, report: Report) -> Path | None:
    """The file of the picture, if there is one that may be read."""
    folder = image.label_path.parent.parent / "images"
    files = [folder / f"{image.label_path.stem}{suffix}" for suffix in IMAGE_SUFFIXES]
    found = next((file for file in files if file.is_file()), None)
    return None if found is None or own.refuses(found, report) else found


def read_dota(folder: Path, own: OwnFiles, report: Report) -> list[DotaImage]:
    """Every label file of a folder, handing every problem to `report`; bad lines are left out."""
    files = [file for file in sorted(folder.glob("*.txt")) if not own.refuses(file, report)]
    images = [DotaImage(file, tuple(_read_lines(file, report))) for file in files]
    if not any(image.lines for image in images):
        Complaints(folder, report)(
            "has no objects", "expected lines `x1 y1 ... x4 y4 class difficult`", "no-objects-at-all"
        )
    return images


def _read_lines(path: Path, report: Report) -> list[Line]:
    complain = Complaints(path, report)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        complain(f"cannot be read as text ({error})", "export the labels again", "label-unreadable")
        return []
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or (number <= 2 and line.startswith(_HEADERS)):
            continue
        values = numbers_in(words[:8])
        is_whole = len(words) in (9, 10) and words[9:] in ([], ["0"], ["1"])
        if len(values) != 8 or not is_whole or not all(abs(value) < LARGEST for value in values):
            defect = f"line {number}: expected `x1 y1 x2 y2 x3 y3 x4 y4 class difficult` but got {brief(line)}"
            complain(defect, "write its box in this form", "box-numbers")
            continue
        wrong = quad_defect(np.array(values))
        if wrong:
            complain(
                f"line {number}: {wrong} but got {brief(line)}", f"correct or delete the line; {DROP}", "box-degenerate"
            )
            continue
        lines.append((words[8], words[9:] == ["1"], tuple(values), number))
    return lines
