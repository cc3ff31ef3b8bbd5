"""Which kernels are called from Python, with which types, and by what: uses.json, read and written.

The table is written by `python -m benchmarks.kernel_uses`, which calls everything there is and looks what was compiled. It
serves to compile ahead and in several processes (warmup.py). A kernel missing from it is compiled when it is first called.
"""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from numba import types

from stepgrad.kernels.dispatch import KernelDispatcher

TABLE = Path(__file__).with_name("uses.json")
_ARRAY = re.compile(r"(readonly )?array\((\w+), (\d)d, ([CFA])\)")


def describe(kind: Any) -> Any:
    """A type as JSON can hold it.

    >>> describe(types.float64[:, ::1]), describe(types.boolean)
    ('array(float64, 2d, C)', 'bool')
    """
    if isinstance(kind, types.BaseTuple):
        named = getattr(kind, "instance_class", tuple)
        return {f"{named.__module__}.{named.__qualname__}": [describe(part) for part in kind.types]}
    return str(kind)


def read_type(description: Any) -> Any:
    """The type that `describe` described.

    >>> read_type("array(float64, 2d, C)") == types.float64[:, ::1], read_type("bool") == types.boolean
    (True, True)
    """
    if isinstance(description, dict):
        ((name, parts),) = description.items()
        module, _, named = name.rpartition(".")
        kind = None if name == "builtins.tuple" else getattr(importlib.import_module(module), named)
        return types.BaseTuple.from_types([read_type(part) for part in parts], kind)
    if array := _ARRAY.fullmatch(description):
        readonly, dtype, dimensions, layout = array.groups()
        return types.Array(read_type(dtype), int(dimensions), layout, readonly=bool(readonly))
    return types.boolean if description == "bool" else getattr(types, description)


@dataclass(frozen=True)
class Use:
    """A kernel and the types it is called with from Python."""

    kernel: str  # "nms.greedy_nms"
    arguments: tuple[Any, ...]  # as described
    needed_by: tuple[str, ...]  # what cannot start without it, such as "radius float32"
    seconds: float  # of compilation, on some machine: the longest is begun first

    def find(self) -> tuple[KernelDispatcher, tuple[Any, ...]]:
        """The kernel and its argument types."""
        module, name = self.kernel.rsplit(".", 1)
        kernel = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        return kernel, tuple(read_type(argument) for argument in self.arguments)

    def is_ready(self) -> bool:
        """Whether it was compiled in this process or stands on the disk."""
        kernel, arguments = self.find()
        return arguments in kernel.overloads or kernel.is_kept(arguments)

    def compile(self) -> None:
        """Compile it, or load it from the disk."""
        kernel, arguments = self.find()
        kernel.compile(arguments)


@cache
def all_uses() -> tuple[Use, ...]:
    """The table."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(Use(row["kernel"], tuple(row["arguments"]), tuple(row["needed_by"]), row["seconds"]) for row in rows)


def write_table(uses: list[Use]) -> None:
    """Write the table: one line for each kernel and its types, those that take longest first."""
    rows = [
        {"kernel": use.kernel, "seconds": use.seconds, "needed_by": use.needed_by, "arguments": use.arguments}
        for use in sorted(uses, key=lambda use: (-use.seconds, use.kernel, str(use.arguments)))
    ]
    TABLE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
    all_uses.cache_clear()
