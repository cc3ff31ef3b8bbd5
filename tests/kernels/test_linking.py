"""A kernel and all it calls are one module: each function compiled once, and the numbers those of Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.core import event

from stepgrad.kernels.dispatch import KernelDispatcher
from stepgrad.kernels.jit import inlined, kernel
from stepgrad.kernels.linking import Part, Whole
from tests.kernels.fresh_kernel import FreshKernel, cache_in, forget
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


class Pair(NamedTuple):
    values: np.ndarray
    factor: float


@kernel
def lowest(x: int) -> int:
    if x > 100:
        raise ValueError("too large")
    return x + 1


@inlined
def middle(x: int) -> int:
    return lowest(x) * 10


@kernel
def highest(numbers: np.ndarray) -> np.ndarray:
    out = np.zeros(3, dtype=np.int64)
    out[0] = middle(numbers[0])  # int32
    out[1] = lowest(5)  # a constant
    out[2] = lowest(out[0])  # int64
    return out


@kernel
def scaled(pair: Pair) -> Pair:
    return Pair(pair.values * pair.factor, pair.factor + 1.0)


def test_numbers_are_those_of_python() -> None:
    assert highest(np.array([3], dtype=np.int32)).tolist() == [40, 6, 41]
    assert lowest(7) == 8
    values, factor = scaled(Pair(np.arange(3.0), 2.0))
    assert (values.tolist(), factor) == ([0.0, 2.0, 4.0], 3.0)


def test_a_kernel_is_compiled_once_for_all_whole_numbers_that_kernels_give_it() -> None:
    assert isinstance(lowest, KernelDispatcher)
    highest(np.array([3], dtype=np.int32))
    _compile_anew(highest)
    assert len(lowest._parts) == 1


def _compile_anew(function: Any) -> Any:
    """As a process does that finds nothing on the disk."""
    return function._compiler.compile((numba.int32[::1],), None)


def test_what_a_kernel_calls_is_neither_optimised_nor_translated_on_its_own() -> None:
    whole = _compile_anew(highest)
    parts = [part.library for part in lowest._parts.values()]  # type: ignore[attr-defined]
    assert type(whole.library) is Whole
    assert [(type(part), part._complete) for part in parts] == [(Part, False)]


def test_errors_come_up_through_kernels() -> None:
    with pytest.raises(ValueError, match="too large"):
        highest(np.array([101], dtype=np.int32))


def test_functions_compiled_by_numba_alone_may_call_kernels() -> None:
    @numba.njit
    def others(x: int) -> int:
        return middle(x) + lowest(x)

    assert others(3) == 44
    with pytest.raises(ValueError, match="too large"):
        others(101)


IN_TURN = """
import numba, numpy as np
from tests.kernels.test_linking import highest
print(highest._compiler.compile((numba.int32[::1],), None).entry_point(np.array([3], dtype=np.int32)).tolist())
print(numba.njit(lambda n: np.zeros(n, dtype=np.int64).tolist() if False else np.zeros(n, dtype=np.int64))(2).tolist())
"""


def test_what_numba_compiled_for_a_kernel_serves_others_later() -> None:
    """`np.zeros` is compiled as a part of ours; numba gives it to whoever asks for it next."""
    done = subprocess.run([sys.executable, "-c", IN_TURN], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.returncode) == ("[40, 6, 41]\n[0, 0]\n", 0), done.stderr


FROM_DISK = """
import sys
import numpy as np
from tests.kernels.test_linking import Pair, highest, scaled
print(highest(np.array([3], dtype=np.int32)).tolist(), scaled(Pair(np.arange(3.0), 2.0))[0].tolist())
print([sum(k.stats.cache_hits.values()) for k in (highest, scaled)], "numba.np.arraymath" in sys.modules)
try:
    highest(np.array([101], dtype=np.int32))
except ValueError as error:
    print(error)
"""


def test_code_from_the_disk_gives_the_same_and_sets_up_no_compiler(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    shown = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", FROM_DISK], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout.splitlines())
    numbers = "[40, 6, 41] [0.0, 2.0, 4.0]"
    assert shown == [[numbers, "[0, 0] True", "too large"], [numbers, "[1, 1] False", "too large"]]


def test_numba_is_told_of_every_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word about the wait, and the count of compiled kernels, hang on it."""
    cache_in(monkeypatch, tmp_path / "kernels", tmp_path)  # an empty one: what is kept is not compiled again
    try:
        fresh = FreshKernel()
        with event.install_recorder("numba:compile") as seen:
            assert fresh(1.5) == 3.0
        assert len(seen.buffer) == 2
    finally:
        forget(monkeypatch)
