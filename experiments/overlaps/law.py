"""Gains of scores that follow the true overlap, by group of objects, against how far box IoU and that overlap disagree.

A group is a class of `shapes` whose objects can be seen whole, or of which a part is hidden: twelve groups per task. AP of a
group is that of the class with all other objects neither found nor missed. *Disagreement* is how often box IoU and the true
overlap put two windows of the group in opposite order: (1 - Kendall's tau) / 2 of all windows whose boxes fit an object of it
(IoU of at least 0.5). It is 0 where both say the same, and 0.5 where box IoU says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import kendalltau, spearmanr

from experiments.masks.arms import Seen
from experiments.masks.windows import Tensors
from experiments.paired import LEVEL, Lists, judged, mean_map
from stepgrad.data import ShapesDataset
from stepgrad.evaluation.intervals import interval_of
from stepgrad.evaluation.resampling import Resamples
from stepgrad.metric.protocol import COCO

if TYPE_CHECKING:
    from experiments.masks.trial import Trial

HIT = 0.5
SHARES = ("whole", "hidden")
OVER = "box"
"""Gains are over the head of these labels."""
FOLLOWING = ("box-more", "own", "box-exact", "own-exact")
"""The other ways to train."""
Samples = dict[str, NDArray[np.float64]]


class Gains(NamedTuple):
    """Gains of every arm in points: at first over the images themselves, then over resamples of them."""

    value: Samples
    samples: Samples

    def intervals(self) -> dict[str, list[float]]:
        """Lower end, gain and upper end."""
        return {arm: interval(self.value[arm], self.samples[arm]) for arm in self.value}


def interval(value: NDArray[np.float64], samples: NDArray[np.float64]) -> list[float]:
    low, high = interval_of(samples, LEVEL, float(value[0]))
    return [round(end, 3) for end in (low, float(value[0]), high)]


def find_law(trials: Mapping[str, Trial], seeds: Sequence[int]) -> None:
    """Put on record the gains of each task and group, and how they grow with disagreement."""
    points: dict[str, list[tuple[float, Gains]]] = {task: [] for task in trials}
    for task, trial in trials.items():
        raw = trial.images.raw("val")
        lists = {share: lists_of(trial, raw, seeds, share) for share in (None, *SHARES)}
        groups = []
        for c, (name, share) in ((c, (n, s)) for c, n in enumerate(ShapesDataset("val").class_names) for s in SHARES):
            gains, ap = gains_of(
                {arm: [[seed[c]] for seed in own] for arm, own in lists[share].items()}, trial, len(raw)
            )
            x, objects = disagreement(raw, trial.images.overlap, c, share == "hidden")
            groups.append({"class": name, "share": share, "objects": objects, "disagreement": x, "ap": ap})
            groups[-1]["gain"] = gains.intervals()
            points[task].append((x, gains))
        total, ap = gains_of(lists[None], trial, len(raw))
        trial.record(
            "gain", {"task": task, "seeds": list(seeds), "gain": total.intervals(), "ap": ap, "groups": groups}
        )
    others = [task for task in trials if task != "boxes"]
    among = {"all": list(trials), "without boxes": others, **{task: [task] for task in others}}
    record = {
        name: {arm: slopes([p for task in tasks for p in points[task]], arm) for arm in FOLLOWING}
        for name, tasks in among.items()
    }
    trial.record("law", {"slope": record})


def counted(images: Sequence[Seen], raw: Sequence[Tensors], share: str | None) -> list[Seen]:
    """The images where only some objects count."""
    if share is None:
        return list(images)
    found = []
    for image, given in zip(images, raw, strict=True):
        other = given["object_hidden"] != (share == "hidden")
        found.append(replace(image, target={**image.target, "difficult": image.target["difficult"] | other}))
    return found


def lists_of(trial: Trial, raw: Sequence[Tensors], seeds: Sequence[int], share: str | None) -> dict[str, list[Lists]]:
    """What every arm and seed found, by class."""
    images = counted(trial.images("val", "head"), raw, share)
    return {
        arm: [judged(trial.images.saved_scores(arm, None, s), images, trial.study, COCO, "shape") for s in seeds]
        for arm in trial.study.arms
    }


def gains_of(lists: Mapping[str, Sequence[Lists]], trial: Trial, images: int) -> tuple[Gains, dict[str, float]]:
    """Gains over the head of box-aligned labels, means over seeds; and the AP of every arm."""
    draws = Resamples.of(images, trial.study.resamples, seed=0)
    once = np.ones((1, images), dtype=np.uint8)
    both = [{arm: 100 * mean_map(own, COCO, w, draws) for arm, own in lists.items()} for w in (once, draws.weights)]
    gains = Gains(*({arm: values - own[OVER] for arm, values in own.items() if arm != OVER} for own in both))
    return gains, {arm: round(float(values[0]), 3) for arm, values in both[0].items()}


def disagreement(raw: Sequence[Tensors], overlap: str, label: int, hidden: bool) -> tuple[float, int]:
    """How far box IoU and another overlap disagree about the windows of a group's objects, and how many objects it has."""
    boxes, others, objects = [], [], 0
    for image in raw:
        own = (image["object_labels"] == label) & (image["object_hidden"] == hidden) & ~image["object_difficult"]
        close = image["box_iou"][:, own] >= HIT
        boxes.append(image["box_iou"][:, own][close])
        others.append(image[overlap][:, own][close])
        objects += int(own.sum())
    tau = kendalltau(torch.cat(boxes).numpy(), torch.cat(others).numpy()).statistic
    return round(float((1 - tau) / 2), 4), objects


def slopes(points: Sequence[tuple[float, Gains]], arm: str) -> dict[str, Any]:
    """Points of AP that an arm gains more where disagreement is larger by 0.1, over all groups that have the arm."""
    own = [(x, gains) for x, gains in points if arm in gains.value]
    x = np.array([x for x, _ in own])
    value, samples = (np.stack([getattr(g, what)[arm] for _, g in own]) for what in ("value", "samples"))
    centred = (x - x.mean()) / ((x - x.mean()) ** 2).sum() / 10
    rank = spearmanr(x, value[:, 0])
    return {
        "slope": interval(centred @ value, centred @ samples),
        "spearman": round(float(rank.statistic), 3),
        "groups": len(own),
    }
