"""The examples of step functions and layers run as they stand, with fewer steps, and improve the number they print."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ["own_metric", "quantised_bottleneck", "through_nms"]


def main_of(name: str) -> Callable[..., dict[str, float]]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


@pytest.mark.parametrize("seed", [0, 1])
def test_training_for_f1_beats_as_many_steps_of_cross_entropy(seed: int) -> None:
    found = main_of("own_metric")(steps=40, seed=seed)
    assert found["f1"] > found["cross-entropy"] + 0.03


@pytest.mark.parametrize("estimator", ["mee", "sde"])
def test_gradients_through_the_quantiser_beat_training_the_decoder_alone(estimator: str) -> None:
    found = main_of("quantised_bottleneck")(steps=60, estimator=estimator)
    assert found["through the quantiser"] < 0.5 * found["decoder alone"]


@pytest.mark.parametrize("seed", [0, 1])
def test_training_through_nms_makes_kept_windows_fit(seed: int) -> None:
    found = main_of("through_nms")(steps=12, seed=seed)
    assert found["after"] > found["before"] + 0.05


@pytest.mark.parametrize("name", NAMES)
def test_examples_run_from_the_command_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = EXAMPLES / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--steps", "2"])
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(("name", "sizes"), [("masks", {"steps": 10, "images": 10}), ("segments", {"steps": 20})])
def test_scores_learn_to_follow_masks_and_segments(name: str, sizes: dict[str, int]) -> None:
    found = main_of(name)(**sizes)
    assert found["after"] > found["before"] + 0.05
