"""One label file of a YOLO dataset: `class cx cy w h` or `class x1 y1 x2 y2 x3 y3 ...` per line, in shares of the image."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.own_files import OwnFiles
from stepgrad.data.problems import DROP, Complaints, Report, Severity, raise_errors, repeats_text
from stepgrad.number_text import counted

TOLERANCE = 0.01
"""How far a number may lie outside 0 to 1. YOLO tools leave out the whole image where one lies further outside."""
LARGEST_FILE = 64_000_000
"""Bytes; half a million boxes."""
MOST_COMPLAINTS = 50
"""Bad lines of one file that are named one by one."""


_KINDS = {"masks": "polygon", "keypoints": "pose", "oriented": "polygon"}
_FORMS = {
    "masks": "a polygon, `class x1 y1 x2 y2 x3 y3 ...`,",
    "keypoints": "a box and keypoints, `class cx cy w h x1 y1 v1 ...`, as many as kpt_shape of data.yaml says,",
    "oriented": "four corners, `class x1 y1 x2 y2 x3 y3 x4 y4`,",
}
"""By task, what a line must be."""

_Corners = tuple[float, float, float, float]
_Row = tuple[int, float, float, float, float]
"""Class, x1 y1 x2 y2."""


class YOLOLabels:
    """The G objects of one label file, in the order of their lines."""

    def __init__(self, rows: Mapping[_Row, int], values: Sequence[NDArray[np.float64]] = (), kinds: Sequence[str] = ()):
        """`rows` has the line of each object, from 1."""
        self.labels = np.array([row[0] for row in rows], dtype=np.int64)
        self.shares = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 4)
        """(G, 4) x1 y1 x2 y2, of the image's width and height."""
        self.lines = tuple(rows.values())
        self.values = tuple(values)
        """All numbers of each line behind the class, if they were asked for."""
        self.kinds = tuple(kinds)
        """What each line is: a "box", a "polygon" or a "pose"."""


def read_labels(
    path: Path,
    classes: int,
    own: OwnFiles,
    keypoint_numbers: int = 0,
    report: Report = raise_errors,
    task: str | None = "boxes",
) -> YOLOLabels | None:
    """Read one file and hand every problem to `report`. Bad lines are left out; None if there is no file.

    Args:
        path: the file.
        classes: the number of classes.
        own: which files may be read.
        keypoint_numbers: how many numbers follow the box in each line.
        report: gets every problem.
        task: what each line must have; None: whatever is there is kept.
    """
    complain = Complaints(path, report)
    if own.refuses(path, report):
        return YOLOLabels({})
    text = ""
    try:
        if path.stat().st_size <= LARGEST_FILE:
            text = path.read_text(encoding="utf-8-sig")
        else:
            defect = f"has more than {LARGEST_FILE // 1_000_000} million bytes"
            complain(defect, "check that this is a label file", "label-unreadable")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        complain("is not text", "export the labels again", "label-unreadable")
    except OSError as error:
        complain(f"cannot be read ({error.strerror})", "restore the file", "label-unreadable")
    reader = _Lines(complain, classes, keypoint_numbers, task)
    for number, line in enumerate(text.splitlines(), 1):
        reader.read(line, number)
    reader.finish()
    return YOLOLabels(reader.rows, reader.values, reader.kinds)


