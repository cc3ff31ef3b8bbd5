"""Does the mAP gradient in box coordinates help a box regressor? On `shapes`, three ways to move windows.

    python -m experiments.box_gradient choose --runs DIR
    python -m experiments.box_gradient final --runs DIR

Every seed starts from a cross-entropy detector without box regression (that of `experiments.detector`; trained if DIR has
none). Its trunk and hidden layers are frozen. Two things train, for the same steps on the same minibatches of all windows:
the last layer of the scores, always by mAP after NMS of the windows where they are then; and a new box head, one hidden
layer on a fixed random projection of the window's pooled features, which moves and scales every window, for all classes
alike, and starts at moving none:

* `none`: no box head.
* `smooth-l1`: the box head learns the offsets to the object of windows that show one (IoU >= 0.5), as in Fast R-CNN.
* `map`: the box head learns by the boxes' part of `BoxMAPLoss` alone: the loss that the scores follow.
* `smooth-l1+map`: by the sum of both.

`choose` tries the grid of each way with the first seed on 150 val images; `final` runs the best of each with three seeds and
evaluates once on 300 test images. A run that is on record is not run again.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import nn

import stepgrad as sg
from experiments import detector
from experiments.box_coordinates.loss import BoxMAPLoss
from experiments.box_coordinates.steps import BoxMethod
from experiments.box_head import BoxHead, Images, load_images, offset_loss
from experiments.records import Run, about, grouped, load_runs, mean_and_spread, once, table
from stepgrad.detector import FastRCNN
from stepgrad.detector.training.run_folder import open_run
from stepgrad.progress import RichProgress

FILE = Path(__file__).parent / "results" / "box_gradient.jsonl"
SEEDS = (100, 101, 102)
STEPS, MINIBATCH = 40, 16
TRAIN, VAL, TEST = 300, 150, 300
SCORE_RATE = 0.003
"""Of SGD with gradients scaled to length 1, as in the preset `shapes`; the same in every way."""
PROTOCOLS = ["voc12", "coco"]


@dataclasses.dataclass(frozen=True)
class Way:
    """How the box head learns."""

    name: str
    rate: float = 0.0
    """Of Adam."""
    radius: float = 0.1
    """Of the boxes' estimator, in sides; 0: MEE."""

    @property
    def follows_map(self) -> bool:
        return self.name.endswith("map")

    @property
    def follows_offsets(self) -> bool:
        return self.name.startswith("smooth-l1")

    def loss(self) -> sg.MAPLoss | BoxMAPLoss:
        map_loss = sg.MAPLoss(6, estimator="radius", radius=3.0, balance="class")
        if not self.follows_map:
            return map_loss
        return BoxMAPLoss(map_loss, BoxMethod("radius", self.radius) if self.radius > 0 else BoxMethod("mee"))


GRID = {
    "none": [Way("none")],
    "smooth-l1": [Way("smooth-l1", rate) for rate in (1e-3, 3e-3, 1e-2)],
    "map": [Way("map", *pair) for pair in ((3e-4, 0.1), (1e-3, 0.1), (3e-3, 0.1), (1e-3, 0.25), (1e-3, 0.0))],
    "smooth-l1+map": [Way("smooth-l1+map", rate) for rate in (1e-3, 3e-3)],
}


def minibatches(count: int, seed: int) -> Iterator[list[int]]:
    """Every image once before any comes again."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from (chunk.tolist() for chunk in torch.randperm(count, generator=generator).split(MINIBATCH))


def train(way: Way, images: Images, scorer: nn.Linear, seed: int) -> tuple[nn.Linear, BoxHead | None, list[float]]:
    """Scores and box head after the budget, and the minibatches' mAP on the way."""
    torch.manual_seed(seed)
    head = BoxHead(images.features[0].shape[1]) if way.name != "none" else None
    loss_fn, history = way.loss(), []
    score_optimiser = torch.optim.SGD(scorer.parameters(), lr=SCORE_RATE)
    box_optimiser = torch.optim.Adam(head.parameters(), lr=way.rate) if head is not None else None
    for chosen in itertools.islice(minibatches(len(images), seed), STEPS):
        part = images.part(chosen)
        boxes = part.boxes(head)
        loss = loss_fn(part.scores(scorer), boxes if way.follows_map else [b.detach() for b in boxes], part.targets)
        if head is not None and way.follows_offsets:
            loss = loss + offset_loss(head, part)
        for optimiser in (score_optimiser, box_optimiser):
            if optimiser is not None:
                optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(scorer.parameters(), 1.0)
        for optimiser in (score_optimiser, box_optimiser):
            if optimiser is not None:
                optimiser.step()
        history.append(100 * loss_fn.metrics["map"])
    return scorer, head, history


