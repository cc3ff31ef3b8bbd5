"""What the metrics that detectors are deployed by cost as losses, against mAP: ratios of medians, every case in turn.

python -m benchmarks.metrics                 # about three minutes; writes results/metrics.json and metrics.md
python -m benchmarks.metrics --rounds 3      # rougher
python -m benchmarks.metrics --large         # a million windows and three of the losses only; writes metrics_large.*
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import stepgrad as sg
from benchmarks.loss import Step, loss_step
from benchmarks.report import RESULTS, heading, write
from benchmarks.scenes import Scene, clustered_scene, dense_scene, disjoint_scene
from benchmarks.timing import interleaved, machine
from experiments.records import table
from stepgrad.errors import LikelyMistakeWarning

METRICS = (
    "f1",
    "f1@threshold=0.5",
    "recall@precision=0.95",
    "precision@recall=0.9",
    "cost@threshold=0.5,false_alarm=1,miss=10",
    "miss_rate",
    "ap@max_recall=0.5",
)
OF_LARGE = ("recall@precision=0.95", "cost@threshold=0.5,false_alarm=1,miss=10")
AREAS = ("ap@area=small", "ap@area=medium", "ap@area=large")
ESTIMATORS = ("radius", "mee")


def metric_step(scene: Scene, metric: str, **options: Any) -> Step:
    """One forward and backward of DetectionLoss."""
    loss_fn = sg.DetectionLoss(scene.scores[0].shape[1], metric, **options)
    leaves = [s.clone().requires_grad_() for s in scene.scores]
    return lambda: torch.autograd.grad(loss_fn(leaves, scene.boxes, scene.targets), leaves)


def scenes() -> dict[str, tuple[Scene, dict[str, Any]]]:
    return {
        "8 images x 2000 windows x 20 classes": (clustered_scene(), {}),
        "the same, dense": (dense_scene(), {}),
        "COCO's thresholds, 16 x 300 x 80": (clustered_scene(16, 300, 80), {"protocol": "coco"}),
        "one class, 100,000 windows, 2,000 objects": (disjoint_scene(100_000, 2_000, 50), {"nms_threshold": None}),
    }


def large_scene() -> dict[str, tuple[Scene, dict[str, Any]]]:
    scene = disjoint_scene(1_000_000, 2_000, 50)
    return {"one class, 1,000,000 windows, 2,000 objects": (scene, {"nms_threshold": None})}


def measure(rounds: int, large: bool) -> dict[str, Any]:
    results: dict[str, Any] = {"machine": machine(), "seconds": {}}
    for name, (scene, options) in (large_scene() if large else scenes()).items():
        metrics = OF_LARGE if large else (*METRICS, *(AREAS if options.get("protocol") == "coco" else ()))
        for estimator in ESTIMATORS[:1] if large else ESTIMATORS:
            print(f"{name}, {estimator}", flush=True)
            cases = {"MAPLoss": loss_step(scene, estimator=estimator, **options)}
            cases |= {m: metric_step(scene, m, estimator=estimator, **options) for m in metrics}
            timed = {case: timing.median for case, timing in interleaved(cases, rounds).items()}
            results["seconds"][f"{name}, {estimator}"] = timed
    return results


def render(results: dict[str, Any]) -> str:
    """The page: times over those of MAPLoss."""
    columns = [c for c in (*METRICS, *AREAS) if any(c in timed for timed in results["seconds"].values())]
    rows = []
    for name, timed in results["seconds"].items():
        ratios = [f"{timed[c] / timed['MAPLoss']:.2f}" if c in timed else "" for c in columns]
        rows.append([name, f"{timed['MAPLoss']:.3f}", *ratios])
    parts = [
        "# The metrics that detectors are deployed by, as losses: time over that of MAPLoss",
        heading(results),
        "Medians; every case takes its turn in every round.",
        table(["windows, estimator", "MAPLoss, seconds", *columns], rows),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often every case is timed")
    parser.add_argument(
        "--large", action="store_true", help="time a million windows instead, with the radius estimator"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", LikelyMistakeWarning)
    results = {"command": f"python -m benchmarks.metrics --rounds {options.rounds}{' --large' * options.large}"}
    results |= measure(options.rounds, options.large)
    write("metrics_large" if options.large else "metrics", results, render(results), options.out)


if __name__ == "__main__":
    main()
