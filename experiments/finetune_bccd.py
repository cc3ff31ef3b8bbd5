"""`sg.finetune` on blood cells: a new class head on frozen AlexNet features, few images, and what is kept of it.

    python -m experiments.finetune_bccd --data FOLDER --cache FOLDER --out FILE.jsonl

FOLDER of --data holds BCCD and weights/alexnet_features_imagenet.pt. Windows come from our selective search (at most 800 per
image, a random choice), features from conv5 of the frozen AlexNet, then 128 principal components; both stay in --cache. The head
has 128 units with dropout and a softmax with background. It is trained by cross-entropy on 64 windows per image and step, a
quarter on objects, for 2000 steps; that is the usual loss here. 120 of the 205 training images, drawn once, train it;
the 87 images of val, or every other one of them, are held out; the 72 of test are looked at once. A seed is that of the head's
first weights and of the order of images; the rates and the three seeds of order of `finetune` are its defaults.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stepgrad as sg
from experiments.frozen_features import FeatureSettings, cached_features
from experiments.head_training import choose_windows
from experiments.records import Run, once
from experiments.window_head import BACKGROUND
from stepgrad.data import generate_proposals, load_dataset
from stepgrad.detector.training.inputs import open_data
from stepgrad.errors import DataError
from stepgrad.metric.protocol import get_protocol
from stepgrad.models.fine_tuning import FineTuned, ImageWindows
from stepgrad.models.fine_tuning.folder import FinishedHeads, fingerprint
from stepgrad.models.fine_tuning.outputs import Reading, UsualLoss
from stepgrad.models.fine_tuning.training import Plan, Task, train
from stepgrad.models.fine_tuning.windows import Labelled, labelled

TRAINING_IMAGES = 120
MAX_WINDOWS = 800
UNITS = 128
NMS = 0.3
RATE = 3e-3
"""Of the first training; 1e-3 ends as high on held-out images, later."""
DRAWS = 20
"""Sets of 64 windows that an image has for the first training."""
FEATURES = FeatureSettings(zoom=2.0, components=128, sample_per_image=20, fit_images=205)
PROTOCOLS = ("voc12", "coco")
HELD_OUT = ("all", "half")


@dataclass(frozen=True)
class Parts:
    """Images that train, that are held out, and that are looked at once."""

    train: list[ImageWindows]
    val: list[ImageWindows]
    test: list[ImageWindows]
    num_classes: int

    def held_out(self, which: str) -> list[ImageWindows]:
        return self.val if which == "all" else self.val[::2]


def load_parts(data: Path, cache: Path) -> Parts:
    """BCCD's images as features of their windows, made or taken from the cache."""
    folder, everything = cache / "windows", load_dataset(data / "BCCD")
    outcome = generate_proposals(everything, folder, workers=os.cpu_count() or 1)
    if outcome.failed:
        raise DataError(f"{len(outcome.failed)} images could not be searched, first: {outcome.failed[0]}")
    splits = {
        name: open_data(str(data / "BCCD"), name, str(folder), max_windows=MAX_WINDOWS)
        for name in ("train", "val", "test")
    }
    weights = data / "weights" / "alexnet_features_imagenet.pt"
    features = cached_features(splits, weights, cache / "features", FEATURES)
    images = {
        name: [ImageWindows(found.float(), *split.facts(i)) for i, found in enumerate(features[name])]
        for name, split in splits.items()
    }
    # the list is in the order of the pictures' numbers, which were not all taken alike
    drawn = torch.randperm(len(images["train"]), generator=torch.Generator().manual_seed(0))[:TRAINING_IMAGES]
    chosen = [images["train"][i] for i in drawn.tolist()]
    return Parts(chosen, images["val"], images["test"], len(everything.class_names))


def drawn(image: Labelled, generator: torch.Generator) -> Tensor:
    """Numbers of 64 windows, a quarter of them on objects where there are so many, as Fast R-CNN draws them."""
    on_object = (image.overlap >= 0.5).any(dim=1)
    return choose_windows(torch.where(on_object, 0, BACKGROUND), 64, 0.25, generator)


