"""Writing a VOC folder: Annotations, ImageSets/Main, JPEGImages and classes.txt."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from stepgrad.data.convert.notes import Difficult, Notes, note_areas, tidy
from stepgrad.data.convert.source import UNLISTED, Source, SourcePicture
from stepgrad.data.voc import CLASS_FILE
from stepgrad.data.voc_xml import CORNERS
from stepgrad.errors import DataError
from stepgrad.names import file_name, to_utf8, visible
from stepgrad.pixels import devkit_from_continuous


def write_voc(source: Source, out: Path, _: Difficult, notes: Notes) -> None:
    """Write the annotations of all pictures, the lists of splits and the names of classes."""
    for folder in ("Annotations", "ImageSets/Main"):
        (out / folder).mkdir(parents=True)
    for picture in source.pictures:
        text = _annotation(picture, source.class_names, notes)
        (out / "Annotations" / f"{picture.stem}.xml").write_bytes(to_utf8(text))
    for name, pictures in source.splits.items():
        if name != UNLISTED:
            lines = "".join(f"{picture.stem}\n" for picture in pictures)
            (out / "ImageSets/Main" / f"{file_name(name)}.txt").write_bytes(to_utf8(lines))
    (out / CLASS_FILE).write_bytes(to_utf8("".join(f"{name}\n" for name in source.class_names)))


def check_names(class_names: tuple[str, ...]) -> None:
    """Raise DataError for a name that VOC cannot hold: it is a line of a list, and text of XML."""
    for name in class_names:
        if visible(name) != name or name.strip() != name or len(name.splitlines()) != 1:
            raise DataError(
                f"class {name!r} cannot be written to a VOC folder, where each name is one line of text; rename it"
            )


def _annotation(picture: SourcePicture, class_names: tuple[str, ...], notes: Notes) -> str:
    notes.add("crowd", int(picture.objects.crowd.sum()))
    objects = picture.objects[~picture.objects.crowd]
    note_areas(objects, notes)
    width, height = picture.size
    lines = [
        "<annotation>",
        f"  <filename>{escape(picture.file)}</filename>",
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
