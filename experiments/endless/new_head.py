"""A new class head on the features of the detector that comes with the package: cross-entropy to the end, then more of it or mAP.

    python -m experiments.endless.new_head choose --out FILE.jsonl    # one seed, on val: labels, rates, weight decay, steps
    python -m experiments.endless.new_head final --out FILE.jsonl     # five seeds, on test, with what was chosen

This is how most people use a detector: its trunk and boxes stay, classes are learnt anew. The head has two layers; the demo
shows the same for the detector's last class layer. Every setting was tried. Cross-entropy has hard labels, IoU-aware soft ones or
YOLOv8's, three rates of weight decay and two of Adam; from the best of each, each way to go on has three rates. mAP sees as many
images as more cross-entropy does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from experiments.endless.windows import NMS_THRESHOLD, TRAINING_SEED, extract, new_head, standardised
from experiments.records import Run, add_line, gain, grouped, mean_and_spread, read_lines, table
from stepgrad.data import ShapesDataset
from stepgrad.metric.protocol import get_protocol
from stepgrad.models.demo.detector import CLASSES, trained_ssd
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import Plan, Task, judge, train
from stepgrad.models.fine_tuning.windows import Labelled, labelled

STEPS = 2000
MAP_STEPS = 100
LABELS = ("hard", "soft", "aligned")
STARTS = tuple(product((3e-3, 1e-2), (0.0, 0.3, 1.0)))
"""Rates and weight decays of cross-entropy."""
RATES = {"more": (3e-4, 1e-3, 3e-3), "coco": (1e-3, 3e-3, 1e-2), "voc12": (1e-3, 3e-3, 1e-2)}
SHOWN = ("coco", "voc12")
SIZES = {"train": 600, "val": 200, "test": 300}
SAYS = {
    "start": "cross-entropy, 2000 steps of 8 images",
    "more": "then 400 more of it",
    "coco": 'then 100 steps of 32 images with `MAPLoss(protocol="coco")`',
    "voc12": 'the same with `protocol="voc12"`',
}
INTRODUCTION = """# A new class head on the detector that comes with the package

    python -m experiments.endless.new_head choose --out FILE.jsonl    # one seed, on val
    python -m experiments.endless.new_head final --out FILE.jsonl     # five seeds, on test

