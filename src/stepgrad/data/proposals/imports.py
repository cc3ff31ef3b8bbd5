"""Windows made elsewhere: packed `.npz` files and Girshick's `.mat` files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.problems import brief
from stepgrad.data.proposals.mat_file import MatValue, read_mat
from stepgrad.data.proposals.windows import PackedProposals
from stepgrad.errors import DataError
from stepgrad.number_text import counted, part_counted
from stepgrad.pixels import continuous_from_devkit

NUMBERS = "iuf"
WHOLE_NUMBERS = "iu"
TEXTS = "U"
IDS = "USiu"
_WORDS = {NUMBERS: "numbers", WHOLE_NUMBERS: "whole numbers", TEXTS: "text", IDS: "names or whole numbers"}
"""In words, what the NumPy kinds of an array stand for."""


def import_npz(path: str | Path) -> PackedProposals:
    """A packed file: `ids` (strings), `offsets` (one more than ids), `boxes` (x1 y1 x2 y2, continuous)."""
    path = Path(path)
    try:
        arrays = read_arrays(path, {"ids": IDS, "offsets": WHOLE_NUMBERS, "boxes": NUMBERS})
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; make windows with `stepgrad propose`") from None
    except DataError as error:
        raise DataError(f"{error}; download or make it again") from error
    ids = arrays["ids"]
    offsets = arrays["offsets"]
    boxes = arrays["boxes"]
    if boxes.ndim != 2 or boxes.shape[1] != 4 or ids.ndim != 1 or offsets.ndim != 1:
        shapes = f"{ids.shape}, {offsets.shape}, {boxes.shape}"
        raise DataError(f"{path}: expected ids (n,), offsets (n + 1,), boxes (N, 4) but got {shapes}; make it again")
    check_windows(boxes, str(path))
    return PackedProposals(ids.tolist(), offsets, boxes, str(path))


def import_mat(path: str | Path) -> PackedProposals:
    """One of the selective_search_data files of R-CNN and Fast R-CNN.

    Cells `images` (names) and `boxes` (N, 4), columns y1 x1 y2 x2 in 1-based inclusive pixels.
    """
    path = Path(path)
    content = _load_mat(path)
    if "boxes" not in content or "images" not in content:
        raise DataError(f"{path}: expected cells `images` and `boxes` but it has {sorted(content)}")
    ids = [_text(cell, path) for cell in _cells(content["images"], "text in `images`", path)]
    cells = [_columns(cell, path) for cell in _cells(content["boxes"], "(N, 4) numbers in `boxes`", path)]
    if len(ids) != len(cells):
        raise DataError(f"{path}: {counted(len(ids), 'image')} but windows for {len(cells)}; download the file again")
    rows = np.concatenate([np.zeros((0, 4)), *cells])
    boxes = continuous_from_devkit(rows[:, [1, 0, 3, 2]])
    check_windows(boxes, str(path))
    offsets = np.cumsum([0, *(len(cell) for cell in cells)])
    return PackedProposals(ids, offsets, boxes.astype(np.float32), str(path))


def _load_mat(path: Path) -> dict[str, MatValue]:
    try:
        return read_mat(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; make windows with `stepgrad propose`") from None
    except NotImplementedError:
        raise DataError(
            f"{path}: is a MATLAB 7.3 file; save it with -v7, or as .npz with ids, offsets, boxes"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is not a readable .mat file ({error}); download it again") from error


def _cells(value: MatValue, wanted: str, path: Path) -> list[MatValue]:
    if not isinstance(value, list):
        raise DataError(f"{path}: expected cells of {wanted} but got no cells")
    return value


def _text(cell: MatValue, path: Path) -> str:
    if not isinstance(cell, str):
        raise DataError(f"{path}: expected cells of text in `images` but got {brief(cell)}")
    return cell


def _columns(cell: MatValue, path: Path) -> NDArray[np.float64]:
    """(N, 4) the windows of one image."""
    if isinstance(cell, np.ndarray) and (cell.size == 0 or (cell.ndim == 2 and cell.shape[1] == 4)):
        return cell.astype(np.float64).reshape(-1, 4)
    got = f"{cell.shape} {cell.dtype}" if isinstance(cell, np.ndarray) else brief(cell)
    raise DataError(f"{path}: expected cells of (N, 4) numbers in `boxes` but got {got}")


def check_windows(boxes: np.ndarray, source: str) -> None:
    """Refuse windows that are not finite or are reversed, in the single precision they are used in."""
    with np.errstate(over="ignore"):
        boxes = boxes.astype(np.float32)
    good = np.isfinite(boxes).all(axis=1) & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    if not good.all():
        first = int(np.argmin(good))
        count = part_counted(int((~good).sum()), len(good), "window", "are")
        raise DataError(
            f"{source}: {count} not finite or without area, first number {first}, "
            f"{boxes[first].tolist()}; expected x1 y1 x2 y2 with x1 < x2, y1 < y2: check the column order"
        )


def read_arrays(path: Path, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names, each of one of its NumPy kinds, or a DataError that names no fix; nothing is unpickled.

    A file that is not there is a FileNotFoundError.
    """
    try:
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:  # NumPy leaves bad files open
            missing = [name for name in kinds if name not in file]
            arrays = {name: file[name] for name in kinds if name not in missing}
    except FileNotFoundError:
        raise
    except Exception as error:  # NumPy, zipfile and its four decompressors each raise what they stumble over
        raise DataError(f"{path}: is not a readable .npz file ({error or type(error).__name__})") from error
    if missing:
        *most, last = kinds
        raise DataError(f"{path}: expected arrays {', '.join(most)} and {last} but {', '.join(missing)} is missing")
    for name, array in arrays.items():
        if array.dtype.kind not in kinds[name]:
            raise DataError(f"{path}: expected {_WORDS[kinds[name]]} in {name} but got an array of {array.dtype}")
    return arrays
