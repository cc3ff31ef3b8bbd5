"""`ignored_regions.json` next to a data.yaml: regions of images that a benchmark does not judge, as in VisDrone.

A mapping from "split/stem" (the image's path behind `images/`, without suffix) to boxes [x1, y1, x2, y2] in pixels. Each is
a crowd of every class: detections in it are neither right nor wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.own_files import OwnFiles
from stepgrad.data.problems import Complaints, Report, brief, raise_errors
from stepgrad.data.shape_fields import are_pixels

REGIONS_FILE = "ignored_regions.json"
Regions = dict[str, NDArray[np.float64]]
"""(R, 4) boxes by "split/stem"."""


def read_regions(path: Path, own: OwnFiles, report: Report = raise_errors) -> Regions:
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
    return {key: _read_boxes(key, boxes, complain) for key, boxes in content.items()}


def _read_boxes(key: str, boxes: Any, complain: Complaints) -> NDArray[np.float64]:
    if not isinstance(boxes, list):
        complain(f"{brief(key)}: expected a list of boxes but got {brief(boxes)}", "write one", "region")
        boxes = []
    good = [box for number, box in enumerate(boxes) if _is_region(box, f"{brief(key)}, region {number}", complain)]
    return np.array(good, dtype=np.float64).reshape(-1, 4)


def _is_region(box: Any, where: str, complain: Complaints) -> bool:
    if are_pixels(box, 4) and box[2] > box[0] and box[3] > box[1]:
        return True
    complain(f"{where}: expected [x1, y1, x2, y2] with an area but got {brief(box)}", "correct or delete it", "region")
    return False
