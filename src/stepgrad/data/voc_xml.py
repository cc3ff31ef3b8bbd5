"""One VOC annotation file: 1-based inclusive pixels in, continuous boxes out, no entity expansion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import ImageObjects, make_objects
from stepgrad.data.coco_json import LARGEST
from stepgrad.data.own_files import OwnFiles
from stepgrad.data.problems import DROP, Complaints, Report, raise_errors
from stepgrad.pixels import continuous_from_devkit

CORNERS = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True)
class VOCAnnotation:
    """The content of one XML file; G objects."""

    path: Path
    size: tuple[int, int] | None
    """Width and height as the file gives them; None where it gives none."""
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    """The position of each object in the file, from 0; bad ones are left out."""
    devkit_boxes: NDArray[np.float64]
    """(G, 4) the very numbers of the file: xmin ymin xmax ymax, first pixel = 1, both corners inside the box."""
    difficult: NDArray[np.bool_]

    def objects(self, label_of: Mapping[str, int]) -> ImageObjects:
        """The objects with the label of each name."""
        labels = [label_of[name] for name in self.names]
        return make_objects(continuous_from_devkit(self.devkit_boxes), labels, self.difficult)


class _Refused(Exception):
    """The file declares a document type or an entity."""


def parse_xml(data: bytes) -> Element:
    """The element tree of `data`; a document type or entity declaration is refused before it can expand."""

    def refuse(*_: object) -> NoReturn:
        raise _Refused

    builder, parser = TreeBuilder(), expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.Parse(data, True)
    return builder.close()


def read_annotation(path: Path, own: OwnFiles, report: Report = raise_errors) -> VOCAnnotation | None:
    """Read one file and hand every problem to `report`. Bad objects are left out; None if nothing can be read."""
    complain = Complaints(path, report)
    if own.refuses(path, report):
        return None
    try:
        root = parse_xml(path.read_bytes())
    except FileNotFoundError:
        return complain("no such annotation", "restore it, or remove the image from the image list", "no-annotation")
    except OSError as error:
        return complain(f"cannot be read ({error.strerror})", "check its permissions", "no-annotation")
    except _Refused:
        fix = "delete the <!DOCTYPE ...> part; VOC files need none, and entities can be used to fill the memory"
        return complain("declares a document type or an entity, which is refused", fix, "xml-entities")
    except (expat.ExpatError, LookupError, ValueError) as error:  # the latter two for encodings it does not know
        return complain(f"is not well-formed XML ({error})", "export the annotation again", "xml-damaged")
    if root.tag != "annotation":
        fix = "check that this is a VOC annotation"
        return complain(f"expected <annotation> at the top but got <{root.tag}>", fix, "xml-damaged")
    objects = [_read_object(element, i, complain) for i, element in enumerate(root.findall("object"))]
    good = [read for read in objects if read is not None]
    numbers = tuple(number for number, read in enumerate(objects) if read is not None)
    if not objects:
        complain("holds no objects", "fine for a background image; otherwise annotate it", "no-objects", "warning")
    return VOCAnnotation(
        path=path,
        size=_read_size(root),
        names=tuple(name for name, _, _ in good),
        numbers=numbers,
        devkit_boxes=np.array([box for _, box, _ in good], dtype=np.float64).reshape(-1, 4),
        difficult=np.array([difficult for _, _, difficult in good], dtype=np.bool_),
    )


def _text(element: Element, tag: str) -> str | None:
    text = element.findtext(tag)
    return None if text is None else text.strip()


def _read_size(root: Element) -> tuple[int, int] | None:
    """Some tools write no size, or zeros; then the image itself has to say."""
    try:
        width, height = (int(float(_text(root, f"size/{side}") or 0)) for side in ("width", "height"))
    except (ValueError, OverflowError):
        return None
    return (width, height) if width > 0 and height > 0 else None


def _read_object(element: Element, number: int, complain: Complaints) -> tuple[str, list[float], bool] | None:
    name = _text(element, "name")
    where = f"object {number}" + (f" ({name})" if name else "")
    if not name:
        return complain(f"{where} has no <name>", "name its class or delete it", "no-name")
    flag = _text(element, "difficult") or "0"
    if flag not in ("0", "1"):
        complain(f"{where}: expected <difficult> 0 or 1 but got {flag!r}", "write 0 or 1", "difficult")
    box = _read_box(element, where, complain)
    return None if box is None else (name, box, flag == "1")


def _read_box(element: Element, where: str, complain: Complaints) -> list[float] | None:
    texts = [_text(element, f"bndbox/{corner}") for corner in CORNERS]
    try:
        box = [float(text) for text in texts if text is not None]
    except ValueError:
        box = []
    if len(box) != 4 or not all(abs(value) < LARGEST for value in box):
        got = ", ".join(f"{corner} {text}" for corner, text in zip(CORNERS, texts, strict=True))
        defect = f"{where}: expected four numbers in <bndbox> but got {got}"
        return complain(defect, "write its box in this form", "box-numbers")
    xmin, ymin, xmax, ymax = box
    if xmax < xmin or ymax < ymin:
        got = f"xmax {xmax:g} < xmin {xmin:g}" if xmax < xmin else f"ymax {ymax:g} < ymin {ymin:g}"
        return complain(f"{where}: {got}", f"swap the corners or delete the object; {DROP}", "box-degenerate")
    return box
