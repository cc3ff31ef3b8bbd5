"""A small kernel that can be compiled again and again, as by new processes, and a place to keep it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import pytest

from stepgrad.engine import cache as _cache
from stepgrad.engine import jit as _jit


def doubled(x: Any) -> Any:
    return x + x


class FreshKernel:
    """`FreshKernel()` knows what a new process knows: only what is on the disk."""

    def __init__(self) -> None:
        forget_what_was_found()
        self.kernel: Any = _jit.kernel(doubled)

    def __call__(self, x: float) -> float:
        return self.kernel(x)

    @property
    def loaded(self) -> int:
        """Signatures that came from the disk."""
        return sum(self.kernel.stats.cache_hits.values())

    @property
    def folder(self) -> Path | None:
        path = self.kernel.stats.cache_path
        return path and Path(path)


def cache_in(monkeypatch: pytest.MonkeyPatch, folder: Path | str, temporary: Path) -> None:
    """Let NUMBA_CACHE_DIR name a folder, and let there be no other place than a temporary one."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(_cache.Path, "home", homeless)
    monkeypatch.setattr(_cache.tempfile, "gettempdir", lambda: str(temporary))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out in a test is not true after it."""
    monkeypatch.undo()
    forget_what_was_found()


def forget_what_was_found() -> None:
    """The next kernel looks at the disk, as the first of a process does."""
    _cache.find_folder.cache_clear()
    _cache.sources_hash.cache_clear()
    _cache._told.clear()
