"""Checks of the proposals against the images they were made for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.doctor.summary import ExaminedImage
from stepgrad.data.images import file_fingerprint
from stepgrad.data.problems import Complaints, Problem, Report
from stepgrad.data.proposals import CachedProposals, Proposals
from stepgrad.data.proposals.cache import WAY_OUT, misfit
from stepgrad.errors import DataError
from stepgrad.number_text import counted

MANY = 10_000
ImageSizes = dict[Any, tuple[int, int]]


def examine_windows(
    proposals: Proposals, entries: list[ExaminedImage], name: str, sizes: ImageSizes, report: Report
) -> None:
    """Report images without windows, with too few or too many, and windows of other images."""
    missing = [entry for entry in entries if entry.image_id not in proposals]
    if len(missing) == len(entries) and entries:
        defect = f"has windows for none of {counted(len(entries), 'image')}, but for others such as {next(iter(proposals), '')!r}"
        fix = "pass the windows of this dataset, or make them with `stepgrad propose`"
        report(Problem(proposals.source, defect, fix, "error", "windows-missing"))
        return
    for entry in missing:
        defect = f"has no windows for image {entry.image_id!r}"
        report(Problem(proposals.source, defect, "make them with `stepgrad propose`", "error", "windows-missing"))
    for entry in entries:
        if entry.image_id in proposals:
            _examine_entry(proposals, entry, name, sizes.get(entry.image_id), report)


def _examine_entry(
    proposals: Proposals, entry: ExaminedImage, name: str, size: tuple[int, int] | None, report: Report
) -> None:
    try:
        where, windows = _read(proposals, entry, name, report)
    except DataError as error:
        report(Problem(proposals.source, str(error), "make them again", "error", "windows-damaged"))
        return
    complain, image = Complaints(where, report), f"image {entry.image_id!r}"
    if len(windows) == 0:
        fix = "its objects count as missed; search again with a smaller --min_side"
        complain(
            f"no windows for {image}, which has {counted(len(entry.numbers), 'object')}", fix, "windows-none", "warning"
        )
        return
    if len(windows) > MANY:
        fix = "all are used, which takes time and memory; search again with a larger --min_side"
        complain(f"{len(windows)} windows for {image}", fix, "windows-many", "warning")
    if size is not None and (windows.min() < 0 or (windows[:, 2:].max(axis=0) > np.array(size)).any()):
        defect = f"windows of {image} reach beyond its {size[0]} x {size[1]} pixels"
        complain(defect, "they were made for another image or image size; make them again", "windows-beyond")


def _read(proposals: Proposals, entry: ExaminedImage, name: str, report: Report) -> tuple[str, NDArray[Any]]:
    """Where an image's windows are, and the windows; a cache says whether they are of this very image."""
    if not isinstance(proposals, CachedProposals):
        return proposals.source, proposals.windows(str(entry.image_id))
    where, record = str(proposals.path(entry.image_id)), proposals.record(entry.image_id)
    defect = misfit(record, file_fingerprint(entry.image), name) if entry.image else None
    if defect:
        report(Problem(where, defect, WAY_OUT, "error", "windows-stale"))
    return where, record.windows
