"""Three ways to spend a budget: cross-entropy; cross-entropy for the whole budget; cross-entropy, then mAP.

    python -m experiments.detector choose --set shapes --runs DIR
    python -m experiments.detector final --set shapes --runs DIR
    python -m experiments.detector choose --set voc --data FOLDER --runs DIR
    python -m experiments.detector final --set voc --data FOLDER --runs DIR

Every seed trains one cross-entropy model (`nll`); all second halves start from its last weights. The control, `nll-more`,
sees as many images as the mAP steps do (VOC, where the trunk is frozen and windows are the cost: as many windows), in
cross-entropy's own minibatches. `choose` tries three learning rates for each, with the first seed, on images held out of the
training set (for `shapes`, its val split);
`final` runs the chosen ones with three seeds and evaluates once on images that nothing was chosen by (`shapes`: test; VOC
2012: val). A run that is on record is not run again, so a stopped experiment goes on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.records import Run, about, grouped, load_runs, mean_and_spread, once, table
from stepgrad.cli.configs import read_config
from stepgrad.detector.training.checkpoint import list_checkpoints
from stepgrad.detector.training.config import PhaseConfig, TrainConfig, from_dict, to_dict
from stepgrad.detector.training.engine import resume, train
from stepgrad.detector.training.features import source_for
from stepgrad.detector.training.finish import validate
from stepgrad.detector.training.inputs import open_data
from stepgrad.detector.training.run_folder import open_run
from stepgrad.progress import RichProgress

RESULTS = Path(__file__).parent / "results"
NLL_RATES, MAP_RATES = (3e-5, 1e-4, 3e-4), (1e-3, 3e-3, 1e-2)
"""Of AdamW for cross-entropy; of SGD with gradients scaled to length 1 for mAP."""
RADIUS = 3.0
FURTHER = {("shapes", "nll-more"): [1e-3], ("voc", "nll-more"): [1e-5]}
"""Tried as well, where the best rate was the grid's last."""
SEEDS = (100, 101, 102)
"""Rates are chosen with the first."""
PROTOCOLS = ["voc12", "voc07", "coco"]
INTRODUCTION = f"""# Three ways to spend a budget
{about(__doc__)}
Settings: `shapes`, the preset `shapes` (1000 images; `nll` 1000 steps of 4 images x 64 windows, then 60 steps of 32 images x
all windows for mAP, or 480 more of cross-entropy); VOC 2012, 1000 training images with 300 selective-search windows each, frozen
ImageNet AlexNet trunk, a head of 1024 units (`nll` 400 steps of 16 x 64, then 40 of 32 x 150 for mAP, or 188 more), 500 val
images. mAP is trained by SGD with gradients scaled to length 1, `estimator="radius"`, `radius=3`, `balance="class"`.

Tried before, on held-out images of `shapes` with the first seed (start 31.4), and given up: AdamW at 3e-5, 1e-4 and 3e-4 with MEE
(30.9, 26.1, 24.3) and at 3e-5 with an unbalanced radius of 1 (26.4); SGD at 1e-3 and 3e-3 with MEE (28.6, 27.4).

mAP in per cent, mean (standard deviation) over seeds.
"""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A set of images, a network for it, and a budget."""

    content: dict[str, Any]
    held_out: tuple[str, int]
    """Split that rates are chosen by, and how many of its images."""
    final: tuple[str, int]
    counts_windows: bool

    def budget(self, phase: PhaseConfig) -> int:
        """Images of a phase, or windows where all are of the same number."""
        return phase.steps * phase.images * (phase.windows or 1 if self.counts_windows else 1)

    def config(self, arm: str, seed: int, rate: float | None, start: Path | None, cache: Path) -> TrainConfig:
        """The run of an arm: `nll`, `nll-more`, or `map-` and an estimator."""
        base = from_dict(self.content)
        changes: dict[str, Any] = {
            "loss": "map" if arm.startswith("map") else "nll",
            "data": {"val": self.held_out[0], "val_images": self.held_out[1]},
            "run": {"seed": seed, "feature_cache": str(cache), "accelerator": "cpu", "report": False, "keep": 1},
        }
        if start is not None:
            changes["model"] = {"weights": str(start), "score": "logprob"}
        if arm == "nll-more":
            steps = round(self.budget(base.map) / self.budget(base.nll) * base.nll.steps)
            changes["nll"] = {"steps": steps, "lr": rate, "drop_every": None, "warmup": 0}
        if arm.startswith("map"):
            changes["map"] = {"lr": rate, "optimizer": "sgd", "max_gradient_norm": 1.0, "drop_every": None}
            changes["map_loss"] = {"estimator": arm.removeprefix("map-"), "radius": RADIUS, "nll_weight": 0.0}
        config = from_dict(changes, base)
        every = {"eval_every": config.total_steps, "save_every": max(50, config.total_steps // 5)}
        return from_dict({"run": every}, config)


def settings(name: str, data: Path | None) -> Setting:
    """`shapes` with the tiny network from nothing, or `voc` with a frozen ImageNet AlexNet trunk."""
    adam = {"optimizer": "adamw", "drop_every": None, "background_overlap": 0.0}
    if name == "shapes":
        base = to_dict(read_config(["shapes"], {}))
        content = {name: base[name] for name in ("data", "model", "nll", "map")}
        return Setting(content, ("val", 200), ("test", 500), counts_windows=False)
    if data is None:
        raise SystemExit("--data: expected the folder that holds VOC2012-320 and weights")
    voc = data / "VOC2012-320"
    content = {
        "data": {
            "path": str(voc),
            "windows": str(voc / "selective_search_fast.npz"),
            "train": "train[:1000]",
            "max_windows": 300,
        },
        "model": {
            "backbone": "alexnet",
            "weights": str(data / "weights" / "alexnet_features_imagenet.pt"),
            "hidden": 1024,
            "freeze": "trunk",
            "shortest_side": 480,
            "longest_side": 640,
        },
        "nll": {**adam, "steps": 400, "images": 16, "windows": 64, "lr": 3e-4, "weight_decay": 0.01},
        "map": {**adam, "steps": 40, "images": 32, "windows": 150, "foreground": None, "ground_truth": False},
    }
    return Setting(content, ("train[3500:3800]", 300), ("val", 500), counts_windows=True)


def trained(folder: Path, config: Callable[[], TrainConfig], progress: RichProgress) -> Path:
    """The folder of a run, which is begun or continued if it has not come to its end."""
    if not (folder / "evaluation.json").exists():
        progress.say(f"{folder}")
        if (folder / "config.yaml").exists():
            resume(folder, progress=progress)
        else:
            train(config(), folder, progress=progress)
    return folder


def run_arm(setting: Setting, arm: str, seed: int, rate: float | None, runs: Path, progress: RichProgress) -> Path:
    """Train an arm if it has not been; returns its folder."""
    start = None
    if arm != "nll":
        start = list_checkpoints(run_arm(setting, "nll", seed, None, runs, progress) / "checkpoints")[-1]
    folder = runs / ("-".join([arm, f"seed{seed}", *([f"{rate:g}"] if rate else [])]))
    return trained(folder, partial(setting.config, arm, seed, rate, start, runs / "features"), progress)


def measure(folder: Path, where: tuple[str, int], runs: Path, progress: RichProgress) -> Run:
    """mAP in per cent of a run's last weights on so many images of a split."""
    run = open_run(folder, "last")
    d = run.config.data
    data = open_data(d.path, where[0], d.windows, where[1], d.max_windows)
    result = validate(run.model, data, PROTOCOLS, progress, source_for(run.model, runs / "features")).compute()
    return {"map": {name: 100 * result[name].map for name in PROTOCOLS}, "images": len(data)}


