"""`stepgrad train`: a run from a config, a preset or options; or one that was stopped, from where it was."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from stepgrad.cli import INTERRUPTED
from stepgrad.cli.configs import config_options, config_text, presets, read_config
from stepgrad.cli.options import Option, as_yaml, help_page, parse, row_of, wants_help
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.errors import ConfigError
from stepgrad.names import as_text, file_name
from stepgrad.number_text import counted, metric_text, per_cent

if TYPE_CHECKING:
    from stepgrad.detector.training.config import TrainConfig
    from stepgrad.detector.training.engine import RunResult


OWN_OPTIONS = [
    Option(
        "config",
        list[str] | None,
        None,
        "Presets or yaml files; later ones override earlier ones, and keys that none of them sets keep their defaults.",
    ),
    Option(
        "out",
        str,
        None,
        "The folder of the run; by default the first of runs/NAME-1, runs/NAME-2, ... that does not exist.",
    ),
    Option("resume", str, None, "The folder of a stopped run to continue, with the config it has."),
    Option("step", int, None, "The step of the checkpoint to continue from with --resume, instead of the last one."),
    Option("batch_images", int, None, "Short for --map.images: the number of images per minibatch of the mAP phase."),
    Option("chunk_images", int, None, "Short for --map.chunk_images: the number of those images in memory at a time."),
    Option("print_config", bool, False, "Print the config that would be used, as yaml with comments, and exit."),
]

EXAMPLES = [
    ("stepgrad train --config shapes", "Built-in pictures, from random weights, in minutes."),
    ("stepgrad train --config voc07 --data.path VOCdevkit/VOC2007 --out runs/voc", "Your copy of VOC 2007."),
    ("stepgrad train --resume runs/voc", "Continue a run that was stopped."),
]


def train(arguments: Sequence[str]) -> int:
    """Run the command; the words are those after `stepgrad train`."""
    if wants_help(arguments):
        print(train_help())
        return 0
    values = parse([*OWN_OPTIONS, *config_options()], arguments, "train")
    if "resume" in values:
        return _resume(values)
    if "step" in values:
        raise ConfigError("step: needs --resume RUN; to set the length of a run, use --nll.steps and --map.steps.")
    sources = values.get("config", [])
    config = read_config(sources, _keys(values))
    if values.get("print_config"):
        print(config_text(config))
        return 0
    folder = _folder(values.get("out"), sources, config)
    return _watch(lambda engine, progress: engine.train(config, folder, progress=progress), f"run folder {folder}")


def _keys(values: dict[str, Any]) -> dict[str, Any]:
    of_command = {option.name for option in OWN_OPTIONS}
    short = {
        f"map.{name.replace('batch_', '')}": values[name] for name in ("batch_images", "chunk_images") if name in values
    }
    return {**short, **{name: value for name, value in values.items() if name not in of_command}}


def _folder(out: str | None, sources: Sequence[str], config: TrainConfig) -> Path:
    if out is not None:
        return Path(out).expanduser()
    if config.run.devices > 1 or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ConfigError("out: several processes need the same run folder; name it with --out.")
    name = Path(sources[-1]).stem if sources else Path(config.data.path.split(":")[0]).name
    stem = file_name(re.sub(r"[^\w.-]+", "-", as_text(name)) or "run")
    return next(folder for n in count(1) if not (folder := Path("runs") / f"{stem}-{n}").exists())


def _resume(values: dict[str, Any]) -> int:
    others = [name for name in values if name not in ("resume", "step")]
    if others:
        raise ConfigError(
            f"{others[0]}: a resumed run keeps its own config, so --resume allows no option but --step. For other settings "
            f"start a new run: `stepgrad train --config {values['resume']}/config.yaml --{others[0]} ... --out NEW`."
        )
    folder = Path(values["resume"]).expanduser()
    return _watch(
        lambda engine, progress: engine.resume(folder, step=values.get("step"), progress=progress),
        f"continuing {folder}",
    )


def _watch(work: Any, opening: str) -> int:
    """Train with a progress bar, then print the result."""
    began = time.monotonic()
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    console = Terminal(quiet=not first)  # of several processes, one speaks
    console.print(safe_text(opening), soft_wrap=True)
    from stepgrad.cli.progress import RichProgress  # these take seconds to import
    from stepgrad.detector.training import engine

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
    from stepgrad.progress_lines import clock

    shown = {part: seconds for part, seconds in parts.items() if seconds >= 1}
    rest = whole - sum(shown.values())
    listed = [f"{part} {clock(seconds)}" for part, seconds in {**shown, "other": rest}.items()]
    return f"{clock(whole)} in total: {', '.join(listed)}" if shown else f"{clock(whole)} in total"


def train_help() -> str:
    """Examples first, then presets, then the options section by section."""
    examples = "\n".join(f"  {line}\n      {what}" for line, what in EXAMPLES)
    options = config_options()
    sections = {
        title: _phases(options)
        if section == "nll"
        else [row_of(option) for option in options if _section(option) == section]
        for section, title in _SECTIONS.items()
    }
    return help_page(
        "train [--config PRESET|FILE] [--out FOLDER] [--KEY VALUE ...]",
        f"Train a detector for the metric it will be judged by.\n\nexamples:\n{examples}",
        {"presets": presets().items(), "options": map(row_of, OWN_OPTIONS), **sections},
        "A yaml file has the same keys: `stepgrad train --config shapes --print_config > mine.yaml` makes one.\n"
        "With `extends: voc07` (a preset, a file in the same folder, or a list) it needs only the keys that differ.",
    ).rstrip()


_SECTIONS = {
    "": "what to train for",
    "data": "data (images, objects and windows)",
    "model": "model (the detector)",
    "nll": "nll and map (the cross-entropy phase and the mAP phase)",
    "map_loss": "map_loss (the options of the mAP loss)",
    "run": "run (seed, checkpoints, devices)",
}


def _section(option: Option) -> str:
    return option.name.rpartition(".")[0]


def _phases(options: Sequence[Option]) -> list[tuple[str, str]]:
    """Both phases have the same keys, shown once with both defaults."""
    of_map = {option.name: option.default for option in options if _section(option) == "map"}
    rows = []
    for option in options:
        if _section(option) == "nll":
            twin = option.name.replace("nll.", "map.")
            differ = f"nll {as_yaml(option.default)}, map {as_yaml(of_map[twin])}"
            defaults = as_yaml(option.default) if option.default == of_map[twin] else differ
            rows.append((f"--{option.name}, --{twin}", f"{option.help} [{defaults}]"))
    return rows
