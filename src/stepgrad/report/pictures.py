"""The pictures of a page without anything drawn on them: in the page itself, or in a folder next to it if they are many."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from stepgrad.data.base import DetectionDataset, ImageId
from stepgrad.errors import DataError
from stepgrad.evaluation.records import Evidence
from stepgrad.files import write_whole
from stepgrad.names import to_utf8

INSIDE_BYTES = 3_000_000
"""All pictures of a page together, as JPEG, up to which it holds them itself; base64 makes them a third larger."""
LONGEST_SIDE, QUALITY = 640, 80
Size = tuple[int, int]


@dataclass(frozen=True)
class Photo:
    """A picture as the page loads it."""

    source: str
    """A data: address, or that of a file next to the page."""
    size: Size
    """Of the original, in whose pixels boxes are."""


def prepare_photos(page: Path, evidence: Evidence, dataset: DetectionDataset | None) -> list[Photo | None]:
    """The pictures in the order of the evidence; None for one that cannot be read, whose boxes are then shown alone.

    Files go to a folder named after the page, under numbers: the names of images may hold anything.
    """
    store = _Store(page.with_name(f"{page.stem}_images"))
    for position, image_id in enumerate(evidence.image_ids):
        image = None if dataset is None else read_picture(dataset, image_id)
        if image is not None:
            small = scaled(image, min(1.0, LONGEST_SIDE / max(image.size)))
            store.add(position, as_jpeg(small, quality=QUALITY), image.size)
    return store.photos(evidence.num_images)


class _Store:
    """Keeps pictures for the page until they are too many; from then on all are files in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outside = False
        self._sizes: dict[int, Size] = {}
        self._kept: dict[int, bytes] = {}
        self._bytes = 0

    def add(self, position: int, data: bytes, size: Size) -> None:
        """Take the picture of that position."""
        self._sizes[position] = size
        self._kept[position] = data
        self._bytes += len(data)
        self.outside = self.outside or self._bytes > INSIDE_BYTES
        if self.outside:
            for place, content in self._kept.items():
                write_whole(self.folder / _file_of(place), content)
            self._kept.clear()

    def photos(self, count: int) -> list[Photo | None]:
        """One per position, None where no picture was added."""
        sources = (self._source(place) if place in self._sizes else "" for place in range(count))
        return [Photo(source, self._sizes[place]) if source else None for place, source in enumerate(sources)]

    def _source(self, place: int) -> str:
        if self.outside:
            return f"{quote(to_utf8(self.folder.name))}/{_file_of(place)}"
        return address_of(self._kept[place])


def _file_of(place: int) -> str:
    return f"{place:06}.jpg"


def read_picture(dataset: DetectionDataset, image_id: ImageId) -> Image.Image | None:
    """The picture of an image, None if it is not at hand."""
    try:
        return dataset.image(dataset.index_of(image_id))
    except DataError:  # loaded without images, or the file is gone or damaged
        return None


def scaled(image: Image.Image, scale: float) -> Image.Image:
    """The picture in colours, its sides times `scale`, one pixel at least."""
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def as_jpeg(image: Image.Image, **options: int) -> bytes:
    """The picture compressed."""
    data = BytesIO()
    image.save(data, "JPEG", optimize=True, **options)
    return data.getvalue()


def address_of(jpeg: bytes) -> str:
    """A data: address, with which a page holds the picture itself."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
