"""Arrays of an .npz file that may be damaged, of another kind, or made to do harm: nothing in it is ever unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import DataError

NUMBERS = "iuf"
WHOLE_NUMBERS = "iu"
TEXTS = "U"
IDS = "USiu"


def read_arrays(path: Path, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names, each of one of its NumPy kinds, or a DataError without a way out.

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


_WORDS = {NUMBERS: "numbers", WHOLE_NUMBERS: "whole numbers", TEXTS: "text", IDS: "names or whole numbers"}