class _Lines:
    """Reads the lines of one file; after many bad ones of a kind it only counts."""

    def __init__(self, complain: Complaints, classes: int, keypoint_numbers: int, task: str | None) -> None:
        self._report = complain
        self.classes = classes
        self.keypoint_numbers = keypoint_numbers
        self.task = task
        self.complaints: Counter[tuple[str, Severity]] = Counter()
        self.rows: dict[_Row, int] = {}
        """Each object with its line; equal lines are one object."""
        self.repeats: list[tuple[int, int]] = []
        self.values: list[NDArray[np.float64]] = []
        self.kinds: list[str] = []

    def read(self, line: str, number: int) -> None:
        """Add the object of a line; an empty or a bad one has none."""
        words = line.split()
        if not words:
            return
        where = f"line {number}"
        values = self._numbers(words, where)
        corners = self._corners(values[1:], where) if values else None
        if values is None or corners is None:
            return
        kind = self._kind(len(values) - 1)
        if not self._fits_task(kind, values[1:], where):
            return
        row = (int(values[0]), *corners)
        if row in self.rows:
            self.repeats.append((number, self.rows[row]))
            return
        self.rows[row] = number
        self.kinds.append(kind)
        if self.task != "boxes":
            self.values.append(np.array(values[1:], dtype=np.float64))

    def _kind(self, count: int) -> str:
        if count == 4:
            return "box"
        return "pose" if self.keypoint_numbers else "polygon"

    def _fits_task(self, kind: str, values: list[float], where: str) -> bool:
        """Whether a line has what the task is about; complains if not."""
        if self.task is None or self.task == "boxes":
            return True
        is_right = kind == _KINDS[self.task] and (self.task != "oriented" or len(values) == 8)
        if not is_right:
            defect = f"{where}: expected {_FORMS[self.task]} but got {counted(len(values) + 1, 'number')}"
            self._complain(
                defect, 'write it so, or use the boxes alone: --task boxes (task="boxes" in Python)', "shape"
            )
        return is_right

    def finish(self) -> None:
        """Report what the file as a whole is about."""
        for (kind, severity), count in self.complaints.items():
            if count > MOST_COMPLAINTS:
                defect = f"has {counted(count - MOST_COMPLAINTS, 'more line')} of this kind"
                self._report(defect, "fix those named and check again", kind, severity)
        if self.repeats:
            fix = "used once, as by YOLO tools; delete the repeated lines"
            self._report(repeats_text("line", self.repeats), fix, "duplicate-object", "warning")
        if {"box", "polygon"} <= set(self.kinds):
            fix = "stepgrad reads each line as what it is, but other YOLO tools read all of them as polygons; write only one kind"
            self._report("mixes boxes and polygons", fix, "label-mixed", "warning")

    def _complain(self, defect: str, fix: str, kind: str, severity: Severity = "error") -> Any:
        self.complaints[kind, severity] += 1
        if self.complaints[kind, severity] <= MOST_COMPLAINTS:
            self._report(defect, fix, kind, severity)

    def _numbers(self, words: list[str], where: str) -> list[float] | None:
        """All numbers of a line, the first of them a class."""
        try:
            values = [float(word) for word in words]
        except ValueError:
            values = []
        if not values or not all(map(math.isfinite, values)):
            shown = " ".join(words)[:60]
            return self._complain(f"{where}: expected numbers but got {shown!r}", _way_out(words), "box-numbers")
        if values[0] != int(values[0]) or not 0 <= values[0] < self.classes:
            defect = f"{where}: expected a class from 0 to {self.classes - 1} but got {words[0][:20]}"
            return self._complain(defect, "correct it, or add its name to data.yaml", "unknown-class")
        return values

    def _corners(self, values: list[float], where: str) -> _Corners | None:
        """x1 y1 x2 y2 of a box, of a box with keypoints behind it, or around a polygon."""
        count = len(values)
        if count == 4 or (self.keypoint_numbers and count == 4 + self.keypoint_numbers):
            cx, cy, width, height = values[:4]
            corners = (cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2)
            return self._checked(corners, values[:4], where)
        if count >= 6 and count % 2 == 0 and not self.keypoint_numbers:
            corners = (min(values[0::2]), min(values[1::2]), max(values[0::2]), max(values[1::2]))
            return self._checked(corners, corners, where)
        hint = " (is the sixth a confidence, and these are detections?)" if count == 5 else ""
        defect = f"{where}: expected `class cx cy w h` or a class and the points of a polygon"
        got = counted(count + 1, "number")
        return self._complain(f"{defect} but got {got}{hint}", "write its box in this form", "box-numbers")

    def _checked(self, corners: _Corners, shares: Sequence[float], where: str) -> _Corners | None:
        """The corners, if they have an area and are shares of the image."""
        x1, y1, x2, y2 = corners
        if not (x2 > x1 and y2 > y1):
            defect = f"{where}: width {x2 - x1:g}, height {y2 - y1:g}"
            return self._complain(defect, f"delete the line; {DROP}", "box-degenerate")
        if max(shares) > 1 + TOLERANCE or min(shares) < -TOLERANCE:
            off = max(shares, key=lambda share: abs(share - 0.5))
            fix = (
                "divide x and width by the image's width, y and height by its height; YOLO tools leave such images out"
            )
            defect = f"{where}: expected shares of the image, from 0 to 1, but got {off:g}"
            return self._complain(defect, fix, "box-shares")
        return corners


def _way_out(words: Sequence[str]) -> str:
    """The fix of a line that has not only numbers: other tools put commas or semicolons between them."""
    parts = re.split(r"[\s,;]+", " ".join(words))
    if all(_is_finite(part) for part in parts if part):
        return "separate the numbers by spaces, as in `0 0.5 0.5 0.2 0.3`"
    return "write a class and four numbers, as in `0 0.5 0.5 0.2 0.3`"


def _is_finite(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False
