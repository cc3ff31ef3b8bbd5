"""Rescorers on disk: one json file with the weights, the choice, and what it was based on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepgrad.errors import DataError
from stepgrad.files import read_json, write_whole

FORMAT = "stepgrad rescorer 1"


def write_content(path: Path, content: Mapping[str, Any]) -> None:
    """Write it whole or not at all."""
    write_whole(path.expanduser(), (json.dumps({"format": FORMAT, **content}) + "\n").encode())


def read_content(path: Path) -> dict[str, Any]:
    """What `write_content` wrote."""
    expected = "expected a file of `stepgrad rescore`"
    content = read_json(path, expected, expected)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path}: expected a rescorer that `stepgrad rescore --out` wrote, with format {FORMAT!r}")
    return content


def numbers_of(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Weights as lists; every float32 comes back as it was."""
    return {name: {"shape": list(w.shape), "values": w.flatten().tolist()} for name, w in weights.items()}


def tensors_of(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights from their lists."""
    return {
        name: torch.tensor(w["values"], dtype=torch.float32).reshape(w["shape"]) for name, w in dict(content).items()
    }
