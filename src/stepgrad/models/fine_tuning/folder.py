"""A folder of finished trainings, and what it belongs to: all settings and all data by value, in one small file.

A folder takes only the call that it was made by, so that nobody gets an old result for new input. A call that was stopped
does not train again what is there.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepgrad.errors import ConfigError, DataError
from stepgrad.extras import need
from stepgrad.files import write_whole
from stepgrad.weights_file import bytes_of, read_tensors, write_tensors

_SHOWN = 30  # characters of a value that a message shows; longer ones, such as fingerprints, are only named
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


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


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A number for the content of tensors: their shapes, types and bits."""
    content = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        content.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        content.update(bytes_of(tensor))
    return content.hexdigest()


def digest(value: Any) -> str:
    """A number for a value: equal if and only if all parts are, tensors bit by bit.

    >>> digest({"weights": torch.zeros(2000)}) == digest({"weights": torch.zeros(2000)})
    True
    >>> one = torch.zeros(2000)
    >>> one[1000] = 1                       # which `str` does not show
    >>> digest({"weights": one}) == digest({"weights": torch.zeros(2000)})
    False
    """
    return hashlib.blake2b(_text(by_value(value)).encode(), digest_size=16).hexdigest()


def by_value(value: Any) -> Any:
    """A value as JSON can hold it: records by their fields, tensors and modules by their content, functions by their names.

    >>> by_value({"rates": (0.1, math.inf), "kind": torch.float16})
    {'rates': [0.1, 'inf'], 'kind': 'torch.float16'}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return by_value(value.tolist())
    if isinstance(value, Tensor):
        return f"tensor {fingerprint([value])}"
    if isinstance(value, nn.Module):
        return f"module {_module_fingerprint(value)}"
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: by_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): by_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [by_value(item) for item in value]
    if isinstance(value, Set):
        return sorted((by_value(item) for item in value), key=_text)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, (torch.dtype, torch.device, Path)):
        return str(value)
    return {"type": by_value(type(value)), **by_value(getattr(value, "__dict__", {}))}


def _module_fingerprint(module: nn.Module) -> str:
    """Of its weights and statistics, and of what is printed of its structure: a ReLU and a Tanh have no weights."""
    state = module.state_dict()
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    structure = [_ADDRESS.sub("", repr(module)), list(tensors)]
    return hashlib.blake2b(f"{_text(structure)} {fingerprint(tensors.values())}".encode(), digest_size=16).hexdigest()


def claim(file: Path, settings: Mapping[str, Any]) -> str:
    """Make the folder of `file` belong to these settings from now on; ConfigError if it belongs to others.

    Returns the settings' digest, by which a file in the folder can tell whose it is.
    """
    try:
        now = json.loads(_text(by_value(settings)))
    except RecursionError:
        raise ConfigError(
            "Expected settings that JSON can hold but one of them holds itself; leave out `out`."
        ) from None
    if not file.exists():
        write_whole(file, (json.dumps(now, indent=1, sort_keys=True) + "\n").encode())
    else:
        differing = _differences(_read(file), now)
        if differing:
            raise ConfigError(
                f"{file.parent}: belongs to a call with other input, by its {file.name}: {'; '.join(differing)}. Choose "
                "another out, or delete this folder."
            )
    return digest(now)


def expect_folder(path: Path) -> None:
    """Raise DataError if there is something else in its place."""
    if path.exists() and not path.is_dir():
        raise DataError(f"{path}: expected a folder but it is a file; delete it, or choose another out.")


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise DataError(
            f"{file}: cannot be read ({reason}), so what its folder belongs to is not known; choose another out, or delete "
            f"the folder {file.parent}"
        ) from error


def _differences(known: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words; values only where they are short."""
    before, after = _flat(known), _flat(now)
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [_difference(name, before.get(name), after.get(name)) for name in names]


def _difference(name: str, before: Any, after: Any) -> str:
    texts = _text(before), _text(after)
    if max(map(len, texts)) > _SHOWN:
        return f"{name} differs"
    return f"{name} was {texts[0]} and is {texts[1]}"


def _flat(settings: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """By names with dots: {"a": {"b": 1}} is {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat.update(_flat(value, f"{start}{name}.") if isinstance(value, dict) and value else {f"{start}{name}": value})
    return flat


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
