"""Packages of others are needed by the module named after them, and by nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from torch import nn

from stepgrad.errors import MissingDependencyError

OTHERS = ["transformers", "lightning", "pytorch_lightning", "torchmetrics", "accelerate", "ultralytics"]


def test_importing_stepgrad_imports_no_framework() -> None:
    code = f"import sys, stepgrad as sg; sg.MAPLoss; print([name for name in {OTHERS} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "absent", "extra"),
    [
        ("lightning", ["lightning.pytorch.callbacks", "pytorch_lightning.callbacks"], "lightning"),
        ("hf_trainer", ["transformers.trainer_callback"], "transformers"),
        ("torchmetrics", ["torchmetrics"], "torchmetrics"),
    ],
)
def test_without_its_package_a_module_says_what_to_install(
    module: str, absent: list[str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"stepgrad.models.frameworks.{module}", raising=False)
    with pytest.raises(MissingDependencyError, match=rf'pip install .*\[{extra}\]"'):
        importlib.import_module(f"stepgrad.models.frameworks.{module}")


def test_without_transformers_its_wrapper_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from stepgrad.models.detr.transformers import train_for_map

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r'pip install .*\[transformers\]"'):
        train_for_map(nn.Linear(1, 1))
