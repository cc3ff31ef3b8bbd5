"""What mAP as a loss costs on three kinds of windows, for COCO's ten thresholds, and beside a busy process: as ratios.

    python -m benchmarks.families                 # about four minutes; writes results/families.json and families.md
    python -m benchmarks.families --rounds 3      # rougher

Every case takes its turn in every round, so that a slow spell of the machine hits all alike; ratios are of medians. Real
windows need STEPGRAD_DATA (or --data) with VOC2012-320.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torchvision.models import resnet50

from benchmarks.floor import floor_cases
from benchmarks.loss import Step, loss_step, torchvision_nms
from benchmarks.report import RESULTS, Claim, claims_table, heading, write
from benchmarks.scenes import Scene, clustered_scene, crowding, dense_scene, real_scene
from benchmarks.timing import interleaved, machine

ESTIMATORS = ("radius", "mee")
COCO_SIZES = {"16 x 1000 x 80": (16, 1000, 80), "16 x 300 x 80": (16, 300, 80), "16 x 1000 x 20": (16, 1000, 20)}
SORTS = ("floor: torch.sort", "floor: numpy.argsort")


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process that computes without a pause, as the worker of a data loader does."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: sum(i * i for i in range(100000))"])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


def medians(cases: dict[str, Step], rounds: int) -> dict[str, float]:
    """Median seconds of each case, in turns."""
    return {name: timing.median for name, timing in interleaved(cases, rounds).items()}


def time_family(scene: Scene, rounds: int) -> dict[str, float]:
    cases: dict[str, Step] = {"nms": torchvision_nms(scene)}
    cases |= {estimator: loss_step(scene, estimator=estimator) for estimator in ESTIMATORS}
    cases |= floor_cases(scene, threads=torch.get_num_threads())
    return medians(cases, rounds)


def time_coco(scene: Scene, rounds: int) -> dict[str, float]:
    cases: dict[str, Step] = {}
    for estimator in ESTIMATORS:
        for protocol in ("voc12", "coco"):
            cases[f"{protocol} {estimator}"] = loss_step(scene, protocol=protocol, estimator=estimator)
    return medians(cases, rounds)


def time_images(rounds: int) -> dict[str, float]:
    """The default on eight times the images."""
    return medians({f"{n} images": loss_step(clustered_scene(images=n)) for n in (8, 64)}, rounds)


def time_backbone(rounds: int) -> float:
    """Forward and backward of ResNet-50 for one image of 800 x 800, the size a DETR is trained at: less than its step."""
    network, image = resnet50(weights=None), torch.randn(1, 3, 800, 800)
    return medians({"backbone": lambda: network(image).sum().backward()}, rounds)["backbone"]


def time_floor(rounds: int) -> dict[str, float]:
    """A DETR's batch with all pairs, and with those of the highest thousand or so per image."""
    scene = clustered_scene(16, 300, 80)
    best = [s.flatten().topk(1000).values.min().item() for s in scene.scores]
    cases = {
        "all pairs": loss_step(scene, protocol="coco"),
        "score_floor": loss_step(scene, protocol="coco", score_floor=sum(best) / len(best)),
    }
    return medians(cases, rounds)


def families(data: Path | None) -> dict[str, Scene]:
    scenes = {"made": clustered_scene(), "dense": dense_scene()}
    if data is not None and (data / "VOC2012-320").is_dir():
        scenes["real"] = real_scene(data)
    return scenes


def measure(rounds: int, data: Path | None) -> dict[str, Any]:
    results: dict[str, Any] = {"machine": machine(), "families": {}, "busy": {}, "coco": {}, "windows": {}}
    for name, scene in families(data).items():
        print(f"{name} windows", flush=True)
        results["windows"][name] = asdict(crowding(scene.boxes, [t["boxes"] for t in scene.targets]))
        results["families"][name] = time_family(scene, rounds)
        with busy_process():
            results["busy"][name] = time_family(scene, rounds)
    for name, size in COCO_SIZES.items():
        print(f"COCO's thresholds, {name}", flush=True)
        results["coco"][name] = time_coco(clustered_scene(*size), rounds)
    print("a DETR", flush=True)
    results["floor"] = time_floor(rounds)
    results["backbone"] = time_backbone(max(3, rounds // 2))
    print("more images", flush=True)
    results["images"] = time_images(max(3, rounds // 2))
    return results


def floor_of(row: dict[str, float]) -> float:
    """The faster of the two stable sorts, plus the sweep over pairs."""
    return min(row[sort] for sort in SORTS) + row["floor: pair sweep"]


def claims(results: dict[str, Any]) -> list[Claim]:
    found = []
    targets = {"made": (0.3, 0.2), "dense": (0.4, 0.25), "real": (0.4, 0.25)}
    for name, row in results["families"].items():
        for estimator in ESTIMATORS:
            target, aim = targets[name]
            text = f"{estimator} against torchvision.ops.nms alone, {name} windows"
            found.append(Claim(text, target, row[estimator] / row["nms"], aim=aim))
            busy = results["busy"][name]
            found.append(Claim(f"{text}, beside a busy process", 0.8, busy[estimator] / busy["nms"], aim=0.5))
            found.append(
                Claim(
                    f"{estimator} against the physical floor, {name} windows", 3, row[estimator] / floor_of(row), aim=2
                )
            )
    for size, row in results["coco"].items():
        for estimator in ESTIMATORS:
            ratio = row[f"coco {estimator}"] / row[f"voc12 {estimator}"]
            found.append(Claim(f"`coco` against `voc12`, {estimator}, {size}", 3, ratio, aim=2))
    detr = results["coco"]["16 x 300 x 80"]["coco radius"] / (16 * results["backbone"])
    text = "`coco`, 16 x 300 x 80, against ResNet-50 alone (no transformer) for 16 images of 800 x 800"
    found.append(Claim(text, 2, 100 * detr, unit=" %"))
    floored = results["floor"]["score_floor"] / results["floor"]["all pairs"]
    found.append(Claim("`score_floor` that leaves about 1000 pairs per image, against all 24,000", 1, floored))
    images = results["images"]
    found.append(Claim("64 images against 8, the default", 9, images["64 images"] / images["8 images"], aim=8))
    return found


def render(results: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# mAP as a loss on three kinds of windows",
        heading(results),
        "Medians; every case takes its turn in every round.",
        "8 images x 20 classes (2000 windows per image; real ones as many as selective search gave), forward and backward.",
        claims_table(claims(results)),
        "Seconds (medians):",
        "```json\n"
        + json.dumps({k: v for k, v in results.items() if k not in ("machine", "command")}, indent=1)
        + "\n```",
    ]
    return "\n\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="how often every case is timed")
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with VOC2012-320")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    results = {"command": f"python -m benchmarks.families --rounds {options.rounds}"}
    results |= measure(options.rounds, Path(options.data) if options.data else None)
    write("families", results, render(results), options.out)


if __name__ == "__main__":
    main()
