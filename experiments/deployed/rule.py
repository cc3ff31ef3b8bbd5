"""The control of every deployed-metric loss: no training at all, but calibrated scores and the decision rule of the metric.

    python -m experiments.deployed.rule --data DIR --cache DIR --out FILE.jsonl                  # judged on held-out images
    python -m experiments.deployed.rule --data DIR --cache DIR --out FILE.jsonl --judged test    # judged on val

Trains again the heads of `experiments.deployed.heads` (more cross-entropy, mAP, the metric, at the rates on record there) and
cuts each in two ways: at thresholds chosen by counting, and by the rule on calibrated scores. With `--judged held_out` one half
of the held-out images chooses and the other is judged, and the other way round; with `test` all choose, and val is judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import stepgrad as sg
from experiments.deployed.heads import LABELS, Heads, Way, open_runs
from experiments.deployed.measure import FALSE_ALARM, MISS, PRECISION, lists_of
from experiments.deployed.sets import SETS
from experiments.deployed.table import NAMES, chosen_ways
from experiments.records import grouped, load_runs, once, table
from stepgrad.deploy.ranked import RankedList, ranked_list
from stepgrad.evaluation.intervals import interval_of, judged_lists
from stepgrad.evaluation.resampling import Resamples
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.metric.metrics import AVERAGE_PRECISION

HEADS = Path(__file__).parents[1] / "results" / "deployed" / "heads.jsonl"
WISHES = {"cost": f"cost@false_alarm={FALSE_ALARM:g},miss={MISS:g}", "recall": f"precision={PRECISION:g}"}
ARMS = {"more": "more cross-entropy", "map": "mAP", "metric": "the metric"}
CUTS = {"counted": "counting", "rule": "the rule"}
CONTROL = "more, rule"
Floats = NDArray[np.float64]
Counts = Floats  # (classes, 3, images): right detections that pass, all that pass, objects


@dataclass(frozen=True)
class Judged:
    """What one head finds on the images that choose, and on those that are judged."""

    choosing: EvaluationResult
    judged: EvaluationResult

    def counts(self, wish: str, by_rule: bool) -> Counts:
        """Counts of each judged image at cuts that the others chose."""
        lists = lists_in(self.judged)
        if by_rule:
            calibration = sg.calibrate(self.choosing, resamples=1)
            scores = [calibration.probabilities(r.scores, np.full(len(r.scores), c)) for c, r in enumerate(lists)]
            cuts = calibration.rule(wish)
        else:
            scores, cuts = [ranked.scores for ranked in lists], sg.thresholds(self.choosing, wish).by_class
        passing = [
            np.zeros(len(own), dtype=np.bool_) if cut is None else own >= cut
            for own, cut in zip(scores, cuts.values(), strict=True)
        ]
        return np.stack([r.counts(keep, self.judged.images) for r, keep in zip(lists, passing, strict=True)])


def lists_in(result: EvaluationResult) -> list[RankedList]:
    units = np.arange(result.images, dtype=np.int32)
    judged = judged_lists(result.classes, result._kept_evidence, result.protocol, AVERAGE_PRECISION)
    return [ranked_list(one, units, 0) for one in judged]


def judged_by(heads: Heads, way: Way, judged: str) -> list[Judged]:
    """The head of a way, on halves of the held-out images in turn, or on val."""
    head, _ = heads.make(way)
    trial = heads.trial
    found: Callable[[Any], EvaluationResult] = lambda images: lists_of(head, images, trial.num_classes, trial.set.nms)  # noqa: E731
    held_out = trial.images("held_out")
    if judged == "test":
        return [Judged(found(held_out), found(trial.images("test")))]
    first, second = found(held_out[::2]), found(held_out[1::2])
    return [Judged(first, second), Judged(second, first)]


def value(counts: Counts, name: str, weights: Floats) -> Floats:
    """(R,) the cost of 100 images, or recall as a mean over classes in per cent, of images drawn (R, images) times."""
    found, counted, objects = np.einsum("ckn,rn->kcr", counts, weights)
    if name == "cost":
        total = (FALSE_ALARM * (counted - found) + MISS * (objects - found)).sum(axis=0)
        return np.asarray(100 * total / weights.sum(axis=1))
    rates = np.divide(found, objects, out=np.full(objects.shape, np.nan), where=objects > 0)
    return np.asarray(100 * np.nanmean(rates, axis=0))


def precision(counts: Counts) -> float:
    found, counted, _ = counts.sum(axis=(0, 2))
    return round(float(100 * found / max(counted, 1)), 1)


def measure(heads: Heads, labels: str, chosen: Sequence[Any], judged: str) -> dict[str, Any]:
    """By metric and arm: the value, and how far it is from the control, with an interval over images."""
    result: dict[str, Any] = {}
    for name, wish in WISHES.items():
        ways = chosen_ways(chosen, name, labels)
        counts: dict[str, Counts] = {}
        for arm in ARMS:
            parts = judged_by(heads, ways[arm], judged)
            for cut in CUTS:
                counts[f"{arm}, {cut}"] = np.concatenate([part.counts(wish, cut == "rule") for part in parts], axis=2)
        images = counts[CONTROL].shape[2]
        draws = Resamples.of(images, 1000, seed=0).weights.astype(np.float64)
        rows = {}
        for arm, own in counts.items():
            now = [float(value(c, name, np.ones((1, images)))[0]) for c in (own, counts[CONTROL])]
            ahead = value(own, name, draws) - value(counts[CONTROL], name, draws)
            rows[arm] = {
                "value": round(now[0], 2),
                "precision": precision(own),
                "over control": round(now[0] - now[1], 2),
                "interval": [round(end, 2) for end in interval_of(ahead, 0.95, now[0] - now[1])],
            }
        result[name] = {"images": images, "arms": rows}
    return {"found": result}


def page(file: Path) -> str:
    """The arms of the runs on record."""
    parts = [
        "# The control: calibrated scores and the decision rule",
        "`python -m experiments.deployed.rule --data DIR --cache DIR --out FILE`: each head is cut at thresholds that were "
        "chosen by counting, and by the rule on calibrated scores: for the cost at a probability of "
        f"{FALSE_ALARM / (FALSE_ALARM + MISS):.3f}, for precision {PRECISION:g} where the mean probability of what passes is "
        "that. The control, in bold, needs no training for the metric. Differences to it have 95 % intervals over images.",
    ]
    titles = {"cost": "cost of 100 images (lower is better)", "recall": "recall at precision 0.9, mean over classes"}
    for run in load_runs(file, "rule"):
        units = f"{run['units']} units" if run["units"] else "linear"
        head = f"{NAMES[run['set']]}, {units}, {run['labels']} labels"
        images = "halves of the held-out images in turn" if run["judged"] == "held_out" else "val"
        for name, found in run["found"].items():
            rows = []
            for arm, row in found["arms"].items():
                loss, cut = arm.split(", ")
                low, high = row["interval"]
                cells = [ARMS[loss], CUTS[cut], f"{row['value']:.1f}", f"{row['precision']:.1f}"]
                cells.append("" if arm == CONTROL else f"{row['over control']:+.1f} ({low:+.1f} to {high:+.1f})")
                rows.append([f"**{cell}**" if arm == CONTROL and cell else cell for cell in cells])
            parts += [
                f"**{head}: {titles[name]}**, {images}, {found['images']} images, seed {run['seed']}, commit {run['commit']}",
                table(["trained by", "cut by", "value", "precision (%)", "minus the control"], rows),
            ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=list(SETS), default="voc")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--judged", choices=["held_out", "test"], default="held_out")
    parser.add_argument("--units", type=int, nargs="+", default=[0])
    parser.add_argument("--labels", nargs="+", choices=LABELS, default=LABELS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chosen = grouped(load_runs(HEADS, "choose"), "set", "units")
    runs = open_runs(options, test=options.judged == "test")["final"]
    for seed in options.seeds:
        for units in options.units:
            for labels in options.labels:
                facts = {"set": options.set, "judged": options.judged, "seed": seed, "units": units, "labels": labels}
                given = runs.heads(seed), labels, chosen[options.set, units], options.judged
                once(options.out, "rule", facts, partial(measure, *given))


if __name__ == "__main__":
    main()
