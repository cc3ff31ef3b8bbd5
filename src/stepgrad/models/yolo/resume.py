"""A run of MAPTrainer that was interrupted: what its files hold, so that it continues as it began."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from stepgrad.errors import ConfigError, LikelyMistakeWarning
from stepgrad.files import file_beside, write_whole
from stepgrad.models.yolo.settings import YoloSettings, as_text, from_text, is_ours

MARK = "stepgrad"
"""Key of the options in the first group of the optimiser's parameters. Whoever resumes a run restores these groups with all
their keys, also the stock trainer; weights that are ready for use have no optimiser, so nothing is left in them."""


def remember(optimizer: Any, settings: YoloSettings) -> None:
    """Put the options where checkpoints take them along, as text."""
    optimizer.param_groups[0][MARK] = as_text(settings)


def remembered(checkpoint: Mapping[str, Any]) -> YoloSettings | None:
    """The options in a checkpoint; None if the run was not begun by MAPTrainer."""
    groups = (checkpoint.get("optimizer") or {}).get("param_groups") or [{}]
    text = groups[0].get(MARK)
    try:
        return None if text is None else from_text(text)
    except (TypeError, ValueError, KeyError, ConfigError) as error:
        raise ConfigError(
            f"The options of MAPTrainer in the checkpoint cannot be read ({error}); give them again: "
            "train(resume=True, trainer=MAPTrainer.options(...))."
        ) from error


def resume_line(last: Path) -> str:
    """What to write to continue a run for mAP."""
    return f"YOLO({str(last)!r}).train(resume=True, trainer=MAPTrainer)"


def watch_resumes() -> None:
    """Let every trainer of ultralytics warn that it continues a run of MAPTrainer without mAP."""
    from ultralytics.utils.callbacks.base import default_callbacks

    watching = default_callbacks["on_pretrain_routine_end"]
    if warn_of_stock not in watching:
        watching.append(warn_of_stock)


def warn_of_stock(trainer: Any) -> None:
    """Warn if a trainer that knows no mAP continues a run of MAPTrainer."""
    if hasattr(trainer, "map_settings") or not getattr(trainer, "resume", False):
        return
    if MARK in trainer.optimizer.param_groups[0]:
        warnings.warn(
            f"MAPTrainer began this run, but from here on mAP takes no part in it; to continue for mAP: "
            f"{resume_line(trainer.last)}.",
            LikelyMistakeWarning,
            stacklevel=2,
        )


def in_columns(table: Path, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics in the order of results.csv: that of its header, or in a new file with our numbers last.

    There they can be missing: where the stock trainer continues a run, its rows still fit the header.
    """
    if table.exists():
        with table.open(encoding="utf-8") as file:
            header = [name.strip() for name in file.readline().split(",")]
        return {name: metrics[name] for name in header if name in metrics}
    last = {name: value for name, value in metrics.items() if is_ours(name)}
    return {name: value for name, value in metrics.items() if name not in last} | last


class WholePath(type(Path())):  # type: ignore[misc]
    """A path at which bytes are written whole or not at all: a run that is killed while it saves has its last checkpoint."""

    def write_bytes(self, data: Any) -> int:
        write_whole(Path(self), data)
        return len(data)


@contextmanager
def stripped_whole() -> Iterator[None]:
    """Meanwhile ultralytics takes the optimiser out of finished weights beside their place, not in it: a kill tears nothing."""
    module: Any = import_module("ultralytics.engine.trainer")
    stock = module.strip_optimizer

    def strip(f: Any, s: Any = "", *more: Any, **named: Any) -> Any:
        place = Path(s or f)
        with file_beside(place) as (handle, beside):
            stripped = stock(f, beside, *more, **named)
            os.fsync(handle.fileno())
            handle.close()  # Windows moves no open files
            if beside.stat().st_size:  # of files that are no weights it writes nothing
                os.replace(beside, place)
        return stripped

    module.strip_optimizer = strip
    try:
        yield
    finally:
        module.strip_optimizer = stock
