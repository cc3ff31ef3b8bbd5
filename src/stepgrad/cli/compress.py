"""`--compress FC6,FC7` and `--candidates N`: options of the commands that detect with a trained run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepgrad.cli.terminal import Terminal
from stepgrad.errors import ConfigError

if TYPE_CHECKING:
    from stepgrad.detector.training.run_folder import Run


def compress_run(run: Run, ranks: str | None, console: Terminal) -> Run:
    """The run with fc6 and fc7 cut to these ranks, and a line that says by how much; with None, the run as it is."""
    if ranks is None:
        return run
    fc6, fc7 = parse_ranks(ranks)
    with console.status("truncated SVD of fc6 and fc7"):
        smaller = run.compressed(fc6, fc7)
    before, after = (sum(p.numel() for p in r.model.head.parameters()) for r in (run, smaller))
    console.print(f"fc6 and fc7 cut to ranks {fc6} and {fc7}: {before:,} weights of the head are now {after:,}")
    return smaller


def limit_candidates(run: Run, candidates: int | None) -> None:
    """Let so many windows of a class and picture enter NMS, all of them for 0; with None, as many as the run says."""
    if candidates is None:
        return
    if candidates < 0:
        raise ConfigError(f"candidates: expected a number >= 0 but got {candidates}.")
    run.model.candidates = candidates or None


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
