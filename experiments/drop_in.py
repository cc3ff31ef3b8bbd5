"""torchvision's detectors on `shapes`: the stock loss for the whole budget, or the stock loss and then mAP.

    python -m experiments.drop_in choose --runs DIR      # rates and weights, one seed, on val
    python -m experiments.drop_in final --runs DIR       # three seeds, on test
    python -m experiments.drop_in left-out --runs DIR    # what the pre-selection of dense heads leaves out
    python -m experiments.drop_in lengths --runs DIR     # how strongly each loss pulls at the weights

Small versions of Faster R-CNN, RetinaNet, FCOS and SSD: torchvision's classes on one backbone of ten convolutions, images of
160 pixels, random weights. Every seed trains one stock model (`stock`, 600 steps of eight images); both second halves start
from its weights and see the same 240 minibatches of eight, by AdamW: `stock-more` with the stock loss, `mix` with the stock
loss and mAP (`train_for_map`). `choose` tries four points of each on val: four rates for the stock loss; for the mix, three
rates at weight 0.1 of mAP, and the highest at weight 1. A run that is on record is not run again, and two processes may work
on two families at once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

import stepgrad as sg
from experiments.drop_in_left_out import left_out
from experiments.drop_in_lengths import lengths
from experiments.drop_in_models import FAMILIES, WITHOUT_BACKGROUND, build
from experiments.records import Run, load_runs, once
from stepgrad.data import ShapesDataset
from stepgrad.files import write_whole
from stepgrad.models.torchvision import restore, train_for_map

FILE = Path(__file__).parent / "results" / "drop_in.jsonl"
SEEDS = (100, 101, 102)
PROTOCOLS = ["voc12", "coco"]
TRAIN_IMAGES, VAL_IMAGES, TEST_IMAGES = 1000, 150, 300


@dataclass(frozen=True)
class Arm:
    """How some of the budget is spent."""

    steps: int
    images: int
    mode: str | None = None  # of train_for_map; None: the stock loss
    points: tuple[dict[str, float], ...] = ()  # what `choose` tries: a rate and, for mAP, a weight


ARMS = {
    "stock": Arm(600, 8, points=({"rate": 1e-3},)),
    "stock-more": Arm(240, 8, points=({"rate": 1.5e-4}, {"rate": 3e-4}, {"rate": 6e-4}, {"rate": 1e-3})),
    "mix": Arm(
        240,
        8,
        "mix",
        (
            {"rate": 3e-4, "weight": 0.1},
            {"rate": 6e-4, "weight": 0.1},
            {"rate": 1e-3, "weight": 0.1},
            {"rate": 1e-3, "weight": 1.0},
        ),
    ),
}
"""Both second halves have four points to choose from."""
Pair = tuple[Tensor, dict[str, Any]]


@cache
def pictures(split: str, length: int) -> list[Pair]:
    """A split in memory."""
    data = ShapesDataset(split, length=length)
    return [data[i] for i in range(len(data))]


def batch(pairs: list[Pair], first_label: int) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """What a stock model takes in training."""
    targets = [{**target, "labels": target["labels"] + first_label} for _, target in pairs]
    return [image / 255 for image, _ in pairs], targets


def first_label(family: str) -> int:
    return 0 if family in WITHOUT_BACKGROUND else 1


def train(
    model: nn.Module, family: str, arm: Arm, seed: int, rate: float, weight: float | None = None
) -> dict[str, float]:
    """Spend the arm's budget; returns the mean mAP of the last minibatches, if it was measured, and the seconds."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # of the model's own sampling of windows
    if arm.mode is not None and weight is not None:
        train_for_map(model, mode=arm.mode, weight=weight, absent_classes="skip")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    data, reached, began = pictures("train", TRAIN_IMAGES), [], time.monotonic()
    model.train()
    for _ in range(arm.steps):
        chosen = torch.randint(len(data), (arm.images,), generator=generator).tolist()
        losses = model(*batch([data[i] for i in chosen], first_label(family)))
        optimizer.zero_grad()
        torch.stack([loss.float() for loss in losses.values()]).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        if arm.mode is not None:
            reached.append(model.map_loss.metrics["map"])
    restore(model)
    seconds = round(time.monotonic() - began, 1)
    return {"seconds": seconds} | ({"batch_map": statistics.mean(reached[-10:])} if reached else {})


