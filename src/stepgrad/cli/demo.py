"""`stepgrad demo`: a detector trained from nothing on the built-in `shapes`, for cross-entropy and then for mAP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from stepgrad.cli import INTERRUPTED
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.errors import ConfigError

if TYPE_CHECKING:
    from stepgrad.cli.progress import RichProgress
    from stepgrad.evaluation import Evaluator
    from stepgrad.report import ComparisonRow
    from stepgrad.train.config import TrainConfig

CONTROL = {"lr": 3e-4, "drop_every": None, "warmup": 0}
"""The best of several rates for going on with cross-entropy: experiments/results/detector.md."""
TEST_IMAGES = 200
NOTES = {
    "nll": "cross-entropy, from nothing",
    "nll-more": "from there, more cross-entropy",
    "nll-then-map": "from there, mAP after NMS on as many images",
}


def demo(out: str = "runs/demo", steps: int = 600, map_steps: int = 30, images: int = 1000, seed: int = 0) -> int:
    """Train a small detector on the built-in shapes, spend the same budget in two ways, and write a report.

    First cross-entropy (`nll`). Then, from there, the control goes on with cross-entropy (`nll-more`), and another run
    trains for mAP after NMS on as many images (`nll-then-map`). All three are measured on images that nothing was
    trained on or chosen by. A few minutes on a laptop; no network, no GPU. Stopped by Ctrl-C, it goes on where it was.

    Args:
        out: The folder of the runs and the report.
        steps: Number of minibatches of cross-entropy to begin with.
        map_steps: Number of minibatches of training for mAP.
        images: Number of training images to draw.
        seed: Seed of the pictures' order, the weights and all else that is random.

    Returns:
        0; 130 after Ctrl-C.
    """
    for name, value in (("steps", steps), ("map_steps", map_steps), ("images", images)):
        if value < 1:
            raise ConfigError(f"Expected --{name} to be at least 1 but got {value}.")
    console = Terminal()
    began = time.monotonic()
    console.print(f"three runs on the built-in pictures, in {safe_text(out)}", soft_wrap=True)
    from stepgrad.cli.progress import RichProgress  # these take seconds to import
    from stepgrad.train.engine import RunInterrupted

    try:
        with RichProgress(console) as progress:
            configs = demo_configs(Path(out), steps, map_steps, images, seed)
            runs = {name: _run(Path(out) / name, config, progress) for name, config in configs.items()}
            rows, evaluator = _measure(runs, progress)
            report = _report(Path(out), runs, configs["nll-then-map"], rows, evaluator)
    except RunInterrupted:
        console.print(
            f"stopped and saved; the same command goes on: stepgrad demo --out {safe_text(out)}", soft_wrap=True
        )
        return INTERRUPTED
    console.print(_table(rows))
    console.print(f"{time.monotonic() - began:.0f} s in all. Everything drawn: {safe_text(report)}", soft_wrap=True)
    return 0


def demo_configs(out: Path, steps: int, map_steps: int, images: int, seed: int) -> dict[str, TrainConfig]:
    """The configs of the three runs, by name; the last two start from the weights of the first."""
    from stepgrad.cli.configs import read_config
    from stepgrad.train.checkpoint import checkpoint_path
    from stepgrad.train.config import from_dict

    run = {"seed": seed, "report": False, "log_every": 5}
    base = from_dict(
        {
            "data": {"train_images": images},
            "nll": {"steps": steps, "drop_every": max(1, round(0.7 * steps))},
            "map": {"steps": map_steps},
            "run": run,
        },
        read_config(["shapes"], {}),
    )
    start = {"weights": str(checkpoint_path(out / "nll" / "checkpoints", steps)), "score": "logprob"}
    more = max(1, round(map_steps * base.map.images / base.nll.images))
    changes: dict[str, dict[str, Any]] = {
        "nll": {"loss": "nll", "run": {"eval_every": steps}},
        "nll-more": {"loss": "nll", "nll": {"steps": more, **CONTROL}, "model": start, "run": {"eval_every": more}},
        "nll-then-map": {"loss": "map", "model": start, "run": {"eval_every": map_steps}},
    }
    return {name: from_dict(change, base) for name, change in changes.items()}


def _run(folder: Path, config: TrainConfig, progress: RichProgress) -> Path:
    """Train a run, resume it if it was stopped, or leave it if it is done."""
    from stepgrad.train.engine import resume, train
    from stepgrad.train.run_folder import RunFolder

    run = RunFolder(folder)
    if not run.config_file.exists():
        progress.say(f"{folder.name}: {NOTES[folder.name]}")
        train(config, folder, progress=progress)
    elif run.config() != config:
        raise ConfigError(f"{folder}: holds a demo with other settings; choose another --out, or delete it.")
    elif not run.evaluation_file.exists():
        progress.say(f"{folder.name}: going on")
        resume(folder, progress=progress)
    return folder


def _measure(runs: Mapping[str, Path], progress: RichProgress) -> tuple[list[ComparisonRow], Evaluator]:
    """mAP of the last weights of each run on test images; the evaluator is that of the last run."""
    from stepgrad.report import ComparisonRow
    from stepgrad.train.finish import validate
    from stepgrad.train.inputs import open_data
    from stepgrad.train.run_folder import RunFolder, open_run

    test = open_data("shapes", "test", limit=TEST_IMAGES)
    rows = []
    for name, folder in runs.items():
        run = open_run(folder, "last")
        evaluator = validate(run.model, test, [run.config.protocol, "coco"], progress, what=f"testing {name}")
        result = evaluator.compute()
        seconds = RunFolder(folder).history()[-1]["seconds"]
        maps = {result.protocol.name: result.map, "coco": result["coco"].map}
        rows.append(ComparisonRow(name, NOTES[name], maps, run.step, seconds))
    return rows, evaluator


def _report(
    out: Path, runs: Mapping[str, Path], config: TrainConfig, rows: list[ComparisonRow], evaluator: Evaluator
) -> Path:
    from stepgrad.data import ShapesDataset
    from stepgrad.report import write_report
    from stepgrad.train.config import to_dict
    from stepgrad.train.run_folder import RunFolder

    first, second = (RunFolder(runs[name]).history() for name in ("nll", "nll-then-map"))
    history = first[:-1] + [_later(line, first[-1]) for line in second[1:]]
    return write_report(
        out,
        title="stepgrad demo: cross-entropy, then mAP",
        config=to_dict(config),
        history=history,
        evidence=evaluator.evidence(),
        protocols=[config.protocol, "coco"],
        dataset=ShapesDataset("test", TEST_IMAGES),
        comparison=rows,
    )


def _later(line: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a run's log as part of the run that it went on from."""
    shift = {"step": end["step"], "best_step": end["step"], "seconds": end["seconds"]}
    return {**line, **{key: line[key] + more for key, more in shift.items() if key in line}}


def _table(rows: list[ComparisonRow]) -> Table:
    table = Table("training", "mAP", "COCO mAP", "steps", "seconds", title=f"on {TEST_IMAGES} test images")
    for row in rows:
        voc, coco = (f"{100 * value:.1f}" for value in row.maps.values())
        table.add_row(row.name, voc, coco, str(row.steps), f"{row.seconds:.0f}")
    return table
