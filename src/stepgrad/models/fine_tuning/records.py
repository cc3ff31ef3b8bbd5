"""Finished trainings, in memory or in a folder: a fine-tuning that was stopped does not train them again."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from stepgrad.errors import DataError
from stepgrad.extras import need
from stepgrad.models.fine_tuning.identity import claim, expect_folder


class FinishedHeads:
    """Trained heads by name; in a folder, if there is one.

    Args:
        folder: None keeps nothing.
        settings: all that the trainings depend on; a folder takes no others.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        if folder is None:
            return
        need("safetensors", purpose="finetune(out=...)")
        expect_folder(folder / "heads")
        self.owner = claim(folder / "settings.json", settings)

    def trained(self, name: str, start: nn.Module, training: Callable[[], nn.Module]) -> tuple[nn.Module, float]:
        """The head of that name, trained now unless it is on record, and the seconds that it took."""
        if self.folder is None:
            began = time.monotonic()
            return training(), time.monotonic() - began
        from stepgrad.weights_file import write_tensors

        file = self.folder / "heads" / f"{name}.safetensors"
        if not file.exists():
            began = time.monotonic()
            weights = training().state_dict()
            write_tensors(file, weights, {"settings": self.owner, "seconds": repr(time.monotonic() - began)})
        try:
            return self._read(file, start)
        except DataError as error:
            raise DataError(f"{error}; delete it, and it is trained again") from error

    def _read(self, file: Path, start: nn.Module) -> tuple[nn.Module, float]:
        from stepgrad.weights_file import read_tensors

        weights, facts = read_tensors(file)
        if facts.get("settings") != self.owner:
            raise DataError(f"{file}: belongs to another training than settings.json beside it says")
        head = copy.deepcopy(start).eval()
        try:
            head.load_state_dict(weights)
            return head, float(facts["seconds"])
        except (RuntimeError, KeyError, ValueError) as error:
            reason = " ".join(str(error).split())  # torch's has several lines
            raise DataError(f"{file}: does not hold the head that was trained here ({reason})") from error
