"""Pictures come as RGB, or their file is named."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepgrad.data.images import EXIF_ORIENTATION, file_fingerprint, read_facts, read_image
from stepgrad.errors import DataError
from tests.data.builders import SIZE, write_image


@pytest.mark.parametrize(
    ("mode", "suffix"), [("L", "jpg"), ("CMYK", "jpg"), ("P", "png"), ("RGBA", "png"), ("1", "png")]
)
def test_every_eight_bit_mode_is_read_as_rgb(tmp_path: Path, mode: str, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    write_image(path, mode=mode)
    image = read_image(path)
    assert (image.mode, image.size) == ("RGB", SIZE)


def test_exif_rotation_is_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    write_image(tmp_path / "a.jpg", exif=exif)
    assert read_facts(tmp_path / "a.jpg").orientation == 6
    assert read_image(tmp_path / "a.jpg").size == SIZE


def test_content_counts_not_the_name(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / "a.jpg")
    assert read_facts(tmp_path / "a.jpg").format == "PNG"
    assert read_image(tmp_path / "a.jpg").size == SIZE


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_truncated_jpeg_is_refused(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "a.jpg"
    write_image(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(DataError, match=r"a\.jpg: .*(cannot be decoded|is not an image)"):
        read_image(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "the file is empty"), (b"hello world", r"11 bytes, starting with b'hello wo'")],
)
def test_what_is_no_image_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.jpg").write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_image(tmp_path / "a.jpg")


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "bmp", "webp", "tif"])
def test_damaged_bytes_give_a_picture_or_a_named_error(tmp_path: Path, suffix: str) -> None:
    """300 files with random bytes overwritten: decoders stumble in many ways, users see one."""
    generator, path = np.random.default_rng(0), tmp_path / f"a.{suffix}"
    write_image(path)
    good, refused = path.read_bytes(), []
    for _ in range(300):
        data = bytearray(good)
        for position in generator.integers(0, min(len(data), 400), 5):
            data[position] = generator.integers(256)
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of what it can mend
            try:
                assert read_image(path).mode == "RGB"
            except DataError as error:
                refused.append(str(error))
    assert refused
    assert all(str(path) in message for message in refused)


def test_sixteen_bit_image_is_refused_rather_than_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 1000, dtype=np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="expected 8 bits per channel but got mode I"):
        read_image(tmp_path / "a.png")


def test_missing_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jpg: no such image"):
        read_image(tmp_path / "a.jpg")


def test_fingerprint_changes_with_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"one")
    first = file_fingerprint(path)
    path.write_bytes(b"onf")
    assert file_fingerprint(path) != first
    path.write_bytes(b"one")
    assert file_fingerprint(path) == first
