"""The command line as a user meets it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import pytest
from cyclopts import Parameter
from docstring_parser import parse_from_object

from stepgrad.cli import main
from stepgrad.cli.app import COMMANDS, Whole, app, call
from stepgrad.detector.training.config import DataConfig, MAPLossConfig, ModelConfig, PhaseConfig, RunConfig
from tests.patience import PATIENCE

FUNCTIONS = [getattr(import_module(f"stepgrad.cli.{name}"), name) for name in COMMANDS]


def words_of(text: str) -> str:
    """The text without the frames of the help and its line breaks."""
    return " ".join(text.replace("│", " ").split())


def test_help_lists_every_command_with_the_first_line_of_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = words_of(capsys.readouterr().out)
    assert all(f" {f.__name__} {f.__doc__.splitlines()[0]}" in shown for f in FUNCTIONS)
    assert "--completion" in shown
    assert "--version (-V)" in shown


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_help_of_every_command_explains_its_options(
    function: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([function.__name__, "--help"]) == 0
    shown = words_of(capsys.readouterr().out)
    assert shown.startswith(f"Usage: stepgrad {function.__name__}")
    assert all(f"--{name} " in shown for name in signature(function).parameters if name != "keys")


def test_a_default_is_shown_unless_it_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--help"])
    assert "The first of the seeds. [default: 0]" in capsys.readouterr().out
    main(["doctor", "--help"])
    shown = words_of(capsys.readouterr().out)
    assert "as well as the annotations. [default: true]" in shown
    assert "lead out of its folder. " in shown
    assert not re.search(r"default: (None|False|false|null)", shown)


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_waits_for_no_large_library(words: list[str]) -> None:
    """Torch, numba and Lightning take seconds to import."""
    code = (
        f"import sys; from stepgrad.cli import main; main({words!r}); "
        "sys.exit(' '.join({'torch', 'numba', 'numpy', 'lightning_fabric', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m stepgrad.cli train --print_config | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stderr == ""


def test_nothing_asked_for_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands" in capsys.readouterr().out


DESCRIBED = [*FUNCTIONS, DataConfig, ModelConfig, PhaseConfig, MAPLossConfig, RunConfig]


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


MISTAKES = {
    "evalute": 'Unknown command "evalute". Did you mean "evaluate"? Available commands: demo, train, ',
    "doctor shapes --splt val": "Unknown option: --splt. Did you mean --split?",
    "doctor shapes --xyz": "Unknown option: --xyz.",
    "doctor shapes --limit all": "Invalid value for --limit: expected a whole number but got 'all'.",
    "doctor shapes --pixels=maybe": 'Invalid value for --pixels: unable to convert "maybe" into bool.',
    "doctor shapes --limit": 'Command "doctor" parameter --limit requires an argument.',
    "doctor --split --limit 3": 'Command "doctor" parameter --split requires an argument.',
    "doctor": 'Command "doctor" parameter --data requires an argument.',
    "doctor shapes more": "Unused Tokens: ['more'].",
    "propose shapes --mode fsat": 'Invalid value "fsat" for --mode. Choose from: "fast", "quality". Did you mean "fast"?',
    "detect a.png": 'Command "detect" parameter --run requires an argument.',
    "detect --run runs/a": 'Command "detect" parameter --pictures requires an argument.',
    "--completion bsh": 'Invalid value "bsh" for SHELL. Choose from: "bash", "zsh", "fish". Did you mean "bash"?',
    "--completion": 'Command "--completion" parameter SHELL requires an argument.',
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_answered_by_one_line_that_ends_with_where_to_look(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"stepgrad: {MISTAKES[words]}")
    assert captured.err.count("\n") == 1
    assert re.search(r" See `stepgrad( [\w-]+)? --help`\.\n$", captured.err)


def test_no_command_rounds_a_number_to_a_whole_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The parser does, unless the parameter is a `Whole`."""
    tried = 0
    for name in COMMANDS:
        for argument in app[name].assemble_argument_collection():
            if argument.hint in (int, int | None):
                tried += 1
                needed = ["--run", "runs/a"] if name == "detect" else []
                assert main([name, "here", *needed, argument.name, "2.5"]) == 2
                assert f"{argument.name}: expected a whole number but got '2.5'" in capsys.readouterr().err
    assert tried > 30


@pytest.fixture(name="given")
def command() -> Iterator[dict[str, Any]]:
    """The arguments that a command gets whose parameters are of every kind."""
    given: dict[str, Any] = {}

    def some(
        files: list[Path],
        *,
        draw: bool = True,
        compare: list[str] | None = None,
        least: float | None = 0.5,
        two_words: Whole = 3,
        name: str | None = None,
        dotted: Annotated[int, Parameter(name="--part.key")] = 0,
    ) -> None:
        given.update(locals())

    app.command(some, name="some")
    yield given
    del app["some"]


DEFAULTS = {"draw": True, "compare": None, "least": 0.5, "two_words": 3, "name": None, "dotted": 0}
WRITTEN: dict[str, dict[str, Any]] = {
    "a.jpg --draw b.jpg": {"files": ["a.jpg", "b.jpg"]},
    "--draw no a.jpg": {"files": ["a.jpg"], "draw": False},
    "a.jpg --least -1 b.jpg": {"files": ["a.jpg", "b.jpg"], "least": -1.0},
    "a.jpg --least 1e-2 --least 2": {"files": ["a.jpg"], "least": 2.0},
    "a.jpg --compare x y --compare z": {"files": ["a.jpg"], "compare": ["x", "y", "z"]},
    "a.jpg --compare no yes": {"files": ["a.jpg"], "compare": ["no", "yes"]},
    "a.jpg --compare=x --two-words 4": {"files": ["a.jpg"], "compare": ["x"], "two_words": 4},
    "a.jpg --part.key=4 --draw true": {"files": ["a.jpg"], "dotted": 4},
}


@pytest.mark.parametrize("words", WRITTEN)
def test_words_go_where_people_mean_them(words: str, given: dict[str, Any]) -> None:
    assert call(["some", *words.split()]) == 0
    files = [Path(name) for name in WRITTEN[words]["files"]]
    assert {key: given[key] for key in ("files", *DEFAULTS)} == {**DEFAULTS, **WRITTEN[words], "files": files}


@pytest.mark.parametrize("name", ["Käfer 🐶", "K\udcc3\udcb6ln", "#1", "~", "[red]", "{a}", "@x", "a: b", "null"])
def test_names_arrive_as_they_are_written(name: str, given: dict[str, Any]) -> None:
    call(["some", name, "--name", name, "--compare", name, name])
    assert (given["name"], given["compare"], given["files"]) == (name, [name, name], [Path(name)])
