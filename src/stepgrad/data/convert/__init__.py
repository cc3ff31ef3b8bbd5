"""`stepgrad convert`: any dataset as YOLO, VOC or COCO files, without loss where the format can hold it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepgrad.data.convert.notes import FORMATS, Difficult, Format, Notes
from stepgrad.data.convert.pictures import DoneOfAll, How, put_pictures
from stepgrad.data.convert.source import open_source
from stepgrad.data.convert.to_coco import write_coco
from stepgrad.data.convert.to_voc import check_names, write_voc
from stepgrad.data.convert.to_yolo import write_yolo
from stepgrad.data.problems import Degenerate
from stepgrad.data.shape_fields import Task
from stepgrad.errors import ConfigError, DataError, one_of
from stepgrad.files import WriteError, explain, folder_beside
from stepgrad.names import from_home

__all__ = ["Conversion", "Format", "convert"]

_WRITERS = {"yolo": write_yolo, "voc": write_voc, "coco": write_coco}


@dataclass(frozen=True)
class Conversion:
    """What was written."""

    folder: Path
    images: int
    splits: dict[str, int]
    """Number of images by split."""
    notes: tuple[str, ...]
    """What the format could not hold, a line for each kind."""


def convert(
    data: str | Path,
    out: str | Path,
    to: Format,
    split: str | None = None,
    *,
    class_names: Sequence[str] | None = None,
    images: str | Path | None = None,
    pictures: How = "copy",
    difficult: Difficult = "keep",
    degenerate: Degenerate = "error",
    images_outside: bool = False,
    task: Task = "boxes",
    progress: DoneOfAll | None = None,
) -> Conversion:
    """Write a dataset to a new folder in another format, whole or not at all.

    Boxes come back to a millionth of a pixel. Masks, keypoints and oriented boxes are written if the task says so, and stay
    behind with a note if not; whatever else stepgrad does not read stays behind.

    Args:
        data: as for `load_dataset`; of a folder all splits are written.
        out: the new folder.
        to: "yolo", "voc" or "coco".
        split: write only this one.
        class_names: VOC: the classes in the order of the labels.
        images: COCO: the folder of the images.
        pictures: "copy", or "link" for symbolic links to the images where they are.
        difficult: for COCO and YOLO, which know no difficult objects: "keep" them as ordinary ones, "ignore" them as regions of
            their class that are not judged, or "drop" them.
        degenerate: "error" refuses boxes without area, "drop" leaves them out.
        images_outside: whether file names and links may lead out of the data's folder.
        task: what is written besides boxes: "masks", "keypoints" or "oriented"; not for VOC, which stores boxes.
        progress: called after each image.
    """
    one_of("to", to, list(FORMATS))
    one_of("pictures", pictures, ["copy", "link"])
    one_of("difficult", difficult, ["keep", "drop", "ignore"])
    if to == "voc" and task != "boxes":
        raise ConfigError(f'task: VOC stores boxes only; expected to="coco" or to="yolo" for {task}.')
    place = from_home(out)
    if os.path.lexists(place):
        raise DataError(f"{place}: exists already; choose a new folder, since nothing is overwritten")
    source = open_source(
        data,
        split,
        class_names=class_names,
        images=images,
        degenerate=degenerate,
        images_outside=images_outside,
        task=task,
    )
    if to == "voc":
        check_names(source.class_names)
    notes = Notes(to)
    for dataset in dict.fromkeys(picture.dataset for picture in source.pictures):
        for kind, count in dataset.unread.items():
            notes.add(f"{kind}-unread", count)
    if to != "coco" and source.category_ids != tuple(range(1, len(source.class_names) + 1)):
        notes.add("category", len(source.class_names))  # a way back numbers the classes from 1
    try:
        with folder_beside(Path(os.path.abspath(place)).parent) as beside:
            made = beside / secrets.token_hex(8)
            made.mkdir()
            put_pictures(source, made, pictures, notes, progress)
            _WRITERS[to](source, made, difficult, notes)
            os.rename(made, place)
    except OSError as error:
        raise WriteError(explain(place, error)) from error
    sizes = {name: len(listed) for name, listed in source.splits.items()}
    return Conversion(place, len(source.pictures), sizes, tuple(notes.lines()))
