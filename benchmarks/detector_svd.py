"""Truncated SVD of fc6 and fc7: images per second at 2000 windows, and what it costs in mAP on real photographs.

    python -m benchmarks.detector_svd --data FOLDER --run RUN

FOLDER holds VOC2012-320 and weights; RUN is trained here if it is not there yet: AlexNet with an ImageNet trunk that is
frozen, fc6 and fc7 of 4096 units from random weights. Speed is that of the whole detection, trunk and NMS included, in a
picture of noise with many windows; every case takes its turn in every round. mAP is that of VOC 2012's area under the curve on
val images that nothing was chosen by, all cases on the same feature maps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import heading, write
from benchmarks.timing import interleaved, machine
from experiments.records import table
from stepgrad.detector import FastRCNN, compressed
from stepgrad.detector.training.config import TrainConfig, from_dict
from stepgrad.detector.training.engine import train
from stepgrad.detector.training.inputs import open_data
from stepgrad.detector.training.run_folder import open_run
from stepgrad.evaluation import Evaluator

RANKS = ((1024, 256), (256, 64))
"""Girshick's, and a quarter of them."""
WHOLE = "as trained"
WINDOWS = 2000
SIDES = "480 x 640"
"""Of the scene's images after scaling, as in training."""
MAX_WINDOWS = 300
"""Per image, for mAP and in training."""


