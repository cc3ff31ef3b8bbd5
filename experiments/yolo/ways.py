"""Ways to train a head on YOLOv8n's features for mAP after task-aligned cross-entropy: what makes more of it.

    python -m experiments.yolo.ways --set voc --data DIR --cache DIR --chosen HEADS.jsonl --out FILE.jsonl

From the start that `experiments.yolo.heads choose` found best, measured on held-out training images, three seeds. The first row
is the start, the second more of the same cross-entropy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.records import Run, commit, grouped, load_runs, mean_and_spread, save_run, table
from experiments.yolo.heads import Point, Trial, chosen
from experiments.yolo.sets import SETS
from stepgrad.losses.detection import MAPLoss
from stepgrad.metric.protocol import COCO
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import Plan, Task, train
from stepgrad.models.fine_tuning.windows import Labelled

START = "aligned"
INTRODUCTION = """# Ways to train for mAP after task-aligned labels

    python -m experiments.yolo.ways --set voc --data DIR --cache DIR --chosen heads.jsonl --out FILE.jsonl

VOC 2012, 500 held-out training images; rows without a spread have one seed, the others two. Intel Xeon (family 6, model 207), one
thread.
"""


@dataclass(frozen=True)
class Way:
    """How the second part of the training goes."""

    steps: int = 150
    images: int = 32
    rate: float = 1e-3
    beside: float = 0.0  # weight of cross-entropy in the loss
    for_map: bool = True
    average: float = 0.0
    through_nms: bool = True
    windows: int | None = None  # per image, drawn anew in every step; None: all


WAYS = (
    Way(300, 16, 3e-4, beside=1.0, for_map=False),
    Way(),
    Way(rate=3e-3),
    Way(600, 8),
    Way(38, 128, 3e-3),
    Way(10, 512, 3e-3),
    Way(75, 128, 3e-3),
    Way(150, 128, 3e-3),
    Way(600),
    Way(300, average=0.98),
    Way(beside=1.0),
    Way(75, 128, 3e-3, beside=1.0),
    Way(through_nms=False),
    Way(windows=150),
)


def loss_of(way: Way, trial: Trial) -> Callable[[Tensor, Sequence[Labelled]], Tensor]:
    """Cross-entropy, mAP, or both."""
    usual = Reading(trial.num_classes, labels=START).stock_loss
    mode = "exact" if way.through_nms else "none"
    loss_fn = MAPLoss(trial.num_classes, COCO, nms_threshold=trial.set.nms, through_nms=mode, absent_classes="zero")

    def loss(outputs: Tensor, images: Sequence[Labelled]) -> Tensor:
        total = way.beside * usual(outputs, images) if way.beside else outputs.sum() * 0.0
        if not way.for_map:
            return total
        scores, boxes = list(outputs.double().split([len(i.boxes) for i in images])), [i.boxes for i in images]
        if way.windows is not None:
            rows = [torch.randperm(len(b))[: way.windows] for b in boxes]
            scores = [s[r] for s, r in zip(scores, rows, strict=True)]
            boxes = [b[r] for b, r in zip(boxes, rows, strict=True)]
        return total + loss_fn(scores, boxes, [i.target for i in images])

    return loss


def run(trial: Trial, point: Point, out: Path, seeds: Sequence[int]) -> None:
    """Every way from the start that the point describes, on record."""
    for seed in seeds:
        start = trial.fit(trial.new_head(64, seed), point, "train", seed)
        ways: list[Way | None] = [None, *WAYS]
        for way in ways:
            head = start
            if way is not None:
                plan = Plan("stock", way.steps, way.images, way.rate, average=way.average)
                task = Task(Reading(trial.num_classes), COCO, trial.set.nms, loss_of(way, trial))
                head = train(start, trial.images("train"), task, plan, seed + 50, lambda: None)
            found = {name: values[0] for name, values in trial.measure(head, "held_out").items()}
            print(way, found, flush=True)
            described = None if way is None else asdict(way)
            save_run(out, "ways", {"way": described, "seed": seed, "found": found, "commit": commit()})


def page(file: Path) -> str:
    """The page of the runs on record."""
    runs = [{**run, "says": _says(run["way"])} for run in load_runs(file, "ways")]
    rows = [
        [says, *(mean_and_spread([run["found"][name] for run in own]) for name in ("coco", "voc12"))]
        for (says,), own in grouped(runs, "says").items()
    ]
    return f"{INTRODUCTION}\n{table(['way', 'COCO AP', 'area mAP'], rows)}\n"


def _says(way: Run | None) -> str:
    if way is None:
        return "task-aligned cross-entropy, the start"
    text = f"{way['steps']} steps of {way['images']} images, rate {way['rate']:g}"
    if not way["for_map"]:
        return f"more of it, {text}"
    text += f", {way['windows']} windows per image" if way["windows"] else ""
    text += ", cross-entropy beside it" if way["beside"] else ""
    text += ", running mean of weights" if way["average"] else ""
    return f"mAP, {text}{'' if way['through_nms'] else ', no gradient through NMS'}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=list(SETS), default="voc")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--chosen", type=Path, required=True, help="the runs of experiments.yolo.heads")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    of = SETS[options.set]
    trial = Trial(of, of.load(options.data, options.cache, test=False))
    run(trial, chosen(options.chosen, options.set, 64)[None, START], options.out, options.seeds)


if __name__ == "__main__":
    main()