Mean (standard deviation) in points; gains are over more cross-entropy of the same seed and labels. Intel Xeon (family 6, model
207), one thread; seconds of a machine busy with other work.
"""


@dataclass(frozen=True)
class Point:
    """One training of a head."""

    labels: str
    arm: str  # "start", "more" or the protocol that mAP is trained for
    rate: float
    weight_decay: float = 0.0  # of cross-entropy

    @property
    def plan(self) -> Plan:
        if self.arm in ("start", "more"):
            steps = STEPS if self.arm == "start" else 4 * MAP_STEPS
            return Plan("stock", steps, 8, self.rate, self.weight_decay)
        return Plan("map", MAP_STEPS, 32, self.rate)

    @property
    def task(self) -> Task:
        reading = Reading(CLASSES, labels=self.labels)
        protocol = get_protocol(self.arm if self.arm == "voc12" else "coco")
        return Task(reading, protocol, NMS_THRESHOLD, reading.stock_loss, loss_options={"absent_classes": "zero"})


@cache
def pictures(split: str, count: int | None = None) -> list[Labelled]:
    """What a head sees of a split."""
    model = trained_ssd()
    known = extract(model, ShapesDataset("train", SIZES["train"], seed=TRAINING_SEED), lambda: None)
    count = count or SIZES[split]
    seed = {"seed": TRAINING_SEED} if split == "train" else {}
    wanted = extract(model, ShapesDataset(split, count, **seed), lambda: None)
    return labelled(split, standardised(wanted, known), CLASSES)


def fit(head: nn.Module, point: Point, seed: int, images: Sequence[Labelled] | None = None) -> nn.Module:
    return train(head, images or pictures("train"), point.task, point.plan, seed, lambda: None)


def measure(head: nn.Module, point: Point, split: str) -> dict[str, float]:
    """mAP in points."""
    protocols = [get_protocol(name) for name in SHOWN]
    values = judge(head, pictures(split), point.task, protocols)
    return {p.name: round(100 * value, 2) for p, value in zip(protocols, values, strict=True)}


def start_head(seed: int) -> nn.Module:
    return new_head(pictures("train")[0].features.shape[1], seed)


def choose(kinds: Sequence[str]) -> Iterator[Run]:
    """Every point, with the first seed, on val."""
    for labels in kinds:
        tried = []
        for rate, decay in STARTS:
            point = Point(labels, "start", rate, decay)
            head = fit(start_head(0), point, 0)
            found = measure(head, point, "val")
            tried.append((found["coco"], point, head))
            yield {"part": "choose", **asdict(point), "val": found}
        _, point, start = max(tried, key=lambda t: t[0])
        for arm, rates in RATES.items():
            for rate in rates:
                other = replace(point, arm=arm, rate=rate)
                yield {"part": "choose", **asdict(other), "val": measure(fit(start, other, 50), other, "val")}


def chosen(lines: Sequence[Run]) -> dict[tuple[str, str], Point]:
    """Of each way of training, the point with the best COCO AP on val; of equals the first."""
    tried = grouped([line for line in lines if line["part"] == "choose"], "labels", "arm")
    best = [max(own, key=lambda line: line["val"]["coco"]) for own in tried.values()]
    return {(line["labels"], line["arm"]): Point(*(line[field.name] for field in fields(Point))) for line in best}


def final(points: dict[tuple[str, str], Point], seeds: Sequence[int], kinds: Sequence[str]) -> Iterator[Run]:
    """Every way of training with its best point, on test."""
    for seed, labels in product(seeds, kinds):
        start = start_head(seed)
        for arm in ("start", *RATES):
            point = points[labels, arm]
            began = time.perf_counter()
            head = fit(start, point, seed if arm == "start" else seed + 50)
            seconds = round(time.perf_counter() - began, 1)
            yield {"part": "final", "seed": seed, **asdict(point), "test": measure(head, point, "test"), "s": seconds}
            start = head if arm == "start" else start


def page(file: Path) -> str:
    """The page of the runs on record: the final table, then what was tried."""
    parts = grouped(read_lines(file), "part")
    header = ["training", "labels", "COCO AP", "gain", "area mAP", "gain", "seconds"]
    tried = [
        [
            run["labels"],
            run["arm"],
            f"{run['rate']:g}",
            f"{run['weight_decay']:g}",
            *(f"{run['val'][p]:.1f}" for p in SHOWN),
        ]
        for run in parts["choose",]
    ]
    tables = [
        table(header, _final_rows(parts["final",])),
        table(["labels", "training", "rate", "weight decay", "COCO AP, val", "area mAP, val"], tried),
    ]
    return "\n".join([INTRODUCTION, "\n\n".join(tables), ""])


def _final_rows(runs: Sequence[Run]) -> list[list[str]]:
    by_way, rows = grouped(runs, "labels", "arm"), []
    for (labels, arm), own in by_way.items():
        cells = [SAYS[arm], labels]
        for protocol in SHOWN:
            values, more = (
                {run["seed"]: run["test"][protocol] for run in some} for some in (own, by_way[labels, "more"])
            )
            cells += [mean_and_spread(list(values.values())), gain(values, more) if arm in SHOWN else ""]
        rows.append([*cells, f"{fmean(run['s'] for run in own):.0f}"])
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["choose", "final"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--labels", nargs="+", choices=LABELS, default=LABELS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    known, kinds = read_lines(options.out), options.labels
    for line in choose(kinds) if options.what == "choose" else final(chosen(known), options.seeds, kinds):
        print(line, flush=True)
        add_line(options.out, line)


if __name__ == "__main__":
    main()
