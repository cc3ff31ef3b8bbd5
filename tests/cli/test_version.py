"""`stepgrad --version`: one version in one place, and the packages it uses."""

from __future__ import annotations

import platform
from importlib.metadata import version

import numba
import pytest
import torch

import stepgrad as sg
from stepgrad.cli import main
from stepgrad.cli.version import cpu_name
from stepgrad.detector.training.run_log import versions


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version_comes_with_those_of_python_torch_numba_and_the_name_of_the_cpu(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == 0
    shown = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert shown["stepgrad"] == sg.__version__
    assert shown["Python"] == platform.python_version()
    assert (shown["torch"], shown["numba"]) == (version("torch"), numba.__version__)
    assert torch.__version__.startswith(shown["torch"].partition("+")[0])
    assert shown["CPU"] == cpu_name() != ""


def test_a_run_notes_the_version_of_the_code_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sg, "__version__", "7.8.9")
    assert versions()["versions"]["stepgrad"] == "7.8.9"
