"""Pictures for a page: as they are, for the browser over all images, and with boxes drawn on them, for a comparison."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from stepgrad.data.base import DetectionDataset, ImageId
from stepgrad.errors import DataError
from stepgrad.evaluation.outlines import Lines, skeleton_of
from stepgrad.evaluation.records import Evidence
from stepgrad.files import write_whole
from stepgrad.names import to_utf8
from stepgrad.report.draw import PENS, draw_verdicts
from stepgrad.report.numbers import Numbers

INSIDE_BYTES = 3_000_000
"""All pictures of a page together, as JPEG, up to which it holds them itself; base64 makes them a third larger."""
LONGEST_SIDE, QUALITY = 640, 80
DRAWN_BYTES, DRAWN_SIDE = 1_000_000, 560
"""Of pictures with boxes: about so many bytes together, and so many pixels of the longest side at most."""
_BYTES_OF_PIXEL = 0.3
"""Of a photograph with boxes as JPEG, about."""
LARGEST_BLANK = 4096.0
"""Pixels: a side of a stand-in, however far the boxes reach."""
Size = tuple[int, int]


@dataclass(frozen=True)
class Photo:
    """An image of the page."""

    source: str | None
    """A data: address, or that of a file next to the page; None if the picture cannot be read."""
    size: Size | None
    """Of the original, in whose pixels boxes are; of a picture that cannot be read, what the annotations say."""


def prepare_photos(page: Path, evidence: Evidence, dataset: DetectionDataset | None) -> list[Photo]:
    """The pictures in the order of the evidence.

    The page holds them itself until they are too many; from then on all are files. These go to a folder named after the
    page, under numbers: the names of images may hold anything.
    """
    folder = page.with_name(f"{page.stem}_images")
    sizes = [_annotated_size(evidence, position) for position in range(evidence.num_images)]
    inside: dict[int, bytes] = {}
    sources: dict[int, str] = {}
    total = 0
    for position, image_id in enumerate(evidence.image_ids):
        image = read_picture(dataset, image_id)
        if image is None:
            continue
        sizes[position] = image.size
        inside[position] = _jpeg(_scaled(image, min(1.0, LONGEST_SIDE / max(image.size))))
        total += len(inside[position])
        if total > INSIDE_BYTES:
            for place, content in inside.items():
                write_whole(folder / f"{place:06}.jpg", content)
                sources[place] = f"{quote(to_utf8(folder.name))}/{place:06}.jpg"
            inside.clear()
    sources |= {place: _address(content) for place, content in inside.items()}
    return [Photo(sources.get(place), size) for place, size in enumerate(sizes)]


def _annotated_size(evidence: Evidence, position: int) -> Size | None:
    """Width and height of an image as the annotations have them; None if they do not say, or nothing sensible."""
    size = np.zeros(2) if evidence.limits is None else evidence.limits[position, 1, 2:]
    if not (np.isfinite(size) & (size >= 1)).all():
        return None
    width, height = size.round().astype(int).tolist()
    return width, height


def read_picture(dataset: DetectionDataset | None, image_id: ImageId) -> Image.Image | None:
    """The picture of an image, None if it is not at hand."""
    try:
        return None if dataset is None else dataset.image(dataset.index_of(image_id))
    except DataError:  # loaded without images, or the file is gone or damaged
        return None


def draw_pictures(
    wanted: Sequence[tuple[int, Sequence[Numbers]]], evidence: Evidence, dataset: DetectionDataset | None
) -> list[dict[str, Any]]:
    """Images with boxes drawn on them, small enough together for one page: the address, the size, and the picture in words.

    Args:
        wanted: the position of each image in the evidence, and its boxes. A box has its verdict, its class, its score (None
            for a missed object), its corners, and the lines of its mask, pose or oriented box.
    """
    side = min(DRAWN_SIDE, math.isqrt(round(DRAWN_BYTES / _BYTES_OF_PIXEL / max(1, len(wanted)))))
    drawn = []
    for position, boxes in wanted:
        image = read_picture(dataset, evidence.image_ids[position])
        image = image or _blank(_annotated_size(evidence, position), boxes)
        scale = side / max(image.size)
        corners = [[scale * value for value in box["box"]] for box in boxes]
        made = draw_verdicts(
            _scaled(image, scale),
            corners,
            [_text(box) for box in boxes],
            [box["verdict"] for box in boxes],
            lines=[_scaled_lines(box["lines"], scale, evidence.overlap.drawn) for box in boxes],
            drawn=evidence.overlap.drawn,
            skeleton=skeleton_of(evidence),
        )
        drawn.append({"uri": _address(_jpeg(made, subsampling=0)), "size": made.size, "alt": _in_words(boxes)})
    return drawn


def _scaled_lines(lines: Lines, scale: float, drawn: str) -> Lines:
    """The lines with their coordinates times `scale`; the third number of a keypoint is none."""
    states = 3 if drawn == "pose" else 0
    return [[value if states and k % states == 2 else scale * value for k, value in enumerate(line)] for line in lines]


def _text(box: Numbers) -> str:
    return f"missed {box['class']}" if box["score"] is None else f"{box['class']} {box['score']:.2f}"


def _blank(size: Size | None, boxes: Sequence[Numbers]) -> Image.Image:
    """In the place of a picture that is not at hand: grey, and of its size or, if that is not known, as large as the boxes."""
    width, height = size or (max([1.0, *(box["box"][side] for box in boxes)]) for side in (2, 3))
    return Image.new("RGB", (math.ceil(min(width, LARGEST_BLANK)), math.ceil(min(height, LARGEST_BLANK))), "#59626e")


def _in_words(boxes: Sequence[Numbers]) -> str:
    by_verdict = {kind: ", ".join(box["class"] for box in boxes if box["verdict"] == kind) for kind in PENS}
    return "; ".join(f"{verdict}: {names}" for verdict, names in by_verdict.items() if names) or "no boxes"


def _scaled(image: Image.Image, scale: float) -> Image.Image:
    """The picture in colours, its sides times `scale`, one pixel at least."""
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def _jpeg(image: Image.Image, **options: int) -> bytes:
    data = BytesIO()
    image.save(data, "JPEG", optimize=True, quality=QUALITY, **options)
    return data.getvalue()


def _address(jpeg: bytes) -> str:
    """A data: address, with which a page holds the picture itself."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
