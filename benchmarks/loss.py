"""Speed and memory of MAPLoss against its targets, its peers and the physical floor, in one run.

    python -m benchmarks.loss                 # about five minutes; writes results/loss.json and results/loss.md
    python -m benchmarks.loss --rounds 3      # rougher
    STEPGRAD_DATA=folder python -m benchmarks.loss      # also compares the made windows with real ones

Peers come with `pip install ".[bench]"`; torchsort is built on installation and needs `--no-build-isolation`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.ops import box_iou, nms

import stepgrad
from benchmarks.children import ROOT, peak, run_child
from benchmarks.claims import DEFAULT, check_claims
from benchmarks.floor import floor_cases
from benchmarks.loss_page import render
from benchmarks.peers import Peer, detection_peers, ranking_peers
from benchmarks.report import RESULTS, write
from benchmarks.scenes import Crowding, Scene, clustered_scene, crowding, disjoint_scene, relevance
from benchmarks.timing import interleaved, machine

IMPORTS = ("import torch", "import stepgrad", "from stepgrad import MAPLoss")
Step = Callable[[], object]
Timings = dict[str, dict[str, float]]


def loss_step(scene: Scene, **options: Any) -> Step:
    """One forward and backward of MAPLoss as it comes, or with other options."""
    loss_fn = stepgrad.MAPLoss(scene.scores[0].shape[1], **options)
    leaves = [s.clone().requires_grad_() for s in scene.scores]
    return lambda: torch.autograd.grad(loss_fn(leaves, scene.boxes, scene.targets), leaves)


def mee_step(scene: Scene, mode: str = "exact", nms_threshold: float | None = 0.3) -> Step:
    """The same with MEE, the paper's estimator, whose nearest steps are the most work."""
    return loss_step(scene, estimator="mee", through_nms=mode, nms_threshold=nms_threshold)


def torchvision_nms(scene: Scene) -> Step:
    """NMS alone, image by image and class by class."""
    columns = [s.T.contiguous() for s in scene.scores]
    pairs = list(zip(scene.boxes, columns, strict=True))
    return lambda: [nms(boxes, column, 0.3) for boxes, rows in pairs for column in rows]


def time_detection(rounds: int) -> Timings:
    scene = clustered_scene()
    cases: dict[str, Step] = {"torchvision.ops.nms": torchvision_nms(scene)}
    cases[DEFAULT] = loss_step(scene)
    cases |= {f"MAPLoss {mode}": mee_step(scene, mode) for mode in ("exact", "paper", "none")}
    cases |= floor_cases(scene, threads=torch.get_num_threads())
    return _timed(cases, rounds)


def time_scaling(rounds: int) -> Timings:
    sizes = (4, 8, 32, 64)
    return _timed({f"{n} images": mee_step(clustered_scene(images=n)) for n in sizes}, rounds)


def time_ranking(rounds: int) -> tuple[Timings, list[Peer]]:
    """One class without overlaps: the windows spread over images as in training, and all in one image."""
    spread = disjoint_scene(100_000, 2_000, images=50)
    scores, positive = torch.cat(spread.scores)[:, 0], relevance(spread)[:, 0]
    peers = ranking_peers(scores, positive)
    cases: dict[str, Step] = {
        "MAPLoss, 50 images": mee_step(spread, nms_threshold=None),
        "MAPLoss, 1 image": mee_step(disjoint_scene(100_000, 2_000, images=1), nms_threshold=None),
        "numpy.argsort": lambda: np.argsort(scores.numpy(), kind="stable"),
    }
    if hasattr(stepgrad, "APLoss"):
        leaf, ap_loss = scores.clone().requires_grad_(), stepgrad.APLoss()
        cases["APLoss"] = lambda: torch.autograd.grad(ap_loss(leaf, positive.float()), leaf)
    cases |= {p.name: p.run for p in peers if p.run is not None}
    return _timed(cases, rounds), peers


def time_million(rounds: int) -> Timings:
    cases = {
        "100,000 in 50 images": mee_step(disjoint_scene(100_000, 2_000, images=50), nms_threshold=None),
        "1,000,000 in 500 images": mee_step(disjoint_scene(1_000_000, 10_000, images=500), nms_threshold=None),
        "100,000 in 1 image": mee_step(disjoint_scene(100_000, 2_000, images=1), nms_threshold=None),
        "1,000,000 in 1 image": mee_step(disjoint_scene(1_000_000, 10_000, images=1), nms_threshold=None),
    }
    return _timed(cases, rounds)


def time_peers(rounds: int) -> tuple[Timings, list[Peer]]:
    scene = clustered_scene()
    peers = detection_peers(scene)
    cases: dict[str, Step] = {"MAPLoss exact": mee_step(scene)}
    cases |= {p.name: p.run for p in peers if p.run is not None}
    return _timed(cases, rounds), peers