def one(phase: str, name: str, setting: Setting, arm: str, seed: int, rate: float | None, runs: Path) -> None:
    """A run, unless it is on record."""
    where = setting.held_out if phase == "choose" else setting.final

    def make() -> Run:
        began = time.monotonic()
        with RichProgress() as progress:
            folder = run_arm(setting, arm, seed, rate, runs, progress)
            found = measure(folder, where, runs, progress)
        return {
            **{"where": where[0], **found, "seconds": round(time.monotonic() - began, 1)},
            "steps": open_run(folder, "last").step,
        }

    once(file_of(name), phase, {"set": name, "arm": arm, "seed": seed, "rate": rate}, make)


def file_of(name: str) -> Path:
    return RESULTS / f"detector-{name}.jsonl"


def choose(name: str, setting: Setting, runs: Path) -> None:
    """Every rate for every second half, judged on held-out training images."""
    one("choose", name, setting, "nll", SEEDS[0], None, runs)
    for arm, grid in {"nll-more": NLL_RATES, "map-radius": MAP_RATES}.items():
        for rate in [*grid, *FURTHER.get((name, arm), [])]:
            one("choose", name, setting, arm, SEEDS[0], rate, runs)


def best_rate(name: str, arm: str) -> float:
    tried = grouped(load_runs(file_of(name), "choose"), "set", "arm")[name, arm]
    return max(tried, key=lambda run: run["map"]["voc12"])["rate"]


def final(name: str, setting: Setting, runs: Path) -> None:
    """The chosen rates, three seeds, images that nothing was chosen by."""
    for seed in SEEDS:
        one("final", name, setting, "nll", seed, None, runs)
        for arm in ("nll-more", "map-radius"):
            one("final", name, setting, arm, seed, best_rate(name, arm), runs)


def page(file: Path) -> str:
    """The page of all final runs; `file` is detector.jsonl, beside which each set has a file of its own."""
    files = sorted(file.parent.glob(f"{file.stem}-*.jsonl"))
    groups = grouped([run for one in files for run in load_runs(one, "final")], "set", "arm")
    rows = []
    for (name, arm), runs in groups.items():
        scores = [mean_and_spread([run["map"][p] for run in runs]) for p in PROTOCOLS]
        rows.append([name, arm, str(runs[0]["rate"] or "-"), str(runs[0]["steps"]), *scores, str(len(runs))])
    return f"{INTRODUCTION}\n{table(['set', 'training', 'rate', 'steps', *PROTOCOLS, 'seeds'], rows)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["choose", "final"])
    parser.add_argument("--set", choices=["shapes", "voc"], default="shapes")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    options = parser.parse_args(arguments)
    work = choose if options.phase == "choose" else final
    work(options.set, settings(options.set, options.data), options.runs / options.set)


if __name__ == "__main__":
    main()
