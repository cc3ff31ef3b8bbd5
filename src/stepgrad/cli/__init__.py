"""The command line. Libraries raise; only here are errors printed and exit codes chosen."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper

from stepgrad.errors import MissingDependencyError, StepgradError
from stepgrad.extras import need

INTERRUPTED = 130  # what shells give for a command stopped by Ctrl-C
FAILED = 2


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
        need("cyclopts", "docstring_parser", "yaml", "rich", purpose="the command `stepgrad`")
    except MissingDependencyError as error:
        print(f"stepgrad: {error}", file=sys.stderr)
        return FAILED
    from stepgrad.cli.app import call
    from stepgrad.cli.terminal import Terminal, safe_text
    from stepgrad.detector.training.process import return_large_blocks

    errors = Terminal(stderr=True)

    def show_warning(message: Warning | str, *_: object) -> None:
        errors.print(f"[yellow]warning:[/] {safe_text(message)}", soft_wrap=True)

    return_large_blocks()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning  # type: ignore[assignment]  # a user has no use for the line of the source
            if not words or words == ["help"]:
                call(["--help"])
                return 0 if words else FAILED
            return call(words)
    except StepgradError as error:
        errors.print(f"[bold red]stepgrad:[/] {safe_text(error)}", soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        errors.print("stepgrad: interrupted.")
        return INTERRUPTED


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
