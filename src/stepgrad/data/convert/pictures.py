"""Image files of a new dataset: copies of the old ones or links to them; saved again only where they must be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

from stepgrad.data.convert.notes import Notes
from stepgrad.data.convert.source import SourcePicture
from stepgrad.data.images import ImageFacts, read_facts, read_image
from stepgrad.data.voc import IMAGE_SUFFIXES
from stepgrad.data.yolo import YOLODataset

How = Literal["copy", "link"]
_SUFFIX_OF = {"JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "BMP": ".bmp", "WEBP": ".webp", "TIFF": ".tif"}


class PictureFiles:
    """Puts pictures into a new dataset whose boxes are of the pictures as shown (YOLO) or as stored (VOC, COCO)."""

    def __init__(self, as_shown: bool, how: How, notes: Notes, from_as_shown: bool) -> None:
        self.how = how
        self.notes = notes
        self.orientation_matters = as_shown != from_as_shown

    def suffix(self, picture: SourcePicture) -> str:
        """The suffix of its new file."""
        path = picture.path
        if path is None:
            return ".png"
        if path.suffix.lower() in IMAGE_SUFFIXES:
            return path.suffix
        return _SUFFIX_OF.get(self._facts(path).format, ".png")

    def put(self, picture: SourcePicture, place: Path) -> tuple[int, int]:
        """Make the new file; gives width and height as the dataset reads it."""
        path = picture.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if path is None:
            return self._store(picture, place)
        facts = self._facts(path)
        if facts.is_turned and self.orientation_matters:
            self.notes.add("stored")
            return self._store(picture, place)
        if place.suffix == ".png" and path.suffix.lower() not in IMAGE_SUFFIXES and facts.format != "PNG":
            self.notes.add("encoded")
            return self._store(picture, place)
        if self.how == "link":
            self.notes.add("linked")
            os.symlink(os.path.abspath(path), place)
        else:
            shutil.copyfile(path, place)
        return facts.upright_size if isinstance(picture.dataset, YOLODataset) else facts.size

    def _store(self, picture: SourcePicture, place: Path) -> tuple[int, int]:
        """Save the pixels as the source reads them, without EXIF."""
        image = picture.dataset.image(picture.index)
        image.info.clear()  # EXIF would turn it once more
        if place.suffix.lower() in (".jpg", ".jpeg"):
            image.save(place, quality=95, subsampling=0)
        else:
            image.save(place)
        return image.size

    def _facts(self, path: Path) -> ImageFacts:
        try:
            return read_facts(path)
        except Exception:  # decoders raise whatever they stumble over
            read_image(path)  # says what is wrong with it
            raise
