"""The detector, and other people's models, in float64: `python -m tests.double_precision SCRIPT.py|MODULE [ARGUMENT ...]`.

Two ways to add up the same numbers differ by their rounding, and one step of a ranking can make much of that: two scores that
trade places change the gradient. In float32 such laws hold on some machines only. In float64 they hold up to about 1e-12,
far below anything that a mistake would change.

The library brings images, feature maps and losses to float32 with `Tensor.float`; here that is `Tensor.double`.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
MODULE = "tests.double_precision"


@contextmanager
def double_precision() -> Iterator[None]:
    """New layers and random numbers are float64, and nothing is brought back to float32."""
    holder: Any = torch.Tensor
    usual, dtype = holder.float, torch.get_default_dtype()
    holder.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        holder.float = usual
        torch.set_default_dtype(dtype)


def _main(program: str) -> None:
    sys.argv = sys.argv[1:]
    with double_precision():
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1])
