"""What a long call tells, on a terminal and where there is none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import stepgrad as sg
from stepgrad import progress
from stepgrad.progress import bar, lines
from tests.models.fine_tuning.made_up import images, new_head


def test_without_a_terminal_every_piece_of_work_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    sg.finetune(new_head(), images(0, 8), images(100, 4), steps=2, rates=[1e-3], stock_rates=[1e-3], seeds=[0])
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "more of the usual loss, rate 0.001, seed 0: 8 ...",
        "mAP, rate 0.001, seed 0: 2 ...",
    ]


def test_long_work_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    told: list[str] = []
    watch = lines(told.append)
    for what in ("features", "training"):
        for step in range(51):
            watch(what, step + 1, 100)
            now[0] += 1
    assert told == [
        "features: 100 ...",
        "features: 31/100, 0:01:07 left",
        "training: 100 ...",
        "training: 31/100, 0:01:07 left",
    ]


@pytest.mark.parametrize("quiet", [{"progress": False}, {"watch": lambda *_: None}])
def test_nothing_is_told_where_that_is_asked_for(quiet: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    options = {"steps": 1, "rates": [1e-3], "stock_rates": [1e-3], "seeds": [0], **quiet}
    sg.finetune(new_head(), images(0, 8), images(100, 4), **options)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar_and_no_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with bar(True) as watch:
        watch("training", 1, 2)
    assert "training: 2 ..." not in capsys.readouterr().err
