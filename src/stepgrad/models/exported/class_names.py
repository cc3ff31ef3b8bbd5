"""Which class of the data each class of a model is."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import DataError, LikelyMistakeWarning
from stepgrad.number_text import counted

SAME = (
    *(("airplane", "aeroplane"), ("motorcycle", "motorbike"), ("couch", "sofa"), ("tv", "tvmonitor")),
    ("diningtable", "table"),
)
"""Names of COCO and of VOC for the same class, where they are not spelt alike."""
_SHOWN = 5


def labels_of(
    names: Sequence[str] | None, classes: int | None, wanted: Sequence[str], where: str
) -> tuple[NDArray[np.int64], list[str]]:
    """For each class of the model its label in the data, -1 for none; and the names of the model's classes.

    Args:
        names: the classes of the model, if it says.
        classes: how many classes its output has, if that is known.
        wanted: the classes of the data.
        where: the name of the model, for messages.
    """
    if names is None:
        if classes not in (None, len(wanted)):
            raise DataError(
                f"{where}: names no classes and has {classes}, but the data has {len(wanted)} ({_some(wanted)}); "
                "name them in a text file, one in each line: --model-classes FILE"
            )
        return np.arange(len(wanted)), list(wanted)
    known = {spelling: label for label, name in enumerate(wanted) for spelling in _spellings(name)}
    exact = {_plain(name): label for label, name in enumerate(wanted)}
    labels = [exact.get(_plain(name), known.get(_plain(name), -1)) for name in names]
    missing = [name for label, name in enumerate(wanted) if label not in labels]
    if len(missing) == len(wanted):
        raise DataError(
            f"{where}: expected classes of the data ({_some(wanted)}) but it has {_some(names)}; write the names of the data for "
            "the classes of the model into a text file, one in each line: --model-classes FILE"
        )
    if missing:
        warnings.warn(
            f"{where}: does not know {_some(missing)} of the data; objects of {counted(len(missing), 'such class')} are missed.",
            LikelyMistakeWarning,
            stacklevel=2,
        )
    return np.array(labels, dtype=np.int64), list(names)


def read_names(path: str | Path) -> tuple[str, ...]:
    """The lines of a text file."""
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected the name of a class in each line") from error
    names = tuple(line.strip() for line in lines)
    while names and not names[-1]:
        names = names[:-1]
    if not names:
        raise DataError(f"{path}: is empty; expected the name of a class in each line")
    return names


def _plain(name: str) -> str:
    """
    >>> _plain("Potted plant")
    'pottedplant'
    """
    return re.sub(r"[\s_-]+", "", name).casefold()


def _spellings(name: str) -> set[str]:
    plain = _plain(name)
    return {plain}.union(*(pair for pair in SAME if plain in pair))


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
