"""Which files of a dataset may be read: regular ones below its own folder, links resolved, unless others are allowed.

An archive from elsewhere can hold links and pipes. A file outside that a link leads to would be shown in messages and copied
by `stepgrad convert`; a pipe or a device would be read without end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stepgrad.data.problems import Problem, Report

ALLOW_OUTSIDE = "images_outside=True in Python, --images_outside in commands, data.images_outside: true in configs"


class OwnFiles:
    """The rule for one dataset.

    Args:
        folders: the folders of the data.
        outside: whether files may lie anywhere; they must be regular ones even then.
    """

    def __init__(self, *folders: Path, outside: bool = False) -> None:
        self.folders = folders
        self.outside = outside
        self._parents: dict[str, bool] = {}

    def holds(self, path: Path) -> bool:
        """Whether a path, with its links resolved, lies in one of the folders, or may lie anywhere."""
        return self.outside or any(is_below(path, folder) for folder in self.folders)

    def refuses(self, path: Path, report: Report) -> bool:
        """Report a file that may not be read. One that is not there is not refused: whoever reads it says so."""
        try:
            kind = os.stat(path).st_mode
        except (OSError, ValueError):  # the latter for a name with a zero byte
            return False
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # opening a folder fails without harm
            fix = "remove it, since reading it may never end"
            report(Problem(str(path), "is a pipe or a device, not a file", fix, "error", "not-a-file"))
            return True
        if self.holds_file(path):
            return False
        report(self._problem(path))
        return True

    def holds_file(self, path: Path) -> bool:
        """As `holds`, for one of many files: the links of their folder are resolved only once."""
        if os.path.islink(path):
            return self.holds(path)
        parent = os.path.dirname(path)
        if parent not in self._parents:
            self._parents[parent] = self.holds(Path(parent))
        return self._parents[parent] or self.holds(path)  # the folder of the data itself has no parent in it

    def _problem(self, path: Path) -> Problem:
        """The problem of a file outside. It names the link that leads there, so that all files behind it share one problem."""
        places = (*reversed(path.parents), path)
        link = next((place for place in places if self.holds(place.parent) and not self.holds(place)), None)
        lies = f"is a link to {os.path.realpath(link)}, outside" if link else "lies outside"
        fix = f"copy the files into the folder, or allow it: {ALLOW_OUTSIDE}"
        home = " and ".join(map(str, self.folders))
        return Problem(str(link or path), f"{lies} {home}", fix, "error", "link-outside")


def leads_on(name: str) -> bool:
    """Whether a name may lead out of the folder it is looked for in: an absolute path, or one with `..`.

    >>> leads_on("a/b.jpg"), leads_on("../b.jpg"), leads_on("/b.jpg")
    (False, True, True)
    """
    path = Path(name)
    return bool(path.drive or path.root or ".." in path.parts)


def is_below(path: Path, folder: Path) -> bool:
    """Whether a path lies in a folder, with the links of both resolved.

    >>> is_below(Path("data/a/../b.jpg"), Path("data")), is_below(Path("data/../b.jpg"), Path("data"))
    (True, False)
    """
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except ValueError:  # a zero byte, which no file has in its name
        return False
