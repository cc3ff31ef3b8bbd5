"""The command line. Libraries raise; only here are errors printed and exit codes chosen."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from stepgrad.errors import ConfigError, MissingDependencyError, StepgradError, suggest
from stepgrad.extras import need

INTERRUPTED = 130  # what shells give for a command stopped by Ctrl-C
FAILED = 2

_COMMANDS = {
    "demo": "Train a class head on built-in pictures, by cross-entropy and for mAP, and compare: a minute or two.",
    "train": "Train a detector for mAP on your data, or continue a stopped run.",
    "evaluate": "Measure the AP of a trained run or of any file of detections, and see why protocols disagree.",
    "report": "Write a page that shows what is wrong with a run, or several runs side by side.",
    "detect": "Find objects in pictures with a trained run; write drawn pictures and JSON.",
    "propose": "Search the images of a dataset for windows, and keep the windows on disk.",
    "doctor": "Find what is wrong with a dataset before training on it.",
    "convert": "Write a dataset in another format: YOLO, VOC or COCO.",
    "warmup": "Compile everything in advance, so that no first call has to wait: for container images and CI.",
}


def commands() -> dict[str, str]:
    """Every subcommand and what it does, in a line. Each is the function of that name in the module of that name."""
    return dict(_COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `stepgrad COMMAND ...` and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (
        ["--version"],
        ["-V"],
    ):  # before the extra is asked for: a report of what is missing should have it too
        from stepgrad.cli.version import version_text

        print(version_text())
        return 0
    try:
        need("jsonargparse", "docstring_parser", "yaml", "rich", purpose="the command `stepgrad`")
    except MissingDependencyError as error:
        print(f"stepgrad: {error}", file=sys.stderr)
        return FAILED
    from stepgrad.cli.terminal import Terminal, safe_text

    errors = Terminal(stderr=True)

    def show_warning(message: Warning | str, *_: object) -> None:
        errors.print(f"[yellow]warning:[/] {safe_text(message)}", soft_wrap=True)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning  # type: ignore[assignment]  # a user has no use for the line of the source
            return _run(words)
    except StepgradError as error:
        errors.print(f"[bold red]stepgrad:[/] {safe_text(error)}", soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        errors.print("stepgrad: interrupted.")
        return INTERRUPTED


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if words else FAILED
    command, *rest = words
    if command == "--completion":
        from stepgrad.cli.completion import completion_script

        print(completion_script(rest, _COMMANDS))
        return 0
    if command not in _COMMANDS:
        raise ConfigError(f"{command}: no such command.{suggest(command, list(_COMMANDS))} See `stepgrad --help`.")
    from stepgrad.cli.options import call
    from stepgrad.detector.training.process import return_large_blocks

    return_large_blocks()
    function = getattr(import_module(f"stepgrad.cli.{command}"), command)
    return int(function(rest) if command == "train" else call(function, rest, command))


def _help() -> str:
    from stepgrad.cli.options import help_page

    return help_page(
        "COMMAND ...",
        "Train detectors directly for the metric you report. `stepgrad demo` shows it in a minute or two.",
        {"commands": _COMMANDS.items()},
        "`stepgrad COMMAND --help` explains the options of a command; `stepgrad --version` (-V) prints the versions.\n"
        '`eval "$(stepgrad --completion bash)"` (or zsh, tcsh) makes the shell complete commands and options.',
    ).rstrip()


def run() -> None:
    """The console script. Characters that the terminal's encoding lacks become escapes such as `\\xf6`, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # nor does Python complain when it flushes at exit
        code = FAILED
    sys.exit(code)
