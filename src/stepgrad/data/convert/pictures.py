"""Pictures of a new dataset: their names and folders, and files that are copies, links, or saved again where they must be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from stepgrad.data.coco import COCODataset
from stepgrad.data.convert.notes import Notes
from stepgrad.data.convert.source import Source, SourcePicture
from stepgrad.data.images import ImageFacts, read_facts, read_image
from stepgrad.data.voc import IMAGE_SUFFIXES
from stepgrad.data.yolo import YOLODataset
from stepgrad.data.yolo_yaml import SPLITS
from stepgrad.names import file_name, file_names, word

How = Literal["copy", "link"]
DoneOfAll = Callable[[int, int], None]
"""Called with the number of images written and of all."""
_SUFFIX_OF = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "BMP": ".bmp", "WEBP": ".webp", "TIFF": ".tif"}


def put_pictures(source: Source, out: Path, how: How, notes: Notes, progress: DoneOfAll | None) -> None:
    """Choose folder and name of each picture, and put its file there."""
    _choose_homes(source)
    _choose_stems(source, notes)
    for done, picture in enumerate(source.pictures, 1):
        folder = out / ("JPEGImages" if notes.to == "voc" else f"images/{picture.home}")
        folder.mkdir(parents=True, exist_ok=True)
        _put(picture, folder, how, notes)
        if progress is not None:
            progress(done, len(source.pictures))


def _choose_homes(source: Source) -> None:
    """The folder of each picture: that of its first split, where train, val and test come first."""
    for name in sorted(source.splits, key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS)):
        for picture in source.splits[name]:
            picture.home = picture.home or file_name(name)


def _choose_stems(source: Source, notes: Notes) -> None:
    """Names that are unique in each folder; in VOC, where all are in one, they may have to begin with that of the split."""
    pictures = source.pictures
    names = [word(picture.name) if notes.to == "voc" else picture.name for picture in pictures]
    if notes.to == "voc" and len(set(names)) != len(names):
        names = [f"{picture.home}_{name}" for picture, name in zip(pictures, names, strict=True)]
    folders: dict[str, list[int]] = {}
    for i, picture in enumerate(pictures):
        folders.setdefault("" if notes.to == "voc" else picture.home, []).append(i)
    for inside in folders.values():
        for i, stem in zip(inside, file_names([names[i] for i in inside]), strict=True):
            pictures[i].stem = stem
    notes.add("renamed", sum(picture.stem != picture.name for picture in pictures))
    if notes.to != "coco":
        files = [(p.name, p.dataset.image_path(p.index)) for p in pictures if isinstance(p.dataset, COCODataset)]
        notes.add("named", sum(file.stem != name for name, file in files))


def _put(picture: SourcePicture, folder: Path, how: How, notes: Notes) -> None:
    """Make the new file; sets its name, and its width and height as the new dataset reads it."""
    path = picture.path
    if path is None:
        _store(picture, folder, ".png")
        return
    facts = _facts(path)
    is_usual = path.suffix.lower() in IMAGE_SUFFIXES
    suffix = path.suffix if is_usual else _SUFFIX_OF.get(facts.format, ".png")
    from_yolo = isinstance(picture.dataset, YOLODataset)  # its boxes are of pictures as shown, others of those stored
    if facts.is_turned and from_yolo != (notes.to == "yolo"):
        notes.add("stored")
        _store(picture, folder, suffix)
    elif not is_usual and facts.format not in _SUFFIX_OF:
        notes.add("encoded")
        _store(picture, folder, suffix)
    else:
        picture.file, picture.size = f"{picture.stem}{suffix}", facts.upright_size if from_yolo else facts.size
        _copy(path, folder / picture.file, how, notes)


def _copy(path: Path, place: Path, how: How, notes: Notes) -> None:
    if how == "link":
        notes.add("linked")
        os.symlink(os.path.abspath(path), place)
    else:
        shutil.copyfile(path, place)


def _store(picture: SourcePicture, folder: Path, suffix: str) -> None:
    """Save the pixels as the source reads them, without EXIF."""
    image = picture.dataset.image(picture.index)
    image.info.clear()  # EXIF would turn it once more
    picture.file, picture.size = f"{picture.stem}{suffix}", image.size
    if suffix.lower() in (".jpg", ".jpeg"):
        image.save(folder / picture.file, quality=95, subsampling=0)
    else:
        image.save(folder / picture.file)


def _facts(path: Path) -> ImageFacts:
    try:
        return read_facts(path)
    except Exception:  # decoders raise whatever they stumble over
        read_image(path)  # says what is wrong with it
        raise