@torch.no_grad()
def evaluate(images: Images, scorer: nn.Linear, head: BoxHead | None) -> dict[str, float]:
    """mAP in per cent."""
    scores, boxes = images.scores(scorer), images.boxes(head)
    return {p: 100 * sg.mean_average_precision(scores, boxes, images.targets, protocol=p).map for p in PROTOCOLS}


@lru_cache(maxsize=1)  # the ways of a seed come one after the other
def detector_of(seed: int, runs: Path) -> FastRCNN:
    """The cross-entropy detector of a seed."""
    with RichProgress() as progress:
        folder = detector.run_arm(detector.settings("shapes", None), "nll", seed, None, runs / "shapes", progress)
    return open_run(folder, "last").model.eval()


@lru_cache(maxsize=2)  # those that train, and those that judge
def images_of(split: str, count: int, seed: int, runs: Path) -> Images:
    """So many images of a split, as the detector of a seed sees them."""
    return load_images(detector_of(seed, runs), split, count)


def run(way: Way, where: str, count: int, seed: int, runs: Path) -> Run:
    """mAP before and after one way of training, on so many images of a split."""
    train_images, judged = images_of("train", TRAIN, seed, runs), images_of(where, count, seed, runs)
    scorer = detector_of(seed, runs).head.scores  # as cross-entropy left it
    began = time.process_time()
    trained, head, history = train(way, train_images, copy.deepcopy(scorer), seed)
    return {
        "start": evaluate(judged, scorer, None),
        "map": evaluate(judged, trained, head),
        "train_map": [round(m, 1) for m in history],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def best(name: str) -> Way:
    """The way of that name with the highest VOC 2012 mAP on val images."""
    tried = grouped(load_runs(FILE, "choose"), "name")[name,]
    run = max(tried, key=lambda r: r["map"]["voc12"])
    return Way(run["name"], run["rate"], run["radius"])


def run_all(phase: str, runs: Path) -> None:
    where, count = ("val", VAL) if phase == "choose" else ("test", TEST)
    for seed in SEEDS[:1] if phase == "choose" else SEEDS:
        for name, grid in GRID.items():
            for way in grid if phase == "choose" else [best(name)]:
                facts = {**dataclasses.asdict(way), "seed": seed, "where": where}
                once(FILE, phase, facts, partial(run, way, where, count, seed, runs))


def page(file: Path) -> str:
    """The page of the final runs."""
    runs = grouped(load_runs(file, "final"), "name")
    rows = []
    for name in (name for name in GRID if (name,) in runs):
        own = runs[name,]
        scores = [mean_and_spread([r["map"][p] for r in own]) for p in PROTOCOLS]
        gains = [mean_and_spread([r["map"][p] - r["start"][p] for r in own]) for p in PROTOCOLS]
        rate, radius = own[0]["rate"] or "-", own[0]["radius"] if name.endswith("map") else "-"
        seconds = statistics.mean(r["cpu_seconds"] for r in own)
        rows.append([name, str(rate), str(radius), *scores, *gains, f"{seconds:.0f}"])
    seeds = len({run["seed"] for own in runs.values() for run in own})
    header = ["boxes", "rate", "radius", *PROTOCOLS, *(f"gain {name}" for name in PROTOCOLS), "CPU s"]
    return (
        f"# Boxes by mAP\n{about(__doc__)}\n"
        f"{STEPS} steps of {MINIBATCH} of {TRAIN} images. mAP in per cent, mean (standard deviation) over {seeds} seeds;\n"
        "gain: over the detector that training starts from. CPU s: of training and evaluation, features apart.\n\n"
        f"{table(header, rows)}\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["choose", "final"])
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    options = parser.parse_args(arguments)
    run_all(options.phase, options.runs)


if __name__ == "__main__":
    main()
