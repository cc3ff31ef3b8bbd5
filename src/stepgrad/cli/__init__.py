"""The command line. Libraries raise; only here are errors printed and exit codes chosen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from stepgrad.cli.lists import gather_lists
from stepgrad.errors import StepgradError

INTERRUPTED, FAILED = 130, 2


def commands() -> dict[str, Callable[..., int]]:
    """Name and function of every subcommand; each function's signature and docstring are its options and help."""
    from stepgrad.cli.demo import demo
    from stepgrad.cli.doctor import doctor
    from stepgrad.cli.evaluate import evaluate
    from stepgrad.cli.propose import propose

    return {"demo": demo, "doctor": doctor, "evaluate": evaluate, "propose": propose}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `stepgrad COMMAND ...` and return its exit code."""
    from jsonargparse import auto_cli

    errors = Console(stderr=True, highlight=False)
    try:
        result = auto_cli(
            dict[str, Any](commands()),
            args=gather_lists(sys.argv[1:] if arguments is None else arguments),
            prog="stepgrad",
            description="Train detectors directly for the metric you report. `stepgrad demo` shows it in minutes.",
        )
        return int(result or 0)
    except StepgradError as error:
        errors.print(f"[bold red]stepgrad:[/] {escape(str(error))}", soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        errors.print("stepgrad: interrupted.")
        return INTERRUPTED


def run() -> None:
    """The console script."""
    sys.exit(main())
