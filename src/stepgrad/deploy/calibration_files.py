"""Calibrations from disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.deploy.calibration import Calibration
from stepgrad.deploy.calibration_writing import ClassMap
from stepgrad.deploy.monotone import RisingMap
from stepgrad.errors import DataError


def read_calibration(path: str | Path) -> Calibration:
    """The calibration that `save` or `stepgrad calibrate --out` wrote as .json; its maps are equal to the last bit."""
    place = Path(path).expanduser()
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected a calibration that `stepgrad calibrate --out` wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as a calibration: {error}") from error
    try:
        ids = content["category_ids"]
        found = Calibration(
            protocol=str(content["protocol"]),
            overlap=str(content["overlap"]),
            squash=bool(content["squash"]),
            classes=tuple(_class_map(row) for row in content["classes"]),
            images=int(content["images"]),
            before=None,
            after=None,
            category_ids=None if ids is None else tuple(ids),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: is not what `stepgrad calibrate --out FILE.json` writes ({type(error).__name__}: {error})"
        ) from error
    return found


def _class_map(row: Mapping[str, Any]) -> ClassMap:
    x, y = (np.array(row[name], dtype=np.float64) for name in ("scores", "probabilities"))
    if not (x.shape == y.shape and x.ndim == 1 and len(x) >= 2):
        raise ValueError(f"{row['name']}: expected as many probabilities as scores, two or more")
    ends = x[0] == 0.0 and x[-1] == 1.0 and y[0] >= 0.0 and y[-1] <= 1.0
    if not (ends and (np.diff(x) > 0).all() and (np.diff(y) > 0).all()):
        raise ValueError(f"{row['name']}: expected scores from 0 to 1 and probabilities between, both rising")
    return ClassMap(str(row["name"]), str(row["kind"]), int(row["objects"]), RisingMap(x, y))
