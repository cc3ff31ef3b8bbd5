"""A new layer by cross-entropy: to the end, on windows of which the last are those that a first layer took for objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stepgrad.models.fine_tuning.folder import FinishedHeads
from stepgrad.models.fine_tuning.training import Plan, Task, judge, train
from stepgrad.models.fine_tuning.ways import Run, best_of
from stepgrad.models.fine_tuning.windows import ImageWindows, images_by_value, labelled
from stepgrad.models.new_head.features import KeptImage, WindowReader
from stepgrad.models.new_head.frozen import FrozenDetector
from stepgrad.models.new_head.layer import ClassLayer
from stepgrad.progress import Watch, ticker


def start(
    detector: FrozenDetector,
    again: Callable[[Any], FrozenDetector],
    reader: WindowReader,
    task: Task,
    plans: Sequence[Plan],
    seed: int,
    rounds: int,
    out: Path | None,
) -> tuple[ClassLayer, float, dict[str, list[ImageWindows]]]:
    """The best layer by cross-entropy on the windows of every round, its weight decay, and these windows.

    The old model knows which windows are likely to show one of its classes. The new layer scores all windows, and some
    that were not kept look like objects to it: so the next round keeps those that the layer before is surest of. Only the
    last round tries all plans, those before the first.
    `again` makes a frozen detector of another model of the kind.
    """
    kept: dict[str, list[KeptImage]] = {}
    used = detector
    for number in range(1, rounds + 1):
        kept = reader.read(used, number, kept)
        images = {name: [k.image for k in many] for name, many in kept.items()}
        tried = plans if number == rounds else plans[:1]
        folder = None if out is None else out / f"cross-entropy-{number}"
        layer, decay = by_cross_entropy(detector, images, task, tried, seed, reader.watch, folder)
        if number < rounds:
            first = tried[0]
            begun = {"steps": first.steps, "rates": [first.rate], "decays": [first.weight_decay], "seed": seed}
            reader.claim_round(number + 1, {"start": begun, "labels": task.reading.labels, "layer": layer})
            used = again(copy.deepcopy(detector.model))
            used.install(*layer.folded(), [str(k) for k in range(task.reading.num_classes)])
    return layer, decay, images


def by_cross_entropy(
    detector: FrozenDetector,
    images: Mapping[str, list[ImageWindows]],
    task: Task,
    plans: Sequence[Plan],
    seed: int,
    watch: Watch,
    folder: Path | None,
) -> tuple[ClassLayer, float]:
    """The layer that is best on held-out images, of random weights trained by each plan, and its weight decay."""
    K = task.reading.num_classes
    train_images, val_images = (labelled(f"{name}_data", images[name], K) for name in ("train", "val"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = detector.new_layer(K)
    layer.standardise_like(image.features for image in images["train"])
    settings = {
        "layer": layer,
        "train_images": images_by_value(train_images),
        "labels": task.reading.labels,
        "steps": plans[0].steps,
        "seed": seed,
    }
    records = FinishedHeads(folder, settings)

    def one(plan: Plan) -> Run:
        tick = ticker(watch, f"cross-entropy, rate {plan.rate:g}, decay {plan.weight_decay:g}", plan.steps)
        head, seconds = records.trained(
            f"{plan.rate!r}-{plan.weight_decay!r}", layer, lambda: train(layer, train_images, task, plan, seed, tick)
        )
        return judge(head, val_images, task, [task.protocol])[0], head, seconds

    rates = list(dict.fromkeys(plan.rate for plan in plans))
    best, (_, head, _) = best_of(plans, one, f"cross-entropy diverged at every rate of {rates}; lower start_rates.")
    assert isinstance(head, ClassLayer)
    return head, best.weight_decay
