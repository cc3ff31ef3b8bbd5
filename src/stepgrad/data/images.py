"""Reading pictures: always RGB, pixels as stored; every error names the file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from stepgrad.data.problems import Problem, raise_errors
from stepgrad.errors import DataError

EXIF_ORIENTATION = 0x0112
READABLE_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
"""Pillow modes of 8 bits per channel, which have one obvious conversion to RGB."""


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What brings the stored pixels upright, by EXIF orientation."""


@dataclass(frozen=True)
class ImageFacts:
    """Size, format, mode and orientation from the header of an image file."""

    size: tuple[int, int]
    """Width and height of the stored pixels."""
    format: str
    """The format of the content, e.g. "JPEG", whatever the file is called."""
    mode: str
    orientation: int
    """The EXIF orientation, 1 (upright) to 8."""

    @property
    def is_turned(self) -> bool:
        """Whether viewers turn or mirror the stored pixels; of TIFF files Pillow does it by itself."""
        return self.orientation in _TURNS and self.format != "TIFF"

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height of the picture as viewers show it."""
        quarter = self.is_turned and self.orientation >= 5  # width and height change places
        return (self.size[1], self.size[0]) if quarter else self.size


def read_image(path: Path) -> Image.Image:
    """The picture in RGB. Grey, palette and CMYK are converted; EXIF orientation is *not* applied.

    VOC and COCO boxes refer to the pixels as stored; `stepgrad doctor` points out files whose boxes do not.
    """
    image = decode(path)
    if isinstance(image, Problem):
        raise_errors(image)
        raise AssertionError("an image that cannot be read is an error")
    return image


def read_as_shown(path: Path) -> Image.Image:
    """The picture in RGB as viewers show it, EXIF orientation applied: what YOLO's boxes refer to."""
    image, facts = read_image(path), read_facts(path)
    return image.transpose(_TURNS[facts.orientation]) if facts.is_turned else image


def decode(path: Path) -> Image.Image | Problem:
    """The picture in RGB, or what is wrong with the file."""
    try:
        with Image.open(path) as image:
            if image.mode in READABLE_MODES:
                see_through = image.mode == "P" and "transparency" in image.info
                return (image.convert("RGBA") if see_through else image).convert("RGB")
            defect, fix = f"expected 8 bits per channel but got mode {image.mode}", "convert it to 8-bit RGB"
    except FileNotFoundError:
        defect, fix = "no such image", "restore it, or remove it from the image list"
    except UnidentifiedImageError:
        defect, fix = f"is not an image ({_first_bytes(path)})", "download or export it again"
    except Exception as error:  # decoders raise whatever they stumble over
        defect, fix = f"cannot be decoded ({error})", "download or export it again"
    return Problem(str(path), defect, fix, "error", "image-unreadable")


def _first_bytes(path: Path) -> str:
    size = path.stat().st_size
    if size == 0:
        return "the file is empty"
    with open(path, "rb") as handle:
        return f"{size} bytes, starting with {handle.read(8)!r}"


def read_facts(path: Path) -> ImageFacts:
    """The header of an image file that can be read, without its pixels."""
    with Image.open(path) as image:
        return ImageFacts(image.size, image.format or "", image.mode, _orientation(image))


def _orientation(image: Image.Image) -> int:
    try:
        tag = image.getexif().get(EXIF_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block says nothing, and the pixels may be fine
        return 1
    return tag if tag in range(1, 9) else 1


def image_to_tensor(image: Image.Image) -> torch.Tensor:
    """(3, H, W) uint8.

    >>> image_to_tensor(Image.new("RGB", (5, 4))).shape
    torch.Size([3, 4, 5])
    """
    return torch.from_numpy(np.array(image, dtype=np.uint8).transpose(2, 0, 1).copy())


def file_fingerprint(path: Path) -> str:
    """Length and SHA-256 of the bytes: equal fingerprints mean the same file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); restore the image") from error
    return f"{len(data)}-{hashlib.sha256(data).hexdigest()}"
