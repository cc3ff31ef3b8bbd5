"""The example does what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_ranker.py"


def test_linear_ranker_learns_ndcg(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("train_ranker", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    before, after = example.train()
    assert before < 0.5
    assert after > 0.75
    assert "NDCG@10" in capsys.readouterr().out
