"""Pictures with boxes drawn on them, as many as a page can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from stepgrad.data.base import DetectionDataset
from stepgrad.evaluation.records import Evidence
from stepgrad.report.draw import draw_verdicts
from stepgrad.report.examples import Mark
from stepgrad.report.pictures import address_of, as_jpeg, read_picture, scaled

PICTURE_BYTES = 1_000_000
"""All pictures of a page together, as JPEG; base64 makes them a third larger."""
_QUALITIES = ((560, 85), (480, 80), (400, 72), (320, 65), (240, 55), (160, 45))
"""Longest side in pixels and JPEG quality, from the best downward."""
_LEAST_BYTES = 0.1
"""Of a pixel in a JPEG of a photograph."""


LARGEST_BLANK = 4096.0
"""Pixels: a side of a stand-in, however far the boxes reach."""


@dataclass(frozen=True)
class Picture:
    """An image to show, and the boxes on it."""

    position: int  # in the evidence
    marks: Sequence[Mark]


@dataclass(frozen=True)
class EncodedPicture:
    """A JPEG picture as the page holds it."""

    uri: str
    size: tuple[int, int]
    alt: str


def encode_pictures(wanted: Sequence[Picture], evidence: Evidence, dataset: DetectionDataset) -> list[EncodedPicture]:
    """All pictures of a page, at the best quality that keeps it small; `evidence` gives the names."""
    images = [
        read_picture(dataset, evidence.image_ids[picture.position]) or _blank(picture.marks) for picture in wanted
    ]
    drawn: list[tuple[bytes, tuple[int, int]]] = []
    for side, quality in _QUALITIES:
        if len(wanted) * side**2 * _LEAST_BYTES > PICTURE_BYTES and side > _QUALITIES[-1][0]:
            continue  # hopeless, not worth the drawing
        drawn = [
            _jpeg(image, picture, evidence.class_names, side, quality)
            for image, picture in zip(images, wanted, strict=True)
        ]
        if sum(len(data) for data, _ in drawn) <= PICTURE_BYTES:
            break
    return [
        EncodedPicture(address_of(data), size, _alt(picture, evidence.class_names))
        for (data, size), picture in zip(drawn, wanted, strict=True)
    ]


def _blank(marks: Sequence[Mark]) -> Image.Image:
    """In the place of a picture that is not at hand: grey, and large enough for the boxes."""
    right, bottom = (max([1.0, *(mark.box[side] for mark in marks)]) for side in (2, 3))
    return Image.new("RGB", (math.ceil(min(right, LARGEST_BLANK)), math.ceil(min(bottom, LARGEST_BLANK))), "#59626e")


def _jpeg(
    image: Image.Image, picture: Picture, class_names: Sequence[str], side: int, quality: int
) -> tuple[bytes, tuple[int, int]]:
    """The picture scaled, its boxes drawn, compressed."""
    scale = side / max(image.size)
    boxes = [[value * scale for value in mark.box] for mark in picture.marks]
    named = [(class_names[mark.label], mark.score) for mark in picture.marks]
    texts = [f"missed {name}" if score is None else f"{name} {score:.2f}" for name, score in named]
    drawn = draw_verdicts(scaled(image, scale), boxes, texts, [mark.verdict for mark in picture.marks])
    return as_jpeg(drawn, quality=quality, subsampling=0), drawn.size


def _alt(picture: Picture, class_names: Sequence[str]) -> str:
    """The picture in words."""
    by_verdict = {
        verdict: ", ".join(class_names[mark.label] for mark in picture.marks if mark.verdict == verdict)
        for verdict in ("right", "wrong", "missed")
    }
    return "; ".join(f"{verdict}: {names}" for verdict, names in by_verdict.items() if names) or "no boxes"