def only(image: Labelled, rows: Tensor) -> Labelled:
    """Some windows of an image."""
    names = ("features", "boxes", "overlap", "ignored")
    return replace(image, **{name: getattr(image, name)[rows] for name in names})


def sampled_loss(reading: Reading) -> UsualLoss:
    """Cross-entropy of windows drawn anew in every step."""

    def loss(outputs: Tensor, images: Sequence[Labelled]) -> Tensor:
        rows = [drawn(image, torch.default_generator) for image in images]
        columns = outputs.split([len(image.boxes) for image in images])
        chosen = torch.cat([of_image[r] for of_image, r in zip(columns, rows, strict=True)])
        return reading.stock_loss(chosen, [only(image, r) for image, r in zip(images, rows, strict=True)])

    return loss


def trained_head(images: Sequence[ImageWindows], num_classes: int, steps: int, seed: int, folder: Path) -> nn.Module:
    """A new head, trained by cross-entropy, or on record; the last column is background."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        width = images[0].features.shape[1]
        head = nn.Sequential(nn.Linear(width, UNITS), nn.ReLU(), nn.Dropout(0.5), nn.Linear(UNITS, num_classes + 1))
    reading = Reading(num_classes, "last")
    task = Task(reading, get_protocol("voc12"), NMS, reading.stock_loss)
    plan = Plan("stock", steps, images=8, rate=RATE)

    def training() -> nn.Module:
        generator, given = torch.Generator().manual_seed(seed), labelled("images", images, num_classes)
        draws = [only(image, drawn(image, generator)) for _ in range(DRAWS) for image in given]
        return train(head, draws, task, plan, seed, lambda: None)

    folder.mkdir(parents=True, exist_ok=True)
    records = FinishedHeads(folder, {"steps": steps, "rate": RATE, "seed": seed})
    return records.trained(fingerprint(image.features for image in images), head, training)[0]


def one_start(
    parts: Parts, seed: int, protocol: str, start_steps: int, folder: Path, out: Path, **options: Any
) -> None:
    """The fine-tunings of one start for one protocol; those on record are not made again."""

    def new_head(images: list[ImageWindows]) -> nn.Module:
        return trained_head(images, parts.num_classes, start_steps, seed, folder / f"{seed}-cross-entropy")

    settings = {"background": "last", "nms_threshold": NMS, "test_images": parts.test, "refit": new_head, **options}
    settings["absent_classes"] = "zero"
    settings["stock_loss"] = sampled_loss(Reading(parts.num_classes, "last"))

    def make(held_out: str) -> Run:
        to, images, begun = folder / f"{seed}-{protocol}-{held_out}", parts.held_out(held_out), time.monotonic()
        tuned = sg.finetune(new_head(parts.train), parts.train, images, protocol=protocol, out=to, **settings)
        print(f"seed {seed}, {len(images)} held out, {time.monotonic() - begun:.0f} s\n{tuned}\n", flush=True)
        return {**facts(tuned), "images": len(images), "steps": [start_steps, options["steps"]]}

    for held_out in HELD_OUT:
        key = {"seed": seed, "protocol": protocol, "held_out": held_out}
        once(out, "final", key, partial(make, held_out))


def facts(tuned: FineTuned) -> Run:
    """What goes on record, in points."""

    def points(values: Iterable[float]) -> list[float]:
        return [round(100 * value, 2) for value in values]

    ways = {
        name: {
            "rate": way.rate,
            "val": points(way.val),
            "test": {protocol: points(values) for protocol, values in way.test.items()},
            "seconds": round(way.seconds, 1),
        }
        for name, way in tuned.ways.items()
    }
    return {"chosen": tuned.chosen, "ways": ways}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with BCCD and weights")
    parser.add_argument("--cache", type=Path, default=Path("runs/bccd"), help="folder for windows, features and heads")
    parser.add_argument("--start-steps", type=int, default=2000, help="of cross-entropy, before the ways part")
    parser.add_argument("--steps", type=int, default=60, help="of mAP")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=PROTOCOLS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    parts = load_parts(options.data, options.cache)
    for protocol in options.protocols:
        for seed in options.seeds:
            folder = options.cache / "heads"
            one_start(parts, seed, protocol, options.start_steps, folder, options.out, steps=options.steps)


if __name__ == "__main__":
    main()
