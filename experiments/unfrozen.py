"""The whole network fine-tuned for mAP: a cross-entropy model of some images, then mAP or cross-entropy on others.

    python -m experiments.unfrozen run --data FOLDER --runs DIR
    python -m experiments.unfrozen render

`start`: 1000 images of VOC 2012, trunk frozen, 150 steps of 16 images x 64 windows. From its weights, with all layers but conv1
trained, on the next 500 images, each shown once: `nll` in minibatches of 16 x 64 windows, `map` in steps of 32 images x 150
windows. One seed and one rate each, not tuned (AdamW for cross-entropy; SGD with gradients scaled to length 1 for mAP, as in
the presets); 300 val images.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from experiments.detector import PROTOCOLS, RESULTS, settings
from experiments.results import commit, load_runs, save_runs
from stepgrad.detector.training.checkpoint import list_checkpoints
from stepgrad.detector.training.config import TrainConfig, from_dict
from stepgrad.detector.training.engine import resume, train
from stepgrad.detector.training.features import source_for
from stepgrad.detector.training.finish import validate
from stepgrad.detector.training.inputs import open_data
from stepgrad.detector.training.run_folder import open_run
from stepgrad.files import write_whole
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
    folder = runs / arm
    if not (folder / "evaluation.json").exists():
        progress.say(f"{folder}")
        if (folder / "config.yaml").exists():
            resume(folder, progress=progress)
        else:
            train(config(arm, data, start, runs / "features"), folder, progress=progress)
    return folder


def one(arm: str, data: Path, runs: Path) -> dict[str, Any]:
    """The record of a run, made if there is none: mAP in per cent of its last weights."""
    known = [r for r in load_runs(FILE, "final") if r["arm"] == arm]
    if known:
        return known[0]
    with RichProgress() as progress:
        folder = run_arm(arm, data, runs, progress)
        run = open_run(folder, "last")
        d = run.config.data
        images = open_data(d.path, VAL[0], d.windows, VAL[1], d.max_windows)
        result = validate(run.model, images, PROTOCOLS, progress, source_for(run.model, runs / "features")).compute()
    found = {name: 100 * result[name].map for name in PROTOCOLS}
    row = {"arm": arm, "rate": RATES[arm], "map": found, "images": len(images), "commit": commit()}
    save_runs(FILE, "final", row)
    print(row, flush=True)
    return row


def render() -> str:
    """The page, written beside the results."""
    lines = ["| training | rate | voc12 | voc07 | coco |", "|---|---|---|---|---|"]
    for row in load_runs(FILE, "final"):
        cells = [f"{row['map'][name]:.1f}" for name in PROTOCOLS]
        lines.append(f"| `{row['arm']}` | {row['rate']:g} | {' | '.join(cells)} |")
    text = "\n".join(["# The whole network fine-tuned", (__doc__ or "").split("\n", 1)[1], *lines, ""])
    write_whole(FILE.with_suffix(".md"), text.encode())
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["run", "render"])
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with VOC2012-320")
    parser.add_argument("--runs", type=Path, default=Path("runs/unfrozen"))
    options = parser.parse_args()
    if options.phase == "run":
        if options.data is None:
            parser.error("--data (or STEPGRAD_DATA) is needed")
        for arm in RATES:
            one(arm, Path(options.data), options.runs)
    print(render())


if __name__ == "__main__":
    main()
