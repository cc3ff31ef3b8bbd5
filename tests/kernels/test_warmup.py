"""Kernels compiled ahead and in other processes are those that are called, and whole whatever happens on the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba.core import event

from benchmarks.kernel_uses import called_by, first_calls, other_calls
from stepgrad.cli import main
from stepgrad.kernels import warmup as _warmup
from stepgrad.kernels.dispatch import KernelDispatcher
from stepgrad.kernels.uses import Use, all_uses, describe, read_type
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
QUICK = ("estimators.each_mee", "estimators.each_sde", "sorting._descending_keys", "edited_ap.ranked_sum")


def test_after_a_warmup_no_call_compiles_a_kernel() -> None:
    _warmup.warmup(workers=0)
    with event.install_recorder("numba:compile") as seen:
        for _, call in first_calls():
            called_by(call)
        for call in other_calls():
            called_by(call)
    compiled = [e.data["dispatcher"] for _, e in seen.buffer if isinstance(e.data["dispatcher"], KernelDispatcher)]
    assert {kernel.__name__ for kernel in compiled} == set()
    assert _warmup.missing_uses() == []


def test_a_first_call_is_told_all_the_kernels_it_needs() -> None:
    for name, call in first_calls():
        called = {(kernel, tuple(map(repr, arguments))) for kernel, arguments in called_by(call)}
        told = {(use.kernel, tuple(map(repr, use.find()[1]))) for use in all_uses() if name in use.needed_by}
        assert called == told


def test_types_are_read_as_described() -> None:
    for use in all_uses():
        assert tuple(describe(kind) for kind in use.find()[1]) == use.arguments
    kinds = [numba.types.Array(numba.float32, 2, "A", readonly=True), numba.types.UniTuple(numba.int64, 2)]
    assert [read_type(describe(kind)) for kind in kinds] == kinds


PROGRAM = """
import logging, sys
import numpy as np
from numba.core import event
from stepgrad.kernels import warmup
from stepgrad.kernels.estimators import each_mee
from stepgrad.kernels.sorting import descending_order
from stepgrad.kernels.uses import all_uses
logging.basicConfig()
here = [], []
with event.install_recorder("numba:compile") as seen:
    uses = [use for use in all_uses() if use.kernel in {quick!r}]
    warmup.compile_together(warmup.missing_uses(uses), {workers}, lambda: None)
    random = np.random.default_rng(0)
    print(each_mee(random.normal(size=(6, 4)), 0.1).tolist(), descending_order(random.normal(size=9)).tolist())
    print(warmup.missing_uses(uses), file=sys.stderr)
print(len(seen.buffer))
"""


def start(cache: Path, workers: int) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", PROGRAM.format(quick=QUICK, workers=workers)]
    environment = {**_environment(), "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, encoding="utf-8")


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


def outcome(process: subprocess.Popen[str]) -> tuple[str, int]:
    """The numbers, and how often numba told of a compilation; nothing may be missing or complained of."""
    shown, complaints = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaints) == (0, "[]\n"), complaints
    numbers, events = shown.splitlines()
    return numbers, int(events)


def test_processes_together_make_what_one_makes(tmp_path: Path) -> None:
    alone, _ = outcome(start(tmp_path / "alone", workers=0))
    together, _ = outcome(start(tmp_path / "together", workers=2))
    later, compiled = outcome(start(tmp_path / "together", workers=0))
    assert alone == together == later
    assert compiled <= 2  # _radix_order is not among the quick ones; the process before compiled and kept it
    names = [sorted(file.name for file in (tmp_path / folder).rglob("*.nbc")) for folder in ("alone", "together")]
    assert names[0] == names[1]


def test_two_processes_at_once_leave_a_whole_cache(tmp_path: Path) -> None:
    both = [start(tmp_path, workers=1) for _ in range(2)]
    numbers = {outcome(process)[0] for process in both}
    later, compiled = outcome(start(tmp_path, workers=0))
    assert numbers == {later}
    assert compiled == 0


class Made(Use):
    """Counts instead of compiling."""

    done: list[str] = []  # noqa: RUF012

    def compile(self) -> None:
        self.done.append(self.kernel)


def made_uses() -> list[Use]:
    Made.done.clear()
    return [Made(use.kernel, use.arguments, use.needed_by, use.seconds) for use in all_uses()[:6]]


@pytest.mark.parametrize(
    "program", ["raise SystemExit(1)", "import sys; sys.stdin.readline(); print('what?')", "import os; os.abort()"]
)
def test_what_a_broken_worker_does_not_do_is_done_here(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_warmup, "_PROGRAM", program)
    uses, ticks = made_uses(), []
    _warmup.compile_together(uses, 2, lambda: ticks.append(1))
    assert sorted(Made.done) == sorted(use.kernel for use in uses)
    assert len(ticks) == len(uses)


def test_where_no_process_can_be_started_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    uses = made_uses()
    _warmup.compile_together(uses, 2, lambda: None)
    assert sorted(Made.done) == sorted(use.kernel for use in uses)


def test_processes_of_one_job_start_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert _warmup.usual_workers() == 0


def test_a_worker_knows_neither_torch_nor_the_program_that_runs() -> None:
    code = "import sys; import stepgrad.kernels.warmup; sys.exit(int('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_says_where_kernels_are_and_does_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    _warmup.warmup(workers=0)
    assert main(["warmup"]) == 0
    assert "All kernels are already compiled" in capsys.readouterr().out


def test_the_command_compiles_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_warmup, "missing_uses", made_uses)
    assert main(["warmup", "--workers", "1"]) == 0
    assert len(Made.done) == 6
    assert "Compiled 6 kernels" in capsys.readouterr().out