def _timed(cases: dict[str, Step], rounds: int) -> Timings:
    print(f"  {', '.join(cases)}", flush=True)
    return {name: asdict(timing) for name, timing in interleaved(cases, rounds).items()}


def import_seconds(rounds: int) -> dict[str, float]:
    """Median seconds of each import in fresh processes, taking turns.

    stepgrad loads names when they are first used, so the plain import says little; what users wait for is the third.
    """
    seconds: dict[str, list[float]] = {statement: [] for statement in IMPORTS}
    for turn in range(rounds + 1):
        for statement, taken in seconds.items():
            code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
            )
            if turn > 0:  # the first turn fills the disk cache
                taken.append(float(done.stdout))
    return {statement: statistics.median(taken) for statement, taken in seconds.items()}


def first_calls() -> list[dict[str, Any]]:
    """The first call in two processes that share a kernel cache, empty at first."""
    with tempfile.TemporaryDirectory() as cache:
        return [run_child("loss", "--first-call", NUMBA_CACHE_DIR=cache) for _ in range(2)]


def first_call() -> dict[str, float]:
    """Seconds of the first and of a later call, and how many kernels were compiled (not loaded from the cache)."""
    from numba.core import event

    step, seconds = mee_step(clustered_scene(images=2, windows=300)), []
    with event.install_recorder("numba:compile") as seen:
        for _ in range(3):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
    return {"first": seconds[0], "later": seconds[-1], "compiled": len(seen.buffer) // 2}


def memory(images: int) -> dict[str, float]:
    """Peak bytes of one forward and backward, next to the least: 4 bytes for every neighbour of every window."""
    for _ in range(2):
        mee_step(clustered_scene(images=2, windows=300, seed=1))()  # loads kernels, starts threads
    scene = clustered_scene(images)
    lists = sum(4 * int((box_iou(b, b) > 0.3).sum() - len(b)) for b in scene.boxes)
    return {**peak(mee_step(scene)), "scores": scene.windows * scene.scores[0].shape[1], "overlap lists": lists}


def window_statistics(data: Path | None) -> dict[str, Any]:
    """The made windows next to real selective-search windows, if there are any."""
    rows: dict[str, Crowding | str] = {}
    for windows in (2000, 640):
        scene = clustered_scene(images=16, windows=windows)
        rows[f"made here, {windows} windows"] = crowding(scene.boxes, [t["boxes"] for t in scene.targets])
    name = "VOC 2012 at 320 px, selective search (fast)"
    if data is None or not (data / "VOC2012-320").is_dir():
        rows[name] = "no data: set STEPGRAD_DATA"
    else:
        from stepgrad.detector.training.inputs import open_data

        voc = data / "VOC2012-320"
        images = open_data(str(voc), "train", str(voc / "selective_search_fast.npz"), 200)
        facts = [images.facts(i) for i in range(len(images))]
        rows[name] = crowding([windows for windows, _ in facts], [target["boxes"] for _, target in facts])
    return {name: row if isinstance(row, str) else asdict(row) for name, row in rows.items()}


def measure(rounds: int, data: Path | None) -> dict[str, Any]:
    print("timing, every case in turn:", flush=True)
    results: dict[str, Any] = {"machine": machine(), "detection": time_detection(rounds)}
    results["scaling"] = time_scaling(max(3, rounds // 2))
    results["ranking"], ranking = time_ranking(rounds)
    results["million"] = time_million(max(3, rounds // 2))
    results["peers"], detection = time_peers(max(3, rounds // 3))
    results["peer notes"] = {
        group: [{"name": p.name, "input": p.input, "note": p.note} for p in peers]
        for group, peers in (("peers", detection), ("ranking", ranking))
    }
    print("fresh processes: memory, import, first call", flush=True)
    results["memory"] = {f"{n} images": run_child("loss", "--memory", n) for n in (8, 32)}
    results["import"] = import_seconds(max(3, rounds // 2))
    results["first calls"] = first_calls()
    results["windows"] = window_statistics(data)
    results["claims"] = [asdict(claim) for claim in check_claims(results)]
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11, help="how often every case is timed")
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with VOC2012-320")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)  # what a child process is asked
    parser.add_argument("--first-call", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.memory or options.first_call:
        print(json.dumps(first_call() if options.first_call else memory(options.memory)))
        return
    results = {"command": f"python -m benchmarks.loss --rounds {options.rounds}"}
    results |= measure(options.rounds, Path(options.data) if options.data else None)
    write("loss", results, render(results), options.out)


if __name__ == "__main__":
    main()