def evaluate(model: nn.Module, family: str, split: str, length: int) -> dict[str, float]:
    """mAP in per cent."""
    data = pictures(split, length)
    evaluator = sg.Evaluator(len(ShapesDataset(split).class_names), PROTOCOLS, empty_boxes="count")
    model.eval()
    for image, target in data:
        with torch.no_grad():
            (found,) = model([image / 255])
        evaluator.update([{**found, "labels": found["labels"] - first_label(family)}], [target])
    result = evaluator.compute()
    return {name: 100 * result[name].map for name in PROTOCOLS}


def stock_model(family: str, seed: int, runs: Path) -> nn.Module:
    """The model that all second halves start from, trained if it has not been."""
    arm = ARMS["stock"]
    model = build(family, len(ShapesDataset("train").class_names), seed)
    file = runs / f"{family}-seed{seed}-{arm.steps}.safetensors"
    if file.is_file():
        model.load_state_dict(load_file(file))
        return model
    train(model, family, arm, seed, **arm.points[0])
    runs.mkdir(parents=True, exist_ok=True)
    write_whole(file, save({name: value.contiguous() for name, value in model.state_dict().items()}))
    return model


def one(phase: str, family: str, name: str, seed: int, point: dict[str, float], runs: Path) -> None:
    """A run of an arm, unless it is on record."""

    def make() -> Run:
        model, found = stock_model(family, seed, runs), {}
        if name != "stock":
            found = train(model, family, ARMS[name], seed + 1000, **point)
        split, length = ("val", VAL_IMAGES) if phase == "choose" else ("test", TEST_IMAGES)
        return {"map": evaluate(model, family, split, length), **found}

    once(FILE, phase, {"family": family, "arm": name, "seed": seed, **point}, make)


def choose(families: list[str], runs: Path) -> None:
    """Every point of every second half, judged on val."""
    for family in families:
        for name, arm in ARMS.items():
            for point in arm.points:
                one("choose", family, name, SEEDS[0], point, runs)


def best_point(family: str, name: str) -> dict[str, float]:
    """The point of an arm with the highest mAP on val; its first where none was tried."""
    points = ARMS[name].points
    tried = [r for r in load_runs(FILE, "choose") if (r["family"], r["arm"]) == (family, name)]
    scored = [(r["map"]["voc12"], point) for point in points for r in tried if point.items() <= r.items()]
    return max(scored, key=lambda pair: pair[0])[1] if scored else points[0]


def final(families: list[str], runs: Path) -> None:
    """The chosen points, three seeds, images that nothing was chosen by."""
    for family in families:
        for seed in SEEDS:
            for name in ARMS:
                one("final", family, name, seed, best_point(family, name), runs)


def measure_left_out(families: list[str], runs: Path) -> None:
    """The pre-selection of dense heads against all anchors, on the stock models."""

    def make(family: str, seed: int) -> Run:
        given = batch(pictures("val", VAL_IMAGES)[:8], first_label(family))
        return {"rows": left_out(stock_model(family, seed, runs), *given)}

    for family in [f for f in families if f != "faster_rcnn"]:
        for seed in SEEDS:
            once(FILE, "left-out", {"family": family, "seed": seed}, partial(make, family, seed))


def measure_lengths(families: list[str], runs: Path) -> None:
    """The gradients of mAP and of the stock losses, on the stock models."""

    def make(family: str, seed: int) -> Run:
        model, data = stock_model(family, seed, runs), pictures("train", TRAIN_IMAGES)
        torch.manual_seed(seed)  # of the model's own sampling of windows
        batches = [batch(data[i : i + 8], first_label(family)) for i in range(0, 32, 8) if data[i : i + 8]]
        return {"lengths": lengths(model, batches)}

    for family in families:
        for seed in SEEDS:
            once(FILE, "lengths", {"family": family, "seed": seed}, partial(make, family, seed))


PHASES = {"choose": choose, "final": final, "left-out": measure_left_out, "lengths": measure_lengths}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=list(PHASES))
    parser.add_argument("--family", choices=FAMILIES, action="append")
    parser.add_argument("--runs", type=Path, default=Path("runs/drop_in"))
    options = parser.parse_args(arguments)
    PHASES[options.phase](options.family or FAMILIES, options.runs)


if __name__ == "__main__":
    main()
