"""`stepgrad train`: a run from a config, a preset or options; or one that was stopped, from where it was."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_args

from cyclopts import Group, Parameter, convert
from rich.console import Console

from stepgrad.cli import INTERRUPTED
from stepgrad.cli.app import Whole, read_whole, shown_default
from stepgrad.cli.configs import Key, config_keys, config_text, read_config
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.errors import ConfigError
from stepgrad.names import as_text, file_name
from stepgrad.number_text import counted, metric_text, per_cent

if TYPE_CHECKING:
    from stepgrad.detector.training.config import TrainConfig
    from stepgrad.detector.training.engine import RunResult

_SECTIONS = {
    "": Group("What to train for", sort_key=1),
    "data": Group("data: images, objects and windows", sort_key=2),
    "model": Group("model: the detector", sort_key=3),
    "nll": Group("nll: the cross-entropy phase", sort_key=4),
    "map": Group("map: the mAP phase", sort_key=5),
    "map_loss": Group("map_loss: the options of the mAP loss", sort_key=6),
    "run": Group("run: seed, checkpoints, devices", sort_key=7),
}
_FILES = ("data.path", "data.val_path", "data.windows", "data.val_windows", "model.weights", "run.feature_cache")
"""Keys that shells complete with the names of files."""


def _read_value(kind: Any, tokens: Sequence[Any]) -> Any:
    """The value of a key: `null`, text as it is written, a whole number unrounded, or what the parser makes of it."""
    if [token.value for token in tokens] in (["null"], ["None"]):
        return None
    if kind is Path:
        return tokens[0].value
    return read_whole(kind, tokens) if kind is int else convert(kind, tokens)


def _option(key: Key) -> Any:
    """The type of a key, with its help."""
    kinds = get_args(key.hint)
    kind = kinds[0] if NoneType in kinds else key.hint
    parameter = Parameter(
        name=f"--{key.name}",
        help=key.help,
        group=_SECTIONS[key.name.rpartition(".")[0]],
        converter=_read_value,
        show_default=shown_default(key.default) or False,
    )
    return Annotated[Path if key.name in _FILES else kind, parameter]


if TYPE_CHECKING:
    Keys = dict[str, Any]
else:
    Keys = TypedDict("Keys", {key.name: _option(key) for key in config_keys()}, total=False)


def train(
    *,
    config: list[Path] | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    step: Whole | None = None,
    batch_images: Whole | None = None,
    chunk_images: Whole | None = None,
    print_config: bool = False,
    keys: Annotated[Keys | None, Parameter(name="*")] = None,
) -> int:
    """Train a detector for mAP on your data, or continue a stopped run.

    Built-in pictures, from random weights, in minutes; your copy of VOC 2007; a run that was stopped:

        stepgrad train --config shapes
        stepgrad train --config voc07 --data.path VOCdevkit/VOC2007 --out runs/voc
        stepgrad train --resume runs/voc

    Presets: `shapes` (the built-in set, in some minutes), `voc07` and `voc12` (cross-entropy first, then mAP), `fast-rcnn` (the
    original Fast R-CNN, cross-entropy alone), `paper` and `paper-voc12` (as in the paper: mAP alone).

    A yaml file has the same keys: `stepgrad train --config shapes --print_config > mine.yaml` makes one. With `extends: voc07` (a
    preset, a file in the same folder, or a list) it needs only the keys that differ.

    Args:
        config: Presets or yaml files; later ones override earlier ones, and keys that none of them sets keep their defaults.
        out: The folder of the run; by default the first of runs/NAME-1, runs/NAME-2, ... that does not exist.
        resume: The folder of a stopped run to continue, with the config it has.
        step: The step of the checkpoint to continue from with --resume, instead of the last one.
        batch_images: Short for --map.images: the number of images per minibatch of the mAP phase.
        chunk_images: Short for --map.chunk_images: the number of those images in memory at a time.
        print_config: Print the config that would be used, as yaml with comments, and exit.
        keys: The keys of the config that are given.

    Returns:
        0; 130 after Ctrl-C, with a checkpoint from which --resume continues.
    """
    short = {"map.images": batch_images, "map.chunk_images": chunk_images}
    given = {name: value for name, value in short.items() if value is not None} | (keys or {})
    if resume is not None:
        others = {"config": config, "out": out, **short, "print_config": print_config or None, **given}
        return _resume(resume, step, [name for name in others if name in given or others[name] is not None])
    if step is not None:
        raise ConfigError("step: needs --resume RUN; to set the length of a run, use --nll.steps and --map.steps.")
    sources = [str(source) for source in config or ()]
    chosen = read_config(sources, given)
    if print_config:
        print(config_text(chosen))
        return 0
    folder = _folder(out, sources, chosen)
    return _watch(lambda engine, progress: engine.train(chosen, folder, progress=progress), f"run folder {folder}")


def _folder(out: Path | None, sources: Sequence[str], config: TrainConfig) -> Path:
    if out is not None:
        return out.expanduser()
    if config.run.devices > 1 or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ConfigError("out: several processes need the same run folder; name it with --out.")
    name = Path(sources[-1]).stem if sources else Path(config.data.path.split(":")[0]).name
    stem = file_name(re.sub(r"[^\w.-]+", "-", as_text(name)) or "run")
    return next(folder for n in count(1) if not (folder := Path("runs") / f"{stem}-{n}").exists())


def _resume(run: Path, step: int | None, others: Sequence[str]) -> int:
    if others:
        raise ConfigError(
            f"{others[0]}: a resumed run keeps its own config, so --resume allows no option but --step. For other settings "
            f"start a new run: `stepgrad train --config {run}/config.yaml --{others[0]} ... --out NEW`."
        )
    folder = run.expanduser()
    return _watch(lambda engine, progress: engine.resume(folder, step=step, progress=progress), f"continuing {folder}")


def _watch(work: Any, opening: str) -> int:
    """Train with a progress bar, then print the result."""
    began = time.monotonic()
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    console = Terminal(quiet=not first)  # of several processes, one speaks
    console.print(safe_text(opening), soft_wrap=True)
    from stepgrad.detector.training import engine  # these take seconds to import
    from stepgrad.progress import RichProgress

    try:
        with RichProgress(console) as progress:
            result = work(engine, progress)
    except engine.RunInterrupted as stop:
        console.print(safe_text(stop), style="yellow", soft_wrap=True)
        return INTERRUPTED
    _print_result(console, result, time.monotonic() - began)
    return 0


def _print_result(console: Console, result: RunResult, seconds: float) -> None:
    if result.maps:
        maps = ", ".join(f"{name} {per_cent(value)}" for name, value in result.maps.items())
        maps += "".join(f", {name} {metric_text(name, value)}" for name, value in result.metrics.items())
        console.print(
            f"[bold green]mAP {maps}[/] at step {result.best_step}, the best of {counted(result.step, 'step')}"
        )
    console.print(f"time      {describe_times(seconds, result.seconds)}", soft_wrap=True)
    if result.report is not None:
        console.print(f"report    {safe_text(result.report)}", soft_wrap=True)
    console.print(f"evaluate  stepgrad evaluate --run {safe_text(result.folder)}", soft_wrap=True)
    console.print(f"detect    stepgrad detect --run {safe_text(result.folder)} photo.jpg", soft_wrap=True)


def describe_times(whole: float, parts: Mapping[str, float]) -> str:
    """The time of the command, and which of its parts took a second or more.

    >>> describe_times(346, {"windows": 290.2, "training steps": 23.0, "validation": 0.2})
    '0:05:46 in total: windows 0:04:50, training steps 0:00:23, other 0:00:33'
    """
    from stepgrad.progress import clock

    shown = {part: seconds for part, seconds in parts.items() if seconds >= 1}
    rest = whole - sum(shown.values())
    listed = [f"{part} {clock(seconds)}" for part, seconds in {**shown, "other": rest}.items()]
    return f"{clock(whole)} in total: {', '.join(listed)}" if shown else f"{clock(whole)} in total"
