"""The whole network fine-tuned for mAP: a cross-entropy model of some images, then mAP or cross-entropy on others.

    python -m experiments.unfrozen run --data FOLDER --runs DIR

`start`: 1000 images of VOC 2012, trunk frozen, 150 steps of 16 images x 64 windows. From its weights, with all layers but conv1
trained, on the next 500 images, each shown once: `nll` in minibatches of 16 x 64 windows, `map` in steps of 32 images x 150
windows. One seed and one rate each, not tuned (AdamW for cross-entropy; SGD with gradients scaled to length 1 for mAP, as in
the presets); 300 val images.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.detector import PROTOCOLS, RESULTS, measure, settings, trained
from experiments.records import Run, about, load_runs, once, table
from stepgrad.detector.training.checkpoint import list_checkpoints
from stepgrad.detector.training.config import TrainConfig, from_dict
from stepgrad.progress import RichProgress

FILE = RESULTS / "unfrozen.jsonl"
SEED = 100
WHILE_TRAINING, VAL = "train[3500:3800]", ("val", 300)
RATES = {"start": 3e-4, "nll": 3e-5, "map": 3e-3}
CHANGES: dict[str, dict[str, Any]] = {
    "start": {"loss": "nll", "data": {"train": "train[:1000]"}, "nll": {"steps": 150}},
    "nll": {"loss": "nll", "data": {"train": "train[1000:1500]"}, "nll": {"steps": 32, "warmup": 0}},
    "map": {
        "loss": "map",
        "data": {"train": "train[1000:1500]"},
        "map": {"steps": 16, "optimizer": "sgd", "max_gradient_norm": 1.0},
    },
}


def config(arm: str, data: Path, start: Path | None, cache: Path) -> TrainConfig:
    base = from_dict(settings("voc", data).content)
    changes = {**CHANGES[arm], "run": {"seed": SEED, "accelerator": "cpu", "report": False, "keep": 1}}
    phase = "map" if arm == "map" else "nll"
    changes[phase] = {**changes[phase], "lr": RATES[arm]}
    if start is None:
        changes["run"]["feature_cache"] = str(cache)
    else:
        changes["model"] = {"weights": str(start), "score": "logprob", "freeze": "original"}
    made = from_dict(changes, base)
    every = {"eval_every": made.total_steps, "save_every": 20}
    return from_dict({"run": every, "data": {"val": WHILE_TRAINING, "val_images": 50}}, made)


def run_arm(arm: str, data: Path, runs: Path, progress: RichProgress) -> Path:
    """Train an arm if it has not been; returns its folder."""
    start = None
    if arm != "start":
        start = list_checkpoints(run_arm("start", data, runs, progress) / "checkpoints")[-1]
    return trained(runs / arm, partial(config, arm, data, start, runs / "features"), progress)


def one(arm: str, data: Path, runs: Path) -> None:
    """A run, unless it is on record."""

    def make() -> Run:
        with RichProgress() as progress:
            return measure(run_arm(arm, data, runs, progress), VAL, runs, progress)

    once(FILE, "final", {"arm": arm, "rate": RATES[arm]}, make)


def page(file: Path) -> str:
    """The page of the runs on record."""
    rows = [
        [f"`{run['arm']}`", f"{run['rate']:g}", *(f"{run['map'][name]:.1f}" for name in PROTOCOLS)]
        for run in load_runs(file, "final")
    ]
    return f"# The whole network fine-tuned\n{about(__doc__)}\n{table(['training', 'rate', *PROTOCOLS], rows)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["run"])
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with VOC2012-320")
    parser.add_argument("--runs", type=Path, default=Path("runs/unfrozen"))
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("--data (or STEPGRAD_DATA) is needed")
    for arm in RATES:
        one(arm, Path(options.data), options.runs)


if __name__ == "__main__":
    main()
