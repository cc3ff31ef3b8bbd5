"""Checks of the pictures, and of the boxes against the pictures they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from stepgrad.data.base import lies_outside
from stepgrad.data.doctor.summary import ExaminedImage
from stepgrad.data.images import ImageFacts, decode, read_facts
from stepgrad.data.problems import Problem

SLACK = 0.5
"""Pixels a box may reach beyond the edge without a word: rounding."""
TINY = 16
SUFFIXES = {"JPEG": (".jpg", ".jpeg", ".jpe"), "PNG": (".png",), "TIFF": (".tif", ".tiff")}


def examine_image(entry: ExaminedImage, pixels: bool = True) -> tuple[ImageFacts | None, list[Problem]]:
    """The header of the picture and what is wrong with it; `pixels` decodes it too, which finds truncated files."""
    if entry.image is None:
        return None, list(_box_problems(entry, entry.size)) if entry.size else []
    try:
        facts = read_facts(entry.image)
    except Exception:  # `decode` says what is wrong
        facts = None
    picture = decode(entry.image) if pixels or facts is None else None
    if isinstance(picture, Problem):
        return None, [picture]
    assert facts is not None, "what can be decoded has a header"
    if entry.as_shown:
        facts = replace(facts, size=facts.upright_size, orientation=1)
    problems = [*_file_problems(entry.image, facts), *_size_problems(entry, facts), *_box_problems(entry, facts.size)]
    return facts, problems


def _file_problems(path: Path, facts: ImageFacts) -> Iterator[Problem]:
    suffixes = SUFFIXES.get(facts.format, (f".{facts.format.lower()}",))
    if path.suffix.lower() not in suffixes:
        fix = f"read as {facts.format}; rename it to {suffixes[0]} for tools that rely on the name"
        yield _warning(path, f"is a {facts.format} file called {path.suffix}", fix, "image-format")
    if facts.mode == "CMYK":
        yield _warning(path, "is CMYK", "read with approximate colours; convert it to RGB", "image-cmyk")
    if min(facts.size) < TINY:
        defect = f"is only {facts.size[0]} x {facts.size[1]} pixels"
        yield _warning(path, defect, "it is too small for windows; remove it if it is there by mistake", "image-tiny")


def _size_problems(entry: ExaminedImage, facts: ImageFacts) -> Iterator[Problem]:
    """The annotation must be of these pixels; EXIF rotation is the usual reason why it is not."""
    path, annotated = str(entry.image), entry.size or facts.size
    turned = facts.orientation >= 5  # a quarter turn: width and height change places
    if turned and annotated == facts.size[::-1] != facts.size:
        defect = f"EXIF turns it (orientation {facts.orientation}), and its boxes belong to the turned picture"
        fix = "save the turned pixels (PIL.ImageOps.exif_transpose), without the EXIF tag"
        yield Problem(path, defect, fix, "error", "exif-rotation")
        return
    if facts.orientation != 1:
        fix = "the boxes are used with the pixels as stored; if that is right remove the EXIF tag, else turn the pixels"
        yield _warning(path, f"EXIF orientation {facts.orientation}", fix, "exif-rotation")
    if annotated != facts.size:
        beyond = bool((_excess(entry.objects.boxes, facts.size) > SLACK).any())
        defect = f"is {facts.size[0]} x {facts.size[1]} but annotated as {annotated[0]} x {annotated[1]}"
        fix = "scale the boxes or restore the image" if beyond else "the boxes fit; correct the size in the annotation"
        yield Problem(path, defect, fix, "error" if beyond else "warning", "size-differs")


def _box_problems(entry: ExaminedImage, size: tuple[int, int]) -> Iterator[Problem]:
    boxes = entry.objects.boxes
    outside, excess = lies_outside(boxes, size), _excess(boxes, size)
    for number in np.flatnonzero(outside | (excess > SLACK)):
        where, box = entry.place(int(number)), boxes[number]
        image = f"the {size[0]} x {size[1]} image"
        if outside[number]:
            defect = f"{where} lies outside {image}: {', '.join(f'{value:g}' for value in box)}"
            fix = "check whether image and annotation belong together, or delete the object"
            yield Problem(entry.source, defect, fix, "error", "box-outside")
        elif min(box[:2]) == -1.0 and excess[number] == 1.0:
            defect = f"{where}: xmin or ymin is 0, but VOC counts pixels from 1"
            fix = "kept unchanged (one pixel beyond the edge); add 1 to the corners if the file counts from 0"
            yield _warning(entry.source, defect, fix, "zero-based")
        else:
            defect = f"{where} reaches {excess[number]:g} pixels beyond {image}"
            yield _warning(entry.source, defect, "kept unchanged; correct it if it is wrong", "box-beyond")


def _excess(boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(G,) how far each box reaches beyond the image, in pixels."""
    beyond = np.concatenate([-boxes[:, :2], boxes[:, 2:] - np.array(size)], axis=1)
    return np.clip(beyond, 0.0, None).max(axis=1, initial=0.0)


def _warning(path: str | Path, defect: str, fix: str, kind: str) -> Problem:
    return Problem(str(path), defect, fix, "warning", kind)
