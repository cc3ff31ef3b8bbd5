"""Windows on disk: one small file an image, whole or absent, which knows its settings and its image."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import DetectionDataset, ImageId
from stepgrad.data.files import write_whole
from stepgrad.data.proposals.windows import Proposals
from stepgrad.errors import DataError

SUFFIX = ".npz"
WAY_OUT = "pass another folder (--out), or --overwrite true to make the windows again"


@dataclass(frozen=True)
class Record:
    """The windows of one image, how they were made and of which picture."""

    windows: NDArray[Any]
    settings: str
    fingerprint: str
    dataset: str


def record_path(folder: Path, image_id: ImageId) -> Path:
    """The file of an image; slashes and the like in ids are escaped, and a leading dot, which would hide the file."""
    name = quote(str(image_id), safe=" ")
    return folder / ((f"%2E{name[1:]}" if name.startswith(".") else name) + SUFFIX)


def write_record(path: Path, record: Record) -> None:
    """Put a record on disk, whole or not at all."""
    packed = io.BytesIO()
    np.savez_compressed(
        packed,
        boxes=record.windows,
        settings=np.array(record.settings),
        fingerprint=np.array(record.fingerprint),
        dataset=np.array(record.dataset),
    )
    write_whole(path, packed.getvalue())


def read_record(path: Path) -> Record:
    """Read a record, or say what is wrong with it."""
    try:
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:  # NumPy leaves bad files open
            texts = (str(file[key][()]) for key in ("settings", "fingerprint", "dataset"))
            return Record(file["boxes"].reshape(-1, 4), *texts)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise DataError(f"{path}: is damaged or no proposal cache file ({error}); delete it and go on") from error


class CachedProposals(Proposals):
    """The windows in a cache folder, read when asked for."""

    def __init__(self, folder: str | Path) -> None:
        self.folder, self.source = Path(folder), str(folder)
        names = (path.name for path in self.folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))
        self._keys = {unquote(name.removesuffix(SUFFIX)) for name in names}
        if not self._keys:
            raise DataError(f"{folder}: holds no proposal cache files; make them with `stepgrad propose`")

    def record(self, image_id: ImageId) -> Record:
        """All that is known about the windows of an image."""
        if image_id not in self:
            raise KeyError(image_id)
        return read_record(record_path(self.folder, image_id))

    def windows(self, key: str) -> NDArray[Any]:
        return self.record(key).windows

    def __contains__(self, image_id: object) -> bool:
        return str(image_id) in self._keys

    def __iter__(self) -> Iterator[ImageId]:
        return iter(sorted(self._keys))

    def __len__(self) -> int:
        return len(self._keys)

    def check(self, dataset: DetectionDataset, verify: bool = True, indices: Sequence[int] | None = None) -> None:
        super().check(dataset, verify, indices)
        if verify:
            for index in range(len(dataset)) if indices is None else indices:
                check_record(record_path(self.folder, dataset.ids[index]), dataset, index)


def misfit(record: Record, fingerprint: str, dataset: str, settings: str | None = None) -> str | None:
    """Why a record does not belong to an image, or None: another picture, or other settings than asked for."""
    if record.fingerprint != fingerprint:
        what = "has changed since" if record.dataset == dataset else f"is another in {dataset!r}"
        return f"was made for {record.dataset!r}; the image of that id {what}"
    if settings is not None and record.settings != settings:
        return f"was made with {record.settings}, not with {settings}"
    return None


def check_record(path: Path, dataset: DetectionDataset, index: int, settings: str | None = None) -> None:
    """Raise DataError if a file does not belong to an image of the dataset."""
    what = misfit(read_record(path), dataset.fingerprint(index), dataset.name, settings)
    if what:
        raise DataError(f"{path}: {what}; {WAY_OUT}")
