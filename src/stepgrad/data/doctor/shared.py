"""Images that two splits have in common, under any name: whoever trains on one of them scores too well on the other."""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import combinations
from pathlib import Path

from stepgrad.data.doctor.summary import Splits
from stepgrad.data.images import file_fingerprint
from stepgrad.data.problems import Problem, Report
from stepgrad.number_text import part_counted


def report_shared(splits: Splits, where: str, report: Report) -> None:
    """Report the images of each pair of splits that are the same file, or files of the same bytes."""
    content = _contents({key: path for images in splits.values() for key, path in images.items() if path})
    for first, second in combinations(splits, 2):
        known = {content.get(key, key): key for key in splits[first]}
        shared = [(key, known[content.get(key, key)]) for key in splits[second] if content.get(key, key) in known]
        if shared:
            key, twin = shared[0]
            example = _name(splits[second], key)
            copy = "" if key == twin else f", a copy of {_name(splits[first], twin)}"
            count = part_counted(len(shared), len(splits[second]), "image", "are")
            defect = f"{second}: {count} in {first} too, first {example}{copy}"
            fix = "remove them from one of the two, or the scores will be too high"
            report(Problem(where, defect, fix, "warning", "splits-overlap"))


def _name(images: dict[str, Path | None], key: str) -> str:
    path = images[key]
    return key if path is None else str(path)


def _contents(files: dict[str, Path]) -> dict[str, str]:
    """A hash of each file that has the size of another; the others have no copy."""
    by_size: dict[int, list[str]] = defaultdict(list)
    for key, path in files.items():
        if os.access(path, os.R_OK) and (
            size := os.path.getsize(path)
        ):  # missing and empty ones are problems of their own
            by_size[size].append(key)
    return {key: file_fingerprint(files[key]) for keys in by_size.values() if len(keys) > 1 for key in keys}
