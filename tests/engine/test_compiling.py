"""A kernel and all it calls are one module, compiled once; where numba's inside has changed, it compiles in its own way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
import torch
from numba.core import event
from numba.core.runtime import _nrt_python, rtsys

import stepgrad as sg
from stepgrad.engine import accelerator
from stepgrad.engine.accelerator import NEEDED, Part, Whole
from stepgrad.engine.jit import Kernel, inlined, kernel, lend, take_back
from stepgrad.losses import warmup
from tests.engine.fresh_kernel import FreshKernel, cache_in, forget
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
ENGINE = Path(accelerator.__file__).parent


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


@kernel
def sum_of(pair: Pair) -> float:
    total = 0.0
    for value in pair.values:
        total += value
    return total * pair.factor


@kernel
def lent(n: int) -> float:
    pair = Pair(np.ones(n), 2.0)
    total = sum_of(lend(pair))
    take_back(pair)
    return total


@kernel
def forgotten(n: int) -> float:
    pair = Pair(np.ones(n), 2.0)
    return sum_of(lend(pair))


def test_numbers_are_those_of_python() -> None:
    assert highest(np.array([3], dtype=np.int32)).tolist() == [40, 6, 41]
    assert lowest(7) == 8
    values, factor = scaled(Pair(np.arange(3.0), 2.0))
    assert (values.tolist(), factor) == ([0.0, 2.0, 4.0], 3.0)


def _compile_anew(function: Any) -> Any:
    """As a process does that finds nothing on the disk."""
    return function._compiler.compile((numba.int32[::1],), None)


def test_a_kernel_is_compiled_once_for_all_whole_numbers_that_kernels_give_it() -> None:
    assert isinstance(lowest, Kernel)
    _compile_anew(highest)
    assert len(lowest._parts) == 1


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


def never_freed(function: Any, *arguments: Any) -> int:
    """How many arrays a call leaves behind, of those that numba counts."""
    _nrt_python.memsys_enable_stats()
    function(*arguments)
    before = rtsys.get_allocation_stats()
    function(*arguments)
    after = rtsys.get_allocation_stats()
    return (after.mi_alloc - before.mi_alloc) - (after.mi_free - before.mi_free)


def test_a_record_that_is_lent_and_not_taken_back_is_noticed() -> None:
    assert (lent(3), forgotten(3)) == (6.0, 6.0)
    assert never_freed(lent, 3) == 0
    assert never_freed(forgotten, 3) == 1


@pytest.mark.parametrize("name", warmup.CALLS)
def test_every_record_that_kernels_lend_is_taken_back(name: str) -> None:
    assert never_freed(warmup.CALLS[name]) == 0


def test_each_function_of_the_engine_takes_back_what_it_lends_once() -> None:
    for source in ENGINE.glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
                named = {
                    function: sorted(ast.unparse(call.args[0]) for call in calls if call.func.id == function)  # type: ignore[attr-defined]
                    for function in ("lend", "take_back")
                }
                assert named["lend"] == named["take_back"], f"{source.name}: {node.name}"


IN_TURN = """
import numba, numpy as np
from tests.engine.test_compiling import highest
print(highest._compiler.compile((numba.int32[::1],), None).entry_point(np.array([3], dtype=np.int32)).tolist())
print(numba.njit(lambda n: np.zeros(n, dtype=np.int64).tolist() if False else np.zeros(n, dtype=np.int64))(2).tolist())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)


def test_what_numba_compiled_for_a_kernel_serves_others_later() -> None:
    """`np.zeros` is compiled as a part of ours; numba gives it to whoever asks for it next."""
    done = run(IN_TURN)
    assert (done.stdout, done.returncode) == ("[40, 6, 41]\n[0, 0]\n", 0), done.stderr


