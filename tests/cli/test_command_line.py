"""The command line as a user meets it."""

from __future__ import annotations

import re

import pytest

from stepgrad.cli import commands, main


@pytest.mark.parametrize("name", ["demo", "doctor", "evaluate", "propose"])
def test_help_of_every_command_explains_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name in commands()
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert "--" in capsys.readouterr().out


def test_demo_trains_and_reports_the_map_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seconds=4", "--images=20", "--batch=8"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\d+\.\d before, \d+\.\d after \d+ steps", shown)


def test_a_bad_option_value_is_an_error_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--images=2"]) == 2
    assert "Expected --images to be at least 5 but got 2" in capsys.readouterr().err.replace("\n", " ")


def test_lists_are_written_as_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--detections=none.json", "--data=shapes", "--compare", "voc07", "coco"]) == 2
    assert "none.json" in capsys.readouterr().err
