"""Where the time of training and detecting goes.

    python benchmarks/detector.py             # some ten minutes; writes results/detector.{json,md}

AlexNet with random weights (the time does not depend on them), 20 classes, images of 375 x 500 scaled to a shortest side
of 600, 500 windows each in training and 2000 in evaluation. The frozen trunk's features come from memory here, as they
would from a warm disk cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the file runs as a script

from benchmarks.timing import machine  # noqa: E402
from stepgrad.detector import FastRCNN, Sampling  # noqa: E402
from stepgrad.files import write_whole  # noqa: E402

RESULTS = Path(__file__).parent / "results"
CLASSES = 20
Scene = tuple[list[torch.Tensor], list[torch.Tensor], list[dict[str, torch.Tensor]]]


def scene(images: int, windows: int, seed: int = 0) -> Scene:
    """Noise with three objects per image; a fifth of the windows lie near an object."""
    g = torch.Generator().manual_seed(seed)
    height, width = 375, 500
    pictures = [torch.randint(0, 256, (3, height, width), generator=g, dtype=torch.uint8) for _ in range(images)]
    proposals, targets = [], []
    for _ in range(images):
        objects = _boxes(3, g, width, height)
        near = objects.repeat_interleave(windows // 15, dim=0)
        near = near + torch.randn(near.shape, generator=g) * 15
        near = torch.cat([near[:, :2], torch.maximum(near[:, 2:], near[:, :2] + 10)], dim=1)
        proposals.append(torch.cat([near, _boxes(windows - len(near), g, width, height)]))
        targets.append({"boxes": objects, "labels": torch.randint(0, CLASSES, (3,), generator=g)})
    return pictures, proposals, targets


def _boxes(n: int, g: torch.Generator, width: int, height: int) -> torch.Tensor:
    corner = torch.rand(n, 2, generator=g) * torch.tensor([width * 0.7, height * 0.7])
    return torch.cat([corner, corner + 20 + torch.rand(n, 2, generator=g) * 100], dim=1)


def training(loss: str, images: int, windows: int, steps: int, freeze: str) -> dict[str, Any]:
    """Median seconds of a step, and of the loss within it."""
    torch.manual_seed(0)
    score = "raw" if loss == "map" else "logprob"
    model = FastRCNN(CLASSES, "alexnet", score=score, loss=loss, freeze=freeze)
    model.train_for(loss, sampling=Sampling(windows, None if loss == "map" else 0.25, 0.0, False))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3, momentum=0.9)
    pictures, proposals, targets = scene(images, 500)
    inputs: list[Any] = model.extract(pictures) if freeze == "trunk" else pictures
    seconds, inside = [], []
    for step in range(steps + 1):
        began = time.perf_counter()
        losses = model(inputs, proposals, targets, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        inside.append(model.metrics["loss_seconds"])
    step_seconds, loss_seconds = statistics.median(seconds[1:]), statistics.median(inside[1:])  # the first compiles
    return {
        "loss": loss,
        "freeze": freeze,
        "images": images,
        "windows": windows,
        "step seconds": step_seconds,
        "loss seconds": loss_seconds,
        "loss share": loss_seconds / step_seconds,
        "images per second": images / step_seconds,
    }


@torch.no_grad()
def evaluation(images: int, windows: int) -> dict[str, Any]:
    """Images per second of detecting, NMS included."""
    model = FastRCNN(CLASSES, "alexnet").eval()
    pictures, proposals, _ = scene(images, windows)
    model(pictures[:1], proposals[:1])
    began = time.perf_counter()
    for picture, boxes in zip(pictures, proposals, strict=True):
        model([picture], [boxes])
    seconds = time.perf_counter() - began
    return {"images": images, "windows": windows, "images per second": images / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(max(1, torch.get_num_threads()))
    found = {
        "machine": machine(),
        "training": [
            training("map", 16, 500, args.steps, "original"),
            training("map", 16, 500, args.steps, "trunk"),
            training("nll", 16, 64, args.steps, "original"),
            training("nll", 2, 64, args.steps, "original"),
        ],
        "evaluation": evaluation(8, 2000),
    }
    write_whole(RESULTS / "detector.json", (json.dumps(found, indent=1) + "\n").encode())
    write_whole(RESULTS / "detector.md", render(found).encode())
    print(render(found))


def render(found: dict[str, Any]) -> str:
    lines = ["# The detector: where the time goes", "", "`python benchmarks/detector.py`", ""]
    lines += [f"{key}: {value}  " for key, value in found["machine"].items()]
    lines += [
        "",
        "| loss | frozen | images x windows | s a step | images/s | loss, share of the step |",
        "|" + "---|" * 6,
    ]
    lines += [
        f"| {r['loss']} | {r['freeze']} | {r['images']} x {r['windows']} | {r['step seconds']:.2f} | "
        f"{r['images per second']:.2f} | {r['loss seconds']:.3f} s, {100 * r['loss share']:.1f} % |"
        for r in found["training"]
    ]
    e = found["evaluation"]
    lines += [
        "",
        f"Evaluation, {e['windows']} windows an image, NMS included: {e['images per second']:.2f} images/s.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
