"""The images of a YOLO dataset: those of folders and lists, their label files, and their ids."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stepgrad.data.own_files import ALLOW_OUTSIDE
from stepgrad.data.problems import Complaints, Report, brief, raise_errors
from stepgrad.data.voc import IMAGE_SUFFIXES
from stepgrad.data.yolo_yaml import DataYaml
from stepgrad.names import as_text, on_disk
from stepgrad.number_text import agreeing, counted

LARGEST_LIST = 256_000_000
"""Bytes of a .txt file of images; two million paths."""


def list_images(data: DataYaml, split: str | None, report: Report = raise_errors) -> list[Path]:
    """The images of a split in the order of its lists, folders sorted; None takes all splits. Each image once."""
    names = list(data.splits) if split is None else [split]
    found: dict[str, Path] = {}
    for place in (place for name in names for place in data.splits[name]):
        listed = _folder_images(place) if place.is_dir() else _listed_images(place, data, report)
        if not listed:
            Complaints(place, report)("holds no images", "fill it, or take it out of data.yaml", "no-images")
        found.update({os.path.abspath(path): path for path in listed if not data.own.refuses(path, report)})
    return list(found.values())


def _folder_images(folder: Path) -> list[Path]:
    """Every image below a folder, sorted by path."""
    found = [
        Path(parent) / name
        for parent, _, names in os.walk(folder)
        for name in names
        if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
    ]
    return sorted(found, key=lambda path: as_text(path.as_posix()))


def _listed_images(path: Path, data: DataYaml, report: Report) -> list[Path]:
    """The images of a .txt file, relative to its own folder or to the root."""
    complain = Complaints(path, report)
    lines: list[str] = []
    try:
        if path.stat().st_size <= LARGEST_LIST:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        else:
            complain("is too large for a list of images", "expected one image path per line", "list-unreadable")
    except (OSError, UnicodeDecodeError) as error:
        complain(f"cannot be read ({error})", "expected one image path per line", "list-unreadable")
    images: dict[str, Path] = {}
    repeated: list[str] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        image = _listed_image(line, f"line {number}", path, data, complain) if line else None
        if image is None:
            continue
        if os.path.abspath(image) in images:
            repeated.append(line)
        images.setdefault(os.path.abspath(image), image)
    if repeated:
        count = f"{counted(len(repeated), 'line')} {agreeing(len(repeated), 'repeat')}"
        complain(f"{count} an image, first {brief(repeated[0])}", "each image is used once", "duplicate-id", "warning")
    return list(images.values())


def _listed_image(line: str, where: str, path: Path, data: DataYaml, complain: Complaints) -> Path | None:
    if "\0" in line:
        return complain(f"{where}: expected a path but got {brief(line)}", "correct it", "image-missing")
    tried = [base / on_disk(line) for base in (path.parent, data.root)]
    image = next((place for place in tried if os.path.isfile(place)), tried[0])
    if not data.own.holds_file(image):
        defect = f"{where}: {brief(line)} points outside {data.own.folders[0]}"
        return complain(defect, f"correct it, or allow such paths: {ALLOW_OUTSIDE}", "image-outside")
    if not os.path.isfile(image):
        bases = " or ".join(dict.fromkeys(map(str, (path.parent, data.root))))
        fix = f"restore it or take it off the list; paths are relative to {bases}"
        return complain(f"{where}: no image {brief(line)}", fix, "image-missing")
    return image


def label_file(image: Path) -> Path:
    """The label file of an image: the last `images` of its path becomes `labels`, its suffix `.txt`.

    >>> label_file(Path("d/images/train/a.b.jpg")).as_posix()
    'd/labels/train/a.b.txt'
    """
    parts = list(_parts(image))
    start = _behind_images(parts)
    if start:
        parts[start - 1] = "labels"
    return Path(*parts).with_suffix(".txt")


def _parts(image: Path) -> tuple[str, ...]:
    """The parts of a path; of the absolute one where only that goes through a folder `images`."""
    return image.parts if _behind_images(image.parts) else Path(os.path.abspath(image)).parts


def _behind_images(parts: Sequence[str]) -> int:
    """The position behind the last folder `images`; 0 without one."""
    return next((i + 1 for i in range(len(parts) - 2, -1, -1) if parts[i] == "images"), 0)


def region_key(image: Path) -> str:
    """The name of an image in the file of ignored regions: its path behind the last `images`, without suffix.

    >>> region_key(Path("d/images/train/a.b.jpg"))
    'train/a.b'
    """
    parts = _parts(image.with_suffix(""))
    return as_text("/".join(parts[_behind_images(parts) or -1 :]))


def image_ids_of(images: Sequence[Path], root: Path) -> list[str]:
    """An id for each image: the name of its file without suffix; where two are alike, all get their path from the root.

    >>> image_ids_of([Path("d/images/a.jpg"), Path("d/images/b.jpg")], Path("d"))
    ['a', 'b']
    >>> image_ids_of([Path("d/images/train/a.jpg"), Path("d/images/val/a.jpg")], Path("d"))
    ['images/train/a', 'images/val/a']
    """
    stems = [as_text(image.stem) for image in images]
    if len(set(stems)) == len(stems):
        return stems
    paths = [Path(os.path.relpath(image, root)) for image in images]
    ids = [as_text(path.with_suffix("").as_posix()) for path in paths]
    return ids if len(set(ids)) == len(ids) else [as_text(path.as_posix()) for path in paths]  # a.jpg beside a.png
