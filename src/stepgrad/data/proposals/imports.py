"""Windows from a cache folder or made elsewhere: packed `.npz` files and Girshick's `.mat` files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.data.base import DetectionDataset
from stepgrad.data.problems import brief
from stepgrad.data.proposals.cache import CachedProposals
from stepgrad.data.proposals.mat_file import MatValue, read_mat
from stepgrad.data.proposals.windows import (
    IDS,
    NUMBERS,
    WHOLE_NUMBERS,
    PackedProposals,
    Proposals,
    ShapesProposals,
    check_windows,
    read_arrays,
)
from stepgrad.data.shapes import ShapesDataset
from stepgrad.errors import DataError
from stepgrad.names import from_home
from stepgrad.number_text import counted
from stepgrad.pixels import continuous_from_devkit


def load_proposals(
    source: str | Path,
    dataset: DetectionDataset | None = None,
    verify: bool = True,
    indices: Sequence[int] | None = None,
) -> Proposals:
    """The windows at `source`, checked against `dataset` where one is given.

    Args:
        source: a cache folder written by `stepgrad propose`, a packed `.npz` (ids, offsets, boxes), one of Girshick's
            selective_search_data `.mat` files, or `built-in` for the windows of `shapes`.
        dataset: raise DataError unless the windows were made for these images.
        verify: compare the bytes of every image with the cache's fingerprint; False checks only that a record exists.
        indices: only the images of these numbers need windows; None: all.
    """
    proposals = _open(source, dataset)
    if dataset is not None:
        proposals.check(dataset, verify, indices)
    return proposals


def _open(source: str | Path, dataset: DetectionDataset | None) -> Proposals:
    if str(source) == "built-in":
        if not isinstance(dataset, ShapesDataset):
            raise DataError("Only `shapes` has built-in windows; make some for this dataset with `stepgrad propose`")
        return ShapesProposals(dataset)
    path = from_home(source)
    if path.is_dir():
        return CachedProposals(path)
    readers = {".npz": import_npz, ".mat": import_mat}
    if path.exists() and path.suffix in readers:
        return readers[path.suffix](path)
    defect = "expected a cache folder, an .npz or a .mat file" if path.exists() else "no such file or folder"
    raise DataError(f"{path}: {defect}; make windows with `stepgrad propose`")


def import_npz(path: str | Path) -> PackedProposals:
    """A packed file: `ids` (strings), `offsets` (one more than ids), `boxes` (x1 y1 x2 y2, continuous)."""
    try:
        arrays = read_arrays(Path(path), {"ids": IDS, "offsets": WHOLE_NUMBERS, "boxes": NUMBERS})
    except DataError as error:
        raise DataError(f"{error}; download or make it again") from error
    ids, offsets, boxes = arrays.values()
    if boxes.ndim != 2 or boxes.shape[1] != 4 or ids.ndim != 1 or offsets.ndim != 1:
        shapes = f"{ids.shape}, {offsets.shape}, {boxes.shape}"
        raise DataError(f"{path}: expected ids (n,), offsets (n + 1,), boxes (N, 4) but got {shapes}; make it again")
    check_windows(boxes, str(path))
    return PackedProposals(ids.tolist(), offsets, boxes, str(path))


def import_mat(path: str | Path) -> PackedProposals:
    """One of the selective_search_data files of R-CNN and Fast R-CNN.

    Cells `images` (names) and `boxes` (N, 4), columns y1 x1 y2 x2 in 1-based inclusive pixels.
    """
    try:
        content = read_mat(Path(path).read_bytes())
    except NotImplementedError:
        raise DataError(
            f"{path}: is a MATLAB 7.3 file; save it with -v7, or as .npz with ids, offsets, boxes"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is not a readable .mat file ({error}); download it again") from error
    if "boxes" not in content or "images" not in content:
        raise DataError(f"{path}: expected cells `images` and `boxes` but it has {sorted(content)}")
    ids = _cells(path, content, "images", "text", lambda cell: isinstance(cell, str))
    tables = _cells(path, content, "boxes", "(N, 4) numbers", _is_table)
    cells = [table.astype(np.float64).reshape(-1, 4) for table in tables]
    if len(ids) != len(cells):
        raise DataError(f"{path}: {counted(len(ids), 'image')} but windows for {len(cells)}; download the file again")
    rows = np.concatenate([np.zeros((0, 4)), *cells])
    boxes = continuous_from_devkit(rows[:, [1, 0, 3, 2]])
    check_windows(boxes, str(path))
    offsets = np.cumsum([0, *(len(cell) for cell in cells)])
    return PackedProposals(ids, offsets, boxes.astype(np.float32), str(path))


def _cells(
    path: str | Path, content: Mapping[str, MatValue], name: str, wanted: str, fits: Callable[[MatValue], bool]
) -> list[Any]:
    """The cells of a variable, each as wanted."""
    cells = content[name]
    if not isinstance(cells, list):
        raise DataError(f"{path}: expected cells of {wanted} in `{name}` but got no cells")
    for cell in cells:
        if not fits(cell):
            got = f"{cell.shape} {cell.dtype}" if isinstance(cell, np.ndarray) else brief(cell)
            raise DataError(f"{path}: expected cells of {wanted} in `{name}` but got {got}")
    return cells


def _is_table(cell: MatValue) -> bool:
    return isinstance(cell, np.ndarray) and (cell.size == 0 or (cell.ndim == 2 and cell.shape[1] == 4))
