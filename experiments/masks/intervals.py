"""Intervals of gains over images: every image gets a random weight, the same for all arms (a paired bootstrap).

python -m experiments.masks.intervals --cache DIR --out FILE.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.masks.arms import CLASSES, NMS, Seen
from experiments.masks.trial import METRICS, Images
from experiments.results import commit, load_runs, save_runs
from stepgrad.engine.classes import prepare
from stepgrad.engine.lists import judge_detections
from stepgrad.engine.matching import TRUE_POSITIVE
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.batch import Given, read_batch

Floats = NDArray[np.float64]
RESAMPLES = 1000


def draw_weights(images: int, resamples: int, seed: int = 0) -> Floats:
    """(images, resamples) how often each image is drawn."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(images, np.full(images, 1 / images), size=resamples).T.astype(np.float64)


def resampled_map(scores: Sequence[Tensor], images: Sequence[Seen], metric: str, weights: Floats) -> Floats:
    """(resamples,) mAP where each image counts as often as its weight says; with weights of 1 the usual mAP.

    An image keeps its matches whatever its weight, so everything is matched once.
    """
    protocol, by = METRICS[metric]
    tables = [image.tables[by] for image in images]
    boxes, targets = [image.boxes for image in images], [image.target for image in images]
    batch = read_batch(scores, boxes, targets, CLASSES, given=Given(nms_threshold=NMS, overlaps=tables))
    prepared = prepare(batch, protocol, NMS, 1)
    image_of = np.repeat(np.arange(len(images)), np.diff(batch.offsets))
    values = np.full((CLASSES, weights.shape[1]), np.nan)
    for c in range(CLASSES):
        counted = (batch.object_labels == c) & ~batch.difficult
        objects = np.bincount(batch.object_images[counted], minlength=len(images)) @ weights
        one = prepared.one_class(c)
        roles = judge_detections(one, one.rules.cumulative)[0]
        of_threshold = [_class_ap(row, image_of[one.by_score], weights, objects, protocol) for row in roles]
        values[c] = np.where(objects > 0, np.mean(of_threshold, axis=0), np.nan)
    return np.nanmean(values, axis=0)


def _class_ap(roles: NDArray[np.int8], image_of: Any, weights: Floats, objects: Floats, protocol: Protocol) -> Floats:
    """(resamples,) AP of one class at one threshold, from the roles of its detections by decreasing score."""
    counts = roles <= TRUE_POSITIVE
    hit, image_of = roles[counts] == TRUE_POSITIVE, image_of[counts]
    true = weights[image_of[hit]].cumsum(axis=0)
    # Detections between two hits are added up by image first: there are few hits and many detections.
    between = np.zeros((len(true) + 1, len(weights)), dtype=np.float32)
    np.add.at(between, (hit.cumsum() - hit, image_of), 1)
    all_above = (between[:-1] @ weights.astype(np.float32)).astype(np.float64).cumsum(axis=0)
    precision = np.divide(true, all_above, out=np.zeros_like(true), where=all_above > 0)
    best = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    recall = true / np.maximum(objects, 1)
    if protocol.recall_levels is None:
        return (best * np.diff(recall, axis=0, prepend=0)).sum(axis=0)
    levels = np.arange(protocol.recall_levels) * (1 / (protocol.recall_levels - 1))
    best = np.concatenate([best, np.zeros((1, len(objects)))])
    reached = (np.searchsorted(column, levels) for column in recall.T)
    return np.array([column[places].mean() for column, places in zip(best.T, reached, strict=True)])


def resampled(images: Images, arm: str, count: int | None, seeds: Sequence[int]) -> dict[str, Floats]:
    """(resamples,) of each metric in points, the mean over seeds."""
    val = images("val")
    weights = draw_weights(len(val), RESAMPLES)
    found = []
    for seed in seeds:
        scores = torch.from_numpy(np.load(images.scores_file(arm, count, seed))).double()
        parts = list(scores.split([len(image.boxes) for image in val]))
        found.append([resampled_map(parts, val, metric, weights) for metric in METRICS])
    return dict(zip(METRICS, 100 * np.mean(found, axis=0), strict=True))


def compare(images: Images, out: Path) -> None:
    """Gains of every arm over the detector's own scores and over mask scoring, for each number of training images."""
    runs = [run for run in load_runs(out, "final") if run["void"] == images.void]
    own = resampled(images, "own", None, [0])
    for count in dict.fromkeys(run["images"] for run in runs):
        seeds: dict[str, list[int]] = {}
        for run in runs:
            if run["images"] == count:
                seeds.setdefault(run["arm"], []).append(run["seed"])
        found = {"own": own, **{arm: resampled(images, arm, count, seeds[arm]) for arm in seeds}}
        for arm, over in product(seeds, ("own", "scoring")):
            if arm != over and over in found:
                facts = {"void": images.void, "arm": arm, "images": count, "seeds": seeds[arm], "over": over}
                save_runs(out, "interval", {**facts, "gain": gain(found[arm], found[over]), "commit": commit()})


def gain(found: dict[str, Floats], other: dict[str, Floats]) -> dict[str, list[float]]:
    """Of each metric the 2.5 %, 50 % and 97.5 % quantiles of the difference."""
    return {m: np.quantile(found[m] - other[m], [0.025, 0.5, 0.975]).round(2).tolist() for m in METRICS}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--void", choices=["removed", "background"], default="removed")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    compare(Images(options.cache, options.void), options.out)


if __name__ == "__main__":
    main()