def scene(windows: int) -> tuple[Tensor, Tensor]:
    """A picture of noise, and windows in it, a fifth of them near three places."""
    g = torch.Generator().manual_seed(0)
    picture = torch.randint(0, 256, (3, 375, 500), generator=g, dtype=torch.uint8)
    near = _boxes(3, g).repeat_interleave(windows // 15, dim=0)
    near = near + torch.randn(near.shape, generator=g) * 15
    near = torch.cat([near[:, :2], torch.maximum(near[:, 2:], near[:, :2] + 10)], dim=1)
    return picture, torch.cat([near, _boxes(windows - len(near), g)])


def _boxes(n: int, g: torch.Generator) -> Tensor:
    corner = torch.rand(n, 2, generator=g) * torch.tensor([500 * 0.7, 375 * 0.7])
    return torch.cat([corner, corner + 20 + torch.rand(n, 2, generator=g) * 100], dim=1)


def training_config(data: Path, steps: int) -> TrainConfig:
    """Some minutes of cross-entropy: enough to have an mAP to lose."""
    voc = data / "VOC2012-320"
    content = {
        "loss": "nll",
        "protocol": "voc12",
        "data": {
            "path": str(voc),
            "windows": str(voc / "selective_search_fast.npz"),
            "train": "train[:1000]",
            "val": "val",
            "val_images": 20,
            "max_windows": MAX_WINDOWS,
        },
        "model": {
            "backbone": "alexnet",
            "weights": str(data / "weights" / "alexnet_features_imagenet.pt"),
            "freeze": "trunk",
            "shortest_side": 480,
            "longest_side": 640,
        },
        "nll": {
            "steps": steps,
            "images": 4,
            "windows": 32,
            "background_overlap": 0.0,
            "optimizer": "adamw",
            "lr": 1e-4,
            "drop_every": max(1, 3 * steps // 4),
        },
        "run": {"seed": 0, "report": False, "keep": 1, "eval_every": steps, "save_every": steps, "accelerator": "cpu"},
    }
    return from_dict(content)


def all_cases(model: FastRCNN) -> tuple[dict[str, FastRCNN], dict[str, float]]:
    """The model and its cut copies by name, and the seconds that the cutting took."""
    models, seconds = {WHOLE: model.eval()}, {}
    for fc6, fc7 in RANKS:
        began = time.perf_counter()
        models[f"{fc6}, {fc7}"] = compressed(model, fc6, fc7)
        seconds[f"{fc6}, {fc7}"] = time.perf_counter() - began
    return models, seconds


@torch.inference_mode()
def speeds(models: Mapping[str, FastRCNN], windows: int, rounds: int) -> dict[str, Any]:
    """Seconds of detecting in one image, and of its head alone."""
    picture, proposals = scene(windows)
    pooled = torch.rand(windows, next(iter(models.values())).head.fc6.in_features)
    whole = interleaved({name: lambda m=model: m([picture], [proposals]) for name, model in models.items()}, rounds)  # type: ignore[misc]
    heads = interleaved({name: lambda m=model: m.head(pooled) for name, model in models.items()}, rounds)  # type: ignore[misc]
    return {name: {"image": vars(whole[name]), "head": vars(heads[name])} for name in models}


@torch.inference_mode()
def quality(models: Mapping[str, FastRCNN], data: Path, images: int) -> dict[str, float]:
    """mAP of every case on the same images and windows."""
    voc = data / "VOC2012-320"
    val = open_data(str(voc), "val[20:]", str(voc / "selective_search_fast.npz"), images, MAX_WINDOWS)
    names = val.dataset.class_names
    judges = {name: Evaluator(len(names), "voc12", names, boxes="continuous") for name in models}
    for index in range(len(val)):
        example = val.example(index)
        features = models[WHOLE].extract([example.image])  # all cases have the same trunk
        for name, model in models.items():
            judges[name].update(model(features, [example.windows]), [example.target])
    return {name: float(judge.compute().map) for name, judge in judges.items()}


def weights_of(model: FastRCNN) -> int:
    return sum(p.numel() for p in model.head.parameters())


def render(found: dict[str, Any]) -> str:
    base, rows = found["speed"][WHOLE], []
    for name, row in found["speed"].items():
        faster, head = (base[part]["median"] / row[part]["median"] for part in ("image", "head"))
        value, cost = 100 * found["map"][name], 100 * (found["map"][WHOLE] - found["map"][name])
        weights, speed = f"{found['weights'][name] / 1e6:.1f} M", f"{1 / row['image']['median']:.2f}"
        price = "" if name == WHOLE else f"{cost:.1f}"
        rows.append([name, weights, speed, f"{faster:.2f} x", f"{head:.2f} x", f"{value:.1f}", price])
    header = ["weights of the head", "images/s", "speed-up", "speed-up of the head alone", "mAP", "cost"]
    cut = ", ".join(f"{seconds:.0f} s for {name}" for name, seconds in found["cutting"].items())
    parts = [
        "# Truncated SVD of fc6 and fc7: speed and its price",
        heading(found),
        f"AlexNet, fc6 and fc7 of 4096 units. Speed at {found['windows']} windows per image of {SIDES}, trunk and NMS "
        f"included; every case took its turn in each of {found['rounds']} rounds, medians. mAP (voc12) on {found['images']} val "
        f"images of VOC 2012 with at most {MAX_WINDOWS} windows.",
        table(["ranks of fc6, fc7", *header], rows),
        f"Cutting the layers takes its time once per command: {cut}.",
        "The layers were trained from random weights for some minutes, where the original's come from ImageNet. Singular values "
        "of random weights fall slowly, so the price here need not be that of a network trained to the end: "
        "`stepgrad evaluate --run RUN` with and without `--compress` shows yours.",
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds VOC2012-320 and weights")
    parser.add_argument("--run", type=Path, required=True, help="the folder of the trained run; trained if absent")
    parser.add_argument("--steps", type=int, default=400, help="of training")
    parser.add_argument("--images", type=int, default=150, help="val images for mAP")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    facts = machine()
    if not (options.run / "config.yaml").exists():
        train(training_config(options.data, options.steps), options.run)
    models, cutting = all_cases(open_run(options.run, "last").model)
    words = f"--data FOLDER --run RUN --images {options.images} --rounds {options.rounds}"
    found = {
        "command": f"python -m benchmarks.detector_svd {words}",
        "machine": facts,
        "windows": WINDOWS,
        "rounds": options.rounds,
        "images": options.images,
        "weights": {name: weights_of(model) for name, model in models.items()},
        "cutting": cutting,
        "speed": speeds(models, WINDOWS, options.rounds),
        "map": quality(models, options.data, options.images),
    }
    write("detector_svd", found, render(found))


if __name__ == "__main__":
    main()
