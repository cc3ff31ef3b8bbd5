"""Windows on disk: one small file per image, whole or absent, with its settings and the hash of its image."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import DetectionDataset, ImageId
from stepgrad.data.proposals.windows import NUMBERS, TEXTS, Proposals, check_windows, read_arrays
from stepgrad.errors import DataError
from stepgrad.files import write_whole
from stepgrad.names import file_name, key_of, name_in

SUFFIX = ".npz"
WAY_OUT = "pass another folder (--out), or --overwrite true to make the windows again"


@dataclass(frozen=True)
class WindowsRecord:
    """The windows of one image, how they were made and of which picture."""

    windows: NDArray[Any]
    settings: str
    fingerprint: str
    dataset: str


def record_path(folder: Path, image_id: ImageId) -> Path:
    """Where to write the windows of an image."""
    return folder / f"{file_name(str(image_id))}{SUFFIX}"


def record_files(folder: Path) -> dict[str, Path]:
    """The files in a cache folder, by `key_of` their image ids."""
    paths = [path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith(".")]
    keys = {path: name_in(path.name.removesuffix(SUFFIX)) for path in paths}
    paths.sort(key=lambda path: path == record_path(folder, keys[path]))  # of two, today's name comes last and wins
    return dict(sorted({keys[path]: path for path in paths}.items()))


def write_record(path: Path, record: WindowsRecord) -> None:
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


def read_record(path: Path) -> WindowsRecord:
    """Read a record; a DataError says what is wrong with it."""
    try:
        arrays = read_arrays(path, {"boxes": NUMBERS, "settings": TEXTS, "fingerprint": TEXTS, "dataset": TEXTS})
        windows, texts = arrays.pop("boxes"), [str(text[()]) for text in arrays.values()]
        if windows.size % 4:
            raise DataError(f"{path}: expected windows (N, 4) but got {windows.shape}")
        check_windows(windows.reshape(-1, 4), str(path))
    except DataError as error:
        defect = str(error).removeprefix(f"{path}: ")
        raise DataError(
            f"{path}: is damaged or not a proposal cache file ({defect}); delete it and run the command again"
        ) from error
    return WindowsRecord(windows.reshape(-1, 4), *texts)


class CachedProposals(Proposals):
    """The windows in a cache folder, read when asked for."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(str(folder), record_files(Path(folder)))
        if not len(self):
            raise DataError(f"{folder}: holds no proposal cache files; make them with `stepgrad propose`")

    def path(self, image_id: ImageId) -> Path:
        """The file of an image; KeyError if there is none."""
        found: Path = self._places[self._key(image_id)]
        return found

    def record(self, image_id: ImageId) -> WindowsRecord:
        """All that is known about the windows of an image."""
        return read_record(self.path(image_id))

    def _read(self, place: Path) -> NDArray[Any]:
        return read_record(place).windows

    def _key(self, image_id: object) -> str:
        return key_of(str(image_id))

    def check(self, dataset: DetectionDataset, verify: bool = True, indices: Sequence[int] | None = None) -> None:
        super().check(dataset, verify, indices)
        if verify:
            for index in range(len(dataset)) if indices is None else indices:
                check_record(self.path(dataset.ids[index]), dataset, index)


def misfit(record: WindowsRecord, fingerprint: str, dataset: str, settings: str | None = None) -> str | None:
    """Why a record does not belong to an image, or None: another picture, or other settings than asked for."""
    if record.fingerprint != fingerprint:
        defect = "has changed since" if record.dataset == dataset else f"is a different one in {dataset!r}"
        return f"was made for {record.dataset!r}; the image with that id {defect}"
    if settings is not None and record.settings != settings:
        return f"was made with {record.settings}, not with {settings}"
    return None


def check_record(path: Path, dataset: DetectionDataset, index: int, settings: str | None = None) -> None:
    """Raise DataError if a file does not belong to an image of the dataset."""
    defect = misfit(read_record(path), dataset.fingerprint(index), dataset.name, settings)
    if defect:
        raise DataError(f"{path}: {defect}; {WAY_OUT}")