FROM_DISK = """
import sys
import numpy as np
from tests.engine.test_compiling import Pair, highest, lent, scaled
print(highest(np.array([3], dtype=np.int32)).tolist(), scaled(Pair(np.arange(3.0), 2.0))[0].tolist(), lent(4))
print([sum(k.stats.cache_hits.values()) for k in (highest, scaled, lent)], "numba.np.arraymath" in sys.modules)
try:
    highest(np.array([101], dtype=np.int32))
except ValueError as error:
    print(error)
"""
NUMBERS = "[40, 6, 41] [0.0, 2.0, 4.0] 8.0"


def test_code_from_the_disk_gives_the_same_and_sets_up_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    shown = []
    for _ in range(2):
        done = run(FROM_DISK)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout.splitlines())
    assert shown == [[NUMBERS, "[0, 0, 0] True", "too large"], [NUMBERS, "[1, 1, 1] False", "too large"]]


HIDING = """
import importlib
module, _, name = {path!r}.rpartition(".")
try:
    owner = importlib.import_module(module)
except ImportError:
    owner = getattr(importlib.import_module(module.rpartition(".")[0]), module.rpartition(".")[2])
owner = next((kind for kind in getattr(owner, "__mro__", ()) if name in kind.__dict__), owner)
hidden = owner.__dict__[name]
delattr(owner, name)
import stepgrad.engine.accelerator      # while it is imported, the name is not there
setattr(owner, name, hidden)            # numba itself needs it
"""
BROKEN = """
from stepgrad.engine import accelerator
def fail(*_): raise AttributeError("what it calls has moved")
accelerator._Compiler._compile_core = fail
"""


def path_of(owner: Any, name: str) -> str:
    return f"{owner.__module__}.{owner.__name__}.{name}" if isinstance(owner, type) else f"{owner.__name__}.{name}"


@pytest.mark.parametrize("path", [path_of(*needed) for needed in NEEDED])
def test_where_a_name_of_numbas_is_missing_it_compiles_in_its_own_way(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert_right_with_one_warning(HIDING.format(path=path), f"it has no {path.rpartition('.')[2]}")


def test_where_the_accelerator_fails_numba_compiles_in_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert_right_with_one_warning(BROKEN, "AttributeError: what it calls has moved")


def assert_right_with_one_warning(before: str, why: str) -> None:
    done = run(before + FROM_DISK)
    assert done.returncode == 0, done.stderr
    first, _, last = done.stdout.splitlines()
    assert (first, last) == (NUMBERS, "too large")
    assert done.stderr.count("is not as stepgrad knows it") == 1
    assert why in done.stderr


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


def test_after_a_warmup_no_call_compiles_a_kernel() -> None:
    warmup.warm_up()
    assert warmup.warm_up() == 0
    boxes = torch.rand(70, 2).repeat(1, 2) * 50 + torch.tensor([0.0, 0.0, 20.0, 20.0])
    target = {"boxes": boxes[:4], "labels": torch.tensor([0, 1, 2, 2]), "difficult": torch.tensor([False] * 3 + [True])}
    with event.install_recorder("numba:compile") as seen:
        for dtype in (torch.float32, torch.float64):
            scores = [torch.randn(70, 3).to(dtype).requires_grad_()]
            for options in (
                {},
                {"estimator": "sde"},
                {"protocol": "coco", "balance": "class+scale"},
                {"nms_threshold": None},
            ):
                sg.MAPLoss(3, **options)(scores, [boxes], [target]).backward()
            sg.MAPLoss(3)(scores, [boxes[:, None].expand(-1, 3, -1)], [target]).backward()
            for metric in ("f1", "recall@precision=0.5", "miss_rate", "f1@threshold=0"):
                sg.DetectionLoss(3, metric)(scores, [boxes], [target]).backward()
            detections = {"boxes": boxes, "scores": scores[0][:, 0].detach(), "labels": torch.arange(70) % 3}
            evaluator = sg.Evaluator(3, "coco")
            evaluator.update([detections], [target])
            evaluator.compute()
    compiled = {e.data["dispatcher"].__name__ for _, e in seen.buffer if isinstance(e.data["dispatcher"], Kernel)}
    assert compiled == set()
