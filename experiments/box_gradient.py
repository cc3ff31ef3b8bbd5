"""Does the mAP gradient in box coordinates help a box regressor? On `shapes`, three ways to move windows.

    python -m experiments.box_gradient choose --runs DIR
    python -m experiments.box_gradient final --runs DIR
    python -m experiments.box_gradient render

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
import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import stepgrad as sg
from experiments import detector
from experiments.box_coordinates.loss import BoxMAPLoss
from experiments.box_coordinates.steps import BoxMethod
from experiments.box_head import BoxHead, Images, load_images, offset_loss
from experiments.results import load_runs, mean_and_spread, save_runs
from stepgrad.detector.training.run_folder import open_run
from stepgrad.files import write_whole
from stepgrad.progress import RichProgress

RESULTS = Path(__file__).parent / "results"
FILE = RESULTS / "box_gradient.jsonl"
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


class Lab:
    """The images of a seed, as its detector sees them; loaded when first needed."""

    def __init__(self, seed: int, runs: Path) -> None:
        setting = detector.settings("shapes", None)
        with RichProgress() as progress:
            folder = detector.run_arm(setting, "nll", seed, None, runs / "shapes", progress)
        self.model = open_run(folder, "last").model.eval()
        self.parts: dict[str, Images] = {}

    def images(self, split: str, count: int) -> Images:
        if split not in self.parts:
            self.parts[split] = load_images(self.model, split, count)
        return self.parts[split]

    def scorer(self) -> nn.Linear:
        """The detector's last layer, as cross-entropy left it."""
        layer = nn.Linear(self.model.head.scores.in_features, self.model.head.scores.out_features)
        layer.load_state_dict(self.model.head.scores.state_dict())
        return layer

    def run(self, phase: str, way: Way, seed: int) -> dict[str, Any]:
        """Train one way and put it on record."""
        where, count = ("val", VAL) if phase == "choose" else ("test", TEST)
        train_images, judged = self.images("train", TRAIN), self.images(where, count)
        began = time.process_time()
        scorer, head, history = train(way, train_images, self.scorer(), seed)
        row = {
            **dataclasses.asdict(way),
            "seed": seed,
            "where": where,
            "start": evaluate(judged, self.scorer(), None),
            "map": evaluate(judged, scorer, head),
            "train_map": [round(m, 1) for m in history],
            "cpu_seconds": round(time.process_time() - began, 1),
        }
        save_runs(FILE, phase, row)
        print(row, flush=True)
        return row


def known(phase: str, way: Way, seed: int) -> bool:
    facts = (*dataclasses.astuple(way), seed)
    return any((r["name"], r["rate"], r["radius"], r["seed"]) == facts for r in load_runs(FILE, phase))


def best(name: str) -> Way:
    """The way of that name with the highest VOC 2012 mAP on val images."""
    rows = [r for r in load_runs(FILE, "choose") if r["name"] == name]
    row = max(rows, key=lambda r: r["map"]["voc12"])
    return Way(row["name"], row["rate"], row["radius"])


def run_all(phase: str, runs: Path) -> None:
    for seed in SEEDS[:1] if phase == "choose" else SEEDS:
        ways = [way for name, grid in GRID.items() for way in (grid if phase == "choose" else [best(name)])]
        missing = [way for way in ways if not known(phase, way, seed)]
        lab = Lab(seed, runs) if missing else None
        for way in missing:
            assert lab is not None
            lab.run(phase, way, seed)


def render() -> str:
    """The table of the final runs, written to results/box_gradient.md."""
    rows = load_runs(FILE, "final")
    lines = ["| boxes | rate | radius | voc12 | coco | gain voc12 | gain coco | CPU s |", "|" + "---|" * 8]
    for name in GRID:
        own = [r for r in rows if r["name"] == name]
        if own:
            cells = [mean_and_spread([r["map"][p] for r in own]) for p in PROTOCOLS]
            gains = [mean_and_spread([r["map"][p] - r["start"][p] for r in own]) for p in PROTOCOLS]
            seconds = statistics.mean(r["cpu_seconds"] for r in own)
            rate, radius = own[0]["rate"] or "-", own[0]["radius"] if name.endswith("map") else "-"
            lines.append(f"| {name} | {rate} | {radius} | {' | '.join(cells + gains)} | {seconds:.0f} |")
    seeds = len({r["seed"] for r in rows})
    about = [
        f"{STEPS} steps of {MINIBATCH} of {TRAIN} images. mAP in per cent, mean (standard deviation) over {seeds} seeds;",
        "gain: over the detector that training starts from. CPU s: of training and evaluation, features apart.",
    ]
    text = "\n".join([f"# Boxes by mAP\n{(__doc__ or '').split(chr(10), 1)[1]}", *about, "", *lines, ""])
    write_whole(RESULTS / "box_gradient.md", text.encode())
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["choose", "final", "render"])
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    args = parser.parse_args()
    if args.phase != "render":
        run_all(args.phase, args.runs)
    print(render())


if __name__ == "__main__":
    main()
