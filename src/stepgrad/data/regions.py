"""`ignored_regions.json` next to a data.yaml: regions of images that a benchmark does not judge, as in VisDrone.

A mapping from "split/stem" (the image's path behind `images/`, without suffix) to boxes [x1, y1, x2, y2] in pixels. Each is
a crowd of every class, or with a name behind its numbers, [x1, y1, x2, y2, "person"], of that class: detections in it are neither
right nor wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.own_files import OwnFiles
from stepgrad.data.problems import Complaints, Report, brief, raise_errors
from stepgrad.data.shape_fields import are_pixels
from stepgrad.errors import suggest

REGIONS_FILE = "ignored_regions.json"
EVERY_CLASS = -1


class ImageRegions(NamedTuple):
    """R regions of one image."""

    boxes: NDArray[np.float64]  # (R, 4)
    labels: NDArray[np.int64]  # (R,) EVERY_CLASS, or a class

    def by_class(self, classes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of the regions and their labels: one of every class comes once for each.

        >>> regions = ImageRegions(np.zeros((2, 4)), np.array([EVERY_CLASS, 1]))
        >>> [column.tolist() for column in regions.by_class(3)]
        [[0, 0, 0, 1], [0, 1, 2, 1]]
        """
        labels = [range(classes) if label == EVERY_CLASS else [label] for label in self.labels.tolist()]
        rows = np.repeat(np.arange(len(labels)), [len(own) for own in labels])
        return rows, np.array([label for own in labels for label in own], dtype=np.int64)


Regions = dict[str, ImageRegions]
"""By "split/stem"."""


def no_regions() -> ImageRegions:
    """Those of an image without any."""
    return ImageRegions(np.zeros((0, 4)), np.zeros(0, dtype=np.int64))


def read_regions(path: Path, own: OwnFiles, class_names: Sequence[str], report: Report = raise_errors) -> Regions:
    """The regions of every image; bad ones are reported and left out. Empty if there is no such file."""
    complain = Complaints(path, report)
    if own.refuses(path, report):
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        complain(f"cannot be read as json ({error})", "export it again, or move it away", "json-damaged")
        return {}
    if not isinstance(content, dict):
        fix = 'write {"split/stem": [[x1, y1, x2, y2], ...]}, or move the file away'
        complain(f"expected regions by image but got {brief(content)}", fix, "json-damaged")
        return {}
    return {key: _of_image(key, entries, list(class_names), complain) for key, entries in content.items()}


def _of_image(key: str, entries: Any, class_names: list[str], complain: Complaints) -> ImageRegions:
    if not isinstance(entries, list):
        complain(f"{brief(key)}: expected a list of boxes but got {brief(entries)}", "write one", "region")
        entries = []
    good = [
        entry
        for number, entry in enumerate(entries)
        if _is_region(entry, class_names, f"{brief(key)}, region {number}", complain)
    ]
    boxes = np.array([entry[:4] for entry in good], dtype=np.float64).reshape(-1, 4)
    labels = [class_names.index(entry[4]) if len(entry) > 4 else EVERY_CLASS for entry in good]
    return ImageRegions(boxes, np.array(labels, dtype=np.int64))


def _is_region(entry: Any, class_names: list[str], where: str, complain: Complaints) -> bool:
    named = isinstance(entry, list) and len(entry) == 5 and isinstance(entry[4], str)
    box = entry[:4] if named else entry
    if not (are_pixels(box, 4) and box[2] > box[0] and box[3] > box[1]):
        complain(
            f"{where}: expected [x1, y1, x2, y2] with an area but got {brief(entry)}", "correct or delete it", "region"
        )
        return False
    if named and entry[4] not in class_names:
        meant = suggest(entry[4], class_names)
        complain(f"{where}: expected a class of data.yaml but got {brief(entry[4])}{meant}", "correct it", "region")
        return False
    return True
