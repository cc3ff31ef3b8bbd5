"""What the metrics that detectors are deployed by cost as losses, against mAP: ratios of medians, every case in turn.

python -m benchmarks.metrics                 # about three minutes; writes results/metrics.json and metrics.md
python -m benchmarks.metrics --rounds 3      # rougher
python -m benchmarks.metrics --large         # a million windows and three of the losses only; writes metrics_large.json and .md
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch

import stepgrad as sg
from benchmarks.loss import Step, loss_step
from benchmarks.report import machine_lines
from benchmarks.scenes import Scene, clustered_scene, dense_scene, disjoint_scene
from benchmarks.timing import interleaved, machine
from stepgrad.errors import LikelyMistakeWarning
from stepgrad.files import write_whole

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
    head = ["windows, estimator", "MAPLoss, seconds", *columns]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, timed in results["seconds"].items():
        ratios = [f"{timed[c] / timed['MAPLoss']:.2f}" if c in timed else "" for c in columns]
        rows.append("| " + " | ".join([name, f"{timed['MAPLoss']:.3f}", *ratios]) + " |")
    title = "# The metrics that detectors are deployed by, as losses: time over that of MAPLoss"
    return "\n\n".join([title, machine_lines(results), "\n".join(rows)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often every case is timed")
    parser.add_argument(
        "--large", action="store_true", help="time a million windows instead, with the radius estimator"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    warnings.simplefilter("ignore", LikelyMistakeWarning)
    command = f"python -m benchmarks.metrics --rounds {options.rounds}{' --large' * options.large}"
    results = {"command": command, **measure(options.rounds, options.large)}
    name = "metrics_large" if options.large else "metrics"
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / f"{name}.json", (json.dumps(results, indent=1) + "\n").encode())
    page = render(results)
    write_whole(options.out / f"{name}.md", page.encode())
    print(page)


if __name__ == "__main__":
    main()
