"""Finished trainings, in memory or in a folder: a fine-tuning that was stopped does not train them again."""

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.errors import ConfigError
from stepgrad.extras import need
from stepgrad.files import write_whole


class FinishedHeads:
    """Trained heads by name; in a folder, if there is one.

    Args:
        folder: None keeps nothing.
        settings: all that the trainings depend on; a folder takes no others.
    """

    def __init__(self, folder: Path | None, settings: dict[str, Any]) -> None:
        self.folder = folder
        if folder is None:
            return
        need("safetensors", purpose="finetune(out=...)")
        file = folder / "settings.json"
        text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
        if not file.exists():
            write_whole(file, text.encode())
        elif file.read_text(encoding="utf-8") != text:
            raise ConfigError(
                f"{folder}: holds a fine-tuning of another head, other images or other settings (settings.json); choose "
                "another out, or delete the folder."
            )

    def trained(self, name: str, start: nn.Module, training: Callable[[], nn.Module]) -> tuple[nn.Module, float]:
        """The head of that name, trained now unless it is on record, and the seconds that it took."""
        if self.folder is None:
            began = time.monotonic()
            return training(), time.monotonic() - began
        from safetensors import safe_open
        from safetensors.torch import save

        file = self.folder / "heads" / f"{name}.safetensors"
        if not file.exists():
            began = time.monotonic()
            weights = {key: value.contiguous() for key, value in training().state_dict().items()}
            file.parent.mkdir(exist_ok=True)
            write_whole(file, save(weights, metadata={"seconds": repr(time.monotonic() - began)}))
        head = copy.deepcopy(start).eval()
        with safe_open(file, framework="pt") as content:
            head.load_state_dict({key: content.get_tensor(key) for key in content.keys()})  # noqa: SIM118  # it is no dict
            return head, float(content.metadata()["seconds"])


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A number for the content of tensors: their shapes, types and bits."""
    content = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        content.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()
