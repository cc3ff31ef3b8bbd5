"""`--compress FC6,FC7` and `--candidates N`: options of the commands that detect with a trained run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepgrad.cli.terminal import Terminal
from stepgrad.errors import ConfigError

if TYPE_CHECKING:
    from stepgrad.detector.training.run_folder import Run


def open_detector(folder: Path, checkpoint: str, ranks: str | None, candidates: int | None, console: Terminal) -> Run:
    """The run, ready to detect.

    Args:
        folder: of the run.
        checkpoint: best, last, or the step of a checkpoint.
        ranks: to which fc6 and fc7 are cut, with a line on the console that says by how much; None: they stay.
        candidates: windows of a class and picture that enter NMS, 0 for all; None: as many as the run says.
        console: for the line.
    """
    from stepgrad.detector.training.run_folder import open_run

    if candidates is not None and candidates < 0:
        raise ConfigError(f"candidates: expected a number >= 0 but got {candidates}.")
    run = open_run(folder.expanduser(), checkpoint)
    if ranks is not None:
        run = _compressed(run, *parse_ranks(ranks), console)
    if candidates is not None:
        run.model.candidates = candidates or None
    return run


def _compressed(run: Run, fc6: int, fc7: int, console: Terminal) -> Run:
    with console.status("truncated SVD of fc6 and fc7"):
        smaller = run.compressed(fc6, fc7)
    before, after = (sum(p.numel() for p in r.model.head.parameters()) for r in (run, smaller))
    console.print(f"fc6 and fc7 cut to ranks {fc6} and {fc7}: {before:,} weights of the head are now {after:,}")
    return smaller


def parse_ranks(text: str) -> tuple[int, int]:
    """Two whole numbers with a comma between them.

    >>> parse_ranks("1024,256")
    (1024, 256)
    """
    words = text.split(",")
    if len(words) != 2 or not all(word.strip().isdecimal() for word in words):
        raise ConfigError(f"compress: expected the ranks of fc6 and fc7, such as 1024,256, but got {text!r}.")
    first, second = (int(word) for word in words)
    return first, second
