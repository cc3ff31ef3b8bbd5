"""Writing a VOC folder: Annotations, ImageSets/Main, JPEGImages and classes.txt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from stepgrad.data.convert.layout import homes, note_categories, stems_of_all
from stepgrad.data.convert.notes import Notes
from stepgrad.data.convert.objects import SourceObjects, note_areas, objects_in, tidy
from stepgrad.data.convert.pictures import PictureFiles
from stepgrad.data.convert.source import UNLISTED, Source
from stepgrad.data.voc import CLASS_FILE
from stepgrad.data.voc_xml import CORNERS
from stepgrad.errors import DataError
from stepgrad.names import file_name, to_utf8, visible, word
from stepgrad.pixels import devkit_from_continuous


def write_voc(source: Source, out: Path, files: PictureFiles, notes: Notes, tick: Callable[[], None]) -> None:
    """Write the whole dataset into an empty folder."""
    _check_names(source.class_names)
    home = homes(source)
    stems = stems_of_all(source, home, notes, word)
    note_categories(source, notes)
    for folder in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (out / folder).mkdir(parents=True)
    for picture in source.pictures:
        image = f"{stems[picture]}{files.suffix(picture)}"
        size = files.put(picture, out / "JPEGImages" / image)
        objects = objects_in(picture)
        notes.add("crowd", int(objects.crowd.sum()))
        text = _annotation(image, size, objects[~objects.crowd], source.class_names, notes)
        (out / "Annotations" / f"{stems[picture]}.xml").write_bytes(to_utf8(text))
        tick()
    for name, pictures in source.splits.items():
        if name != UNLISTED:
            lines = "".join(f"{stems[picture]}\n" for picture in pictures)
            (out / "ImageSets/Main" / f"{file_name(name)}.txt").write_bytes(to_utf8(lines))
    (out / CLASS_FILE).write_bytes(to_utf8("".join(f"{name}\n" for name in source.class_names)))


def _check_names(class_names: tuple[str, ...]) -> None:
    """VOC has names as lines of a list and as text of XML."""
    for name in class_names:
        if visible(name) != name or name.strip() != name or len(name.splitlines()) != 1:
            raise DataError(
                f"class {name!r} cannot be written to a VOC folder, where each name is one line of text; rename it"
            )


def _annotation(
    image: str, size: tuple[int, int], objects: SourceObjects, class_names: tuple[str, ...], notes: Notes
) -> str:
    note_areas(objects, notes)
    width, height = size
    lines = [
        "<annotation>",
        f"  <filename>{escape(image)}</filename>",
        f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>",
    ]
    devkit = devkit_from_continuous(objects.boxes)
    narrow = devkit[:, 2:] < devkit[:, :2]
    notes.add("narrow", int(narrow.any(axis=1).sum()))
    devkit[:, 2:] = np.maximum(devkit[:, 2:], devkit[:, :2])
    for box, label, difficult in zip(devkit, objects.labels.tolist(), objects.difficult.tolist(), strict=True):
        corners = "".join(f"<{corner}>{tidy(value)}</{corner}>" for corner, value in zip(CORNERS, box, strict=True))
        name = escape(class_names[label])
        lines.append(
            f"  <object><name>{name}</name><difficult>{int(difficult)}</difficult><bndbox>{corners}</bndbox></object>"
        )
    return "\n".join([*lines, "</annotation>\n"])
