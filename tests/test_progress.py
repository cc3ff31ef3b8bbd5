"""What a run shows on a terminal, and where there is none."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from stepgrad import progress as module
from stepgrad.progress import RichProgress

TRAIN: dict[str, Any] = {
    **{"kind": "train", "step": 30, "phase": "map", "loss": 0.5, "map": 0.25, "positives": 31, "nonzero": 0.4},
}
VAL: dict[str, Any] = {"kind": "val", "step": 20, "phase": "nll", "map": {"voc12": 0.375, "coco": 0.2}, "images": 50}
NUMBERS = "loss 0.500, batch mAP 25.0, validation mAP 37.5 (best 37.5), 31 positives, 40.0 % of gradients are not zero"


def shown(terminal: bool, *calls: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=130, highlight=False, color_system=None)
    with RichProgress(console) as progress:
        for call in calls:
            call(progress)
        progress._live.refresh()
    return out.getvalue()


def test_bar_has_step_time_left_and_the_numbers_of_the_step() -> None:
    text = shown(True, lambda p: p.start(100, 10), lambda p: p.val(VAL), lambda p: p.step(TRAIN))
    assert "step 20 (nll): validation mAP voc12 37.5, coco 20.0 on 50 images" in text
    assert "30/100" in text
    assert "left" in text
    assert NUMBERS in text


def test_without_a_terminal_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_PAUSE", 0.0)
    text = shown(False, lambda p: p.start(100, 10), lambda p: p.val(VAL), lambda p: p.step(TRAIN))
    lines = text.splitlines()
    assert lines[0] == "step 20 (nll): validation mAP voc12 37.5, coco 20.0 on 50 images"
    assert lines[1].startswith("step 30/100, 0:00:0")
    assert lines[1].endswith(f"left: {NUMBERS}")
    assert "\x1b" not in text


def test_without_a_terminal_steps_are_not_a_flood() -> None:
    steps = [lambda p, i=i: p.step({**TRAIN, "step": i}) for i in range(1, 101)]
    lines = shown(False, lambda p: p.start(100, 0), *steps).splitlines()
    assert [line.split(",")[0] for line in lines] == ["step 100/100"]


def test_best_validation_is_told() -> None:
    better, worse = {**VAL, "map": {"voc12": 0.5}}, {**VAL, "map": {"voc12": 0.4}}
    lines = shown(False, lambda p: p.val(VAL), lambda p: p.val(better), lambda p: p.val(worse)).splitlines()
    assert [line.endswith("the best so far") for line in lines] == [False, True, False]


@pytest.mark.parametrize(("name", "best"), [("recall@precision=0.9", 0.5), ("miss_rate", 0.25)])
def test_the_metric_that_is_trained_for_is_shown_by_its_name_beside_map(name: str, best: float) -> None:
    vals = [{**VAL, "metrics": {name: value}, "best": value == best} for value in (0.25, 0.5, 0.375)]
    line = {**TRAIN, "step": 100, "map": None, "metrics": {name: 0.125}}
    calls = [lambda p, val=val: p.val(val) for val in vals]
    lines = shown(False, lambda p: p.start(100, 10), *calls, lambda p: p.step(line)).splitlines()
    assert lines[2] == f"step 20 (nll): validation mAP voc12 37.5, coco 20.0, {name} 37.5 on 50 images"
    numbers = f"batch {name} 12.5, validation {name} 37.5 (best {100 * best:.1f}), validation mAP 37.5 (best 37.5), 31 positives"
    assert f"left: loss 0.500, {numbers}" in lines[-1]


def test_missing_numbers_are_left_out() -> None:
    line = {"kind": "train", "step": 100, "phase": "nll", "loss": None, "map": None, "positives": 0, "nonzero": None}
    assert shown(False, lambda p: p.start(100, 0), lambda p: p.step(line)).endswith("left: 0 positives\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_stage_counts_its_work_and_leaves(terminal: bool) -> None:
    def stage(progress: RichProgress) -> None:
        with progress.stage("validating [x]", 7) as tick:
            for _ in range(3):
                tick()
            progress._live.refresh()
        assert progress._bars.tasks == []

    text = shown(terminal, stage)
    assert ("3/7" in text) == terminal
    assert "validating [x]" in text


@pytest.mark.parametrize("training", [False, True])
def test_without_a_terminal_long_work_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def stage(progress: RichProgress) -> None:
        if training:
            progress.start(10, 0)
        with progress.stage("searching windows", 100) as tick:
            for _ in range(50):
                now[0] += 1
                tick()

    lines = [line for line in shown(False, stage).splitlines() if "..." not in line]
    assert lines == ["searching windows: 30/100, 0:01:10 left"]


def test_work_that_learns_its_total_late_is_silent_when_short_and_tells_how_far_it_is_when_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def work(progress: RichProgress, seconds: int) -> None:
        with progress.counted("examining images") as show:
            for second in range(seconds):
                now[0] += 1
                show(10 * (second + 1), 1000)

    assert shown(False, lambda p: work(p, 29)) == ""
    assert shown(False, lambda p: work(p, 40)) == "examining images: 300/1000, 0:01:10 left\n"
