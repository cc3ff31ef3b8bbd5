"""Ways to make more of mAP, each against the plain one, on the head of `experiments.endless.new_head`.

    python -m experiments.endless.ways --out FILE.jsonl

From the best cross-entropy head with soft labels, three seeds, on held-out images ("val"): another number of steps or of images
per step; noise on the scores; scores of earlier steps kept in a memory; both losses at once for the whole training from
random weights. All see as many images as the plain way unless the name says otherwise.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import stepgrad as sg
from experiments.endless.new_head import STEPS, Point, fit, measure, pictures, start_head
from experiments.endless.windows import MAP_RATE, NMS_THRESHOLD, START_RATE, WEIGHT_DECAY
from experiments.records import add_line, mean_and_spread, read_lines
from experiments.score_memory import RememberingLoss
from stepgrad.models.demo.detector import CLASSES
from stepgrad.models.fine_tuning.training import outputs_of
from stepgrad.models.fine_tuning.windows import Labelled, batches

SEEDS = (0, 1, 2)
START = Point("soft", "start", START_RATE, WEIGHT_DECAY)


@dataclass(frozen=True)
class Way:
    """How mAP is trained for."""

    steps: int = 100
    images: int = 32
    rate: float = MAP_RATE
    noise: float = 0.0  # of the scores, before the loss
    memory: int = 0  # images of earlier steps whose scores take part
    stock: float = 0.0  # weight of cross-entropy beside mAP
    ramp: bool = False  # mAP's weight grows from 0 to 1
    from_random: bool = False  # no cross-entropy before


WAYS = {
    "plain: 100 steps of 32 images": Way(),
    "400 steps of 8 images": Way(400, 8),
    "50 steps of 64 images": Way(50, 64),
    "25 steps of 128 images": Way(25, 128),
    "half the steps": Way(50),
    "four times the steps": Way(400),
    "rate 1e-3": Way(rate=1e-3),
    "rate 1e-2": Way(rate=1e-2),
    "noise 0.3 on scores": Way(noise=0.3),
    "noise 1 on scores": Way(noise=1.0),
    "noise 1, four times the steps": Way(400, noise=1.0),
    "400 steps of 8, memory of 24 images": Way(400, 8, memory=24),
    "with cross-entropy, weight 0.1": Way(stock=0.1),
    "with cross-entropy, weight 1": Way(stock=1.0),
    "both from random weights, 2000 steps of 8": Way(STEPS, 8, stock=1.0, ramp=True, from_random=True),
    "both from random weights, mAP x 0.1": Way(STEPS, 8, stock=10.0, ramp=True, from_random=True),
}


def train(head: nn.Module, way: Way, seed: int) -> nn.Module:
    head = copy.deepcopy(head).train()
    optimizer = torch.optim.AdamW(head.parameters(), way.rate, weight_decay=WEIGHT_DECAY if way.from_random else 0.0)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, way.steps)
    generator = torch.Generator().manual_seed(seed)
    drawn = batches(pictures("train"), way.images, generator)
    map_loss = _map_loss(way, generator)
    for step in range(way.steps):
        images = next(drawn)
        outputs = outputs_of(head, images)
        share = (step + 1) / way.steps if way.ramp else 1.0
        loss = share * map_loss(outputs, images)
        if way.stock:
            loss = loss + way.stock * START.task.stock_loss(outputs, images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return head.eval()


def _map_loss(way: Way, generator: torch.Generator) -> Callable[[Tensor, Sequence[Labelled]], Tensor]:
    plain = sg.MAPLoss(CLASSES, "coco", nms_threshold=NMS_THRESHOLD, absent_classes="zero")
    loss_fn = RememberingLoss(plain, way.memory)

    def loss(outputs: Tensor, images: Sequence[Labelled]) -> Tensor:
        noisy = outputs.double() + way.noise * torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
        scores = list(noisy.split([len(image.boxes) for image in images]))
        value: Tensor = loss_fn(scores, [image.boxes for image in images], [image.target for image in images])
        return value

    return loss


def go_on(way: Way, start: nn.Module, seed: int) -> nn.Module:
    """A head after training for mAP, from a start or from random weights."""
    return train(start_head(seed) if way.from_random else start, way, seed + 50)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    starts = [fit(start_head(seed), START, seed) for seed in SEEDS]
    known = [line["way"] for line in read_lines(options.out)]
    for name in (name for name in ("cross-entropy", *options.ways) if name not in known):
        heads = starts
        if name != "cross-entropy":
            heads = [go_on(WAYS[name], start, seed) for start, seed in zip(starts, SEEDS, strict=True)]
        found = [measure(head, START, "val") for head in heads]
        add_line(options.out, {"way": name, "val": found})
        print(name, *(mean_and_spread([run[p] for run in found]) for p in ("coco", "voc12")), flush=True)


if __name__ == "__main__":
    main()
