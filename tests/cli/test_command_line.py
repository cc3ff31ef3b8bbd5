"""The command line as a user meets it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

import pytest
from docstring_parser import parse_from_object

from stepgrad.cli import commands, main
from stepgrad.cli.options import REQUIRED, Option, parse
from stepgrad.detector.training.config import DataConfig, MAPLossConfig, ModelConfig, PhaseConfig, RunConfig
from tests.patience import PATIENCE

COMMANDS = ["demo", "train", "evaluate", "report", "detect", "propose", "doctor", "convert", "warmup"]


def test_help_lists_every_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(commands()) == COMMANDS
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f" {name} {what}" in shown for name, what in commands().items())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_explains_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: stepgrad {name}")
    assert "  --" in shown or name == "warmup"  # which has no options


def test_a_default_of_zero_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--help"])
    assert "The first of the seeds. [0]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["evaluate", "--help"], ["detect", "--help"], ["warmup", "--help"]]
)
def test_help_waits_for_no_large_library(words: list[str]) -> None:
    """Torch, numba and Lightning take seconds to import."""
    code = (
        f"import sys; from stepgrad.cli import main; main({words!r}); "
        "sys.exit(' '.join({'torch', 'numba', 'lightning_fabric', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m stepgrad.cli train --print_config | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stderr == ""


def test_nothing_asked_for_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


DESCRIBED = [
    *(getattr(import_module(f"stepgrad.cli.{name}"), name) for name in COMMANDS if name != "train"),
    *(DataConfig, ModelConfig, PhaseConfig, MAPLossConfig, RunConfig),
]


@pytest.mark.parametrize("described", DESCRIBED, ids=lambda described: described.__name__)
def test_every_help_text_is_a_sentence_with_its_noun(described: Callable[..., Any]) -> None:
    helps = {entry.arg_name: entry.description or "" for entry in parse_from_object(described).params}
    assert helps.keys() == signature(described).parameters.keys()
    for name, text in helps.items():
        assert re.match(r"[A-Z]\w* .*\.$", text, re.DOTALL), (name, text)
        assert text.split()[0] not in ("After", "At", "But", "By", "For", "From", "In", "Of", "On", "To", "With"), (
            name,
            text,
        )
        assert not re.search(r"\b(\d+|one) an? (image|picture|class|core|device)\b", text), (name, text)


BAD = {
    "a mistyped command": (["evalute"], "evalute: no such command. Did you mean 'evaluate'? See `stepgrad --help`."),
    "a mistyped option": (["doctor", "shapes", "--splt", "val"], "splt: no such option. Did you mean '--split'?"),
    "one that resembles none": (["doctor", "shapes", "--xyz"], "xyz: no such option."),
    "a word where a number goes": (
        ["doctor", "shapes", "--limit", "all"],
        "limit: expected a whole number but got 'all'.",
    ),
    "a choice that is none": (
        ["propose", "shapes", "--mode", "fsat"],
        "mode: expected one of fast, quality but got 'fsat'. Did you mean 'fast'?",
    ),
    "an option without value": (["doctor", "shapes", "--limit"], "limit: expected a value after --limit."),
    "an option for a value": (["doctor", "--split", "--limit", "3"], "split: expected a value after --split."),
    "nothing to work on": (
        ["doctor"],
        "doctor: expected DATA (A VOC folder, a COCO json file or folder, a YOLO data.yaml, or `shapes`). "
        "See `stepgrad doctor --help`.",
    ),
    "a word too many": (
        ["doctor", "shapes", "more"],
        "more: is neither an option nor the value of one. See `stepgrad doctor --help`.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_answered_by_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, message = BAD[case]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err == f"stepgrad: {message}\n"
    assert captured.out == ""


def test_lists_are_written_as_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--detections=none.json", "--data=shapes", "--compare", "voc07", "coco"]) == 2
    assert "none.json" in capsys.readouterr().err


OPTIONS = [
    Option("files", list[str], REQUIRED, "The files."),
    Option("draw", bool, True, ""),
    Option("compare", list[str] | None, None, ""),
    Option("least", float | None, 0.5, ""),
    Option("two_words", int, 3, ""),
]
WRITTEN = {
    "a.jpg --draw b.jpg": {"files": ["a.jpg", "b.jpg"], "draw": True},
    "--draw no a.jpg": {"files": ["a.jpg"], "draw": False},
    "a.jpg --least -1 b.jpg": {"files": ["a.jpg", "b.jpg"], "least": -1.0},
    "a.jpg --least 1e-2 --least null": {"files": ["a.jpg"], "least": None},
    "a.jpg --compare x y --compare z": {"files": ["a.jpg"], "compare": ["x", "y", "z"]},
    "a.jpg --compare [x,y]": {"files": ["a.jpg"], "compare": ["x", "y"]},
    "a.jpg --compare=x --two-words 4": {"files": ["a.jpg"], "compare": ["x"], "two_words": 4},
    "a.jpg --compare null": {"files": ["a.jpg"], "compare": None},
}


@pytest.mark.parametrize("words", WRITTEN)
def test_words_go_where_people_mean_them(words: str) -> None:
    assert parse(OPTIONS, words.split(), "command") == WRITTEN[words]


def test_flags_need_no_value_and_take_one(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = "shapes:val,length=2"
    assert main(["doctor", "--pixels", shapes]) == 0
    assert main(["doctor", "--pixels", "false", shapes]) == 0
    capsys.readouterr()
    assert main(["doctor", shapes, "--pixels=maybe"]) == 2
    assert capsys.readouterr().err == "stepgrad: pixels: expected true or false but got 'maybe'.\n"


@pytest.mark.parametrize("name", ["Käfer 🐶", "K\udcc3\udcb6ln", "#1", "~", "[red]", "a: b"])
def test_names_arrive_as_they_are_written(name: str) -> None:
    text, several = Option("a", str | None, None, ""), Option("b", list[str], None, "")
    words = ["--a", name, "--b", name, name]
    assert parse([text, several], words, "command") == {"a": name, "b": [name, name]}
