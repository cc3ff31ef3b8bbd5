"""The folder of `stepgrad detect`: it replaces what an earlier detection wrote there and nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepgrad.errors import DataError
from stepgrad.files import write_whole
from stepgrad.names import file_name
from stepgrad.report.draw import colour_of, draw_detections

if TYPE_CHECKING:
    from PIL import Image

RECORD = "detections.json"


class DetectionsFolder:
    """Drawn pictures and their record.

    The record holds its own SHA-256 and that of every drawing. A file is ours if the record there is as it was written
    and the file is, byte for byte, the drawing that the record names; any other file is the user's and stays.
    """

    def __init__(self, folder: Path, inputs: Sequence[Path]) -> None:
        self.folder = folder
        self.images: list[dict[str, Any]] = []
        """The entries of the record."""
        self._inputs = {path.resolve() for path in inputs}
        self._ours = self._drawn_before()
        self._taken: set[str] = set()

    def _drawn_before(self) -> dict[str, str]:
        """SHA-256 of the drawings by name."""
        path = self.folder / RECORD
        if not os.path.lexists(path):
            return {}
        try:
            content = json.loads(path.read_bytes())
            if content.pop("sha256") != _record_digest(content):
                raise ValueError
            return {entry["drawing"]: entry["drawing_sha256"] for entry in content["images"] if entry["drawing"]}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
            raise DataError(
                f"{path}: was not written by `stepgrad detect`, or was changed since; move it away, or choose another "
                "folder with --out."
            ) from None

    def add(self, source: Path, picture: Image.Image, detections: Sequence[Mapping[str, Any]], drawn: bool) -> None:
        """Note the detections in a picture, each with `box`, `label`, `class` and `score`, and write a drawing of them."""
        drawing = self._save_drawing(source, draw(source, picture, detections)) if drawn else {"drawing": None}
        width, height = picture.size
        self.images.append(
            {"image": str(source), "width": width, "height": height, **drawing, "detections": list(detections)}
        )

    def _save_drawing(self, source: Path, content: bytes) -> dict[str, str]:
        """Write a drawing under the name of its picture, or a numbered one where that is taken; gives name and digest."""
        name = self._free_name(file_name(source.stem), ".jpg" if is_photo(source) else ".png")
        write_whole(self.folder / name, content)
        return {"drawing": name, "drawing_sha256": _digest(content)}

    def _free_name(self, stem: str, suffix: str) -> str:
        number = 1
        while not self._is_free(name := f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}"):
            number += 1
        self._taken.add(name.casefold())
        return name

    def _is_free(self, name: str) -> bool:
        path = self.folder / name
        if name.casefold() in self._taken or path.resolve() in self._inputs:
            return False
        return not os.path.lexists(path) or self._is_ours(path)

    def _is_ours(self, path: Path) -> bool:
        """Whether `stepgrad detect` wrote this drawing and nobody has changed it since."""
        digest = self._ours.get(path.name)
        return digest is not None and path.is_file() and not path.is_symlink() and _digest(path.read_bytes()) == digest

    def save_record(self, **about: Any) -> None:
        """Write the record: what is to be said about the detections, and the pictures so far."""
        record = {**about, "images": self.images}
        signed = {**record, "sha256": _record_digest(record)}
        write_whole(self.folder / RECORD, (json.dumps(signed, indent=1) + "\n").encode())


def _record_digest(content: Mapping[str, Any]) -> str:
    return _digest(json.dumps(content, sort_keys=True).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def is_photo(source: Path) -> bool:
    """Whether the drawing is a JPEG as the picture is, or a PNG."""
    return source.suffix.lower() in (".jpg", ".jpeg")


def draw(source: Path, picture: Image.Image, detections: Sequence[Mapping[str, Any]]) -> bytes:
    """The picture with its detections, as a file."""
    texts = [f"{detection['class']} {detection['score']:.2f}" for detection in detections]
    colours = [colour_of(detection["label"]) for detection in detections]
    drawn = draw_detections(picture, [detection["box"] for detection in detections], texts, colours)
    content = io.BytesIO()
    drawn.save(content, "JPEG" if is_photo(source) else "PNG", **({"quality": 92} if is_photo(source) else {}))
    return content.getvalue()
