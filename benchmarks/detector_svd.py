"""Truncated SVD of fc6 and fc7: images per second at 2000 windows, and what it costs in mAP on real photographs.

    python benchmarks/detector_svd.py --data FOLDER --run RUN

FOLDER holds VOC2012-320 and weights; RUN is trained here if it is not there yet: AlexNet with an ImageNet trunk that is
frozen, fc6 and fc7 of 4096 units from random weights. Speed is that of the whole detection, trunk and NMS included, of the
scene of benchmarks/detector.py; every case takes its turn in every round. mAP is that of VOC 2012's area under the curve on
val images that nothing was chosen by, all cases on the same feature maps.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the file runs as a script

from benchmarks.detector import RESULTS, scene  # noqa: E402
from benchmarks.timing import interleaved, machine  # noqa: E402
from stepgrad.detector import FastRCNN, compressed  # noqa: E402
from stepgrad.detector.training.config import TrainConfig, from_dict  # noqa: E402
from stepgrad.detector.training.engine import train  # noqa: E402
from stepgrad.detector.training.inputs import open_data  # noqa: E402
from stepgrad.detector.training.run_folder import open_run  # noqa: E402
from stepgrad.evaluation import Evaluator  # noqa: E402
from stepgrad.files import write_whole  # noqa: E402

RANKS = ((1024, 256), (256, 64))
"""Girshick's, and a quarter of them."""
WHOLE = "as trained"
WINDOWS = 2000
SIDES = "480 x 640"
"""Of the scene's images after scaling, as in training."""
MAX_WINDOWS = 300
"""Per image, for mAP and in training."""


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
    pictures, proposals, _ = scene(1, windows)
    pooled = torch.rand(windows, next(iter(models.values())).head.fc6.in_features)
    whole = interleaved({name: lambda m=model: m(pictures, proposals) for name, model in models.items()}, rounds)  # type: ignore[misc]
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


def render(found: Mapping[str, Any]) -> str:
    lines = ["# Truncated SVD of fc6 and fc7: speed and its price", "", f"`{found['command']}`", ""]
    lines += [f"{key}: {value}  " for key, value in found["machine"].items()]
    lines += [
        "",
        f"AlexNet, fc6 and fc7 of 4096 units. Speed at {found['windows']} windows per image of {SIDES}, trunk and NMS "
        f"included; every case took its turn in each of {found['rounds']} rounds, medians. mAP (voc12) on {found['images']} val "
        f"images of VOC 2012 with at most {MAX_WINDOWS} windows.",
        "",
        "| ranks of fc6, fc7 | weights of the head | images/s | speed-up | speed-up of the head alone | mAP | cost |",
        "|" + "---|" * 7,
    ]
    base = found["speed"][WHOLE]
    for name, row in found["speed"].items():
        faster, head = (base[part]["median"] / row[part]["median"] for part in ("image", "head"))
        value, cost = 100 * found["map"][name], 100 * (found["map"][WHOLE] - found["map"][name])
        lines.append(
            f"| {name} | {found['weights'][name] / 1e6:.1f} M | {1 / row['image']['median']:.2f} | {faster:.2f} x | "
            f"{head:.2f} x | {value:.1f} | {'' if name == WHOLE else f'{cost:.1f}'} |"
        )
    cut = ", ".join(f"{seconds:.0f} s for {name}" for name, seconds in found["cutting"].items())
    lines += [
        "",
        f"Cutting the layers takes its time once per command: {cut}.",
        "",
        "The layers were trained from random weights for some minutes, where the original's come from ImageNet. Singular values "
        "of random weights fall slowly, so the price here need not be that of a network trained to the end: "
        "`stepgrad evaluate --run RUN` with and without `--compress` shows yours.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds VOC2012-320 and weights")
    parser.add_argument("--run", type=Path, required=True, help="the folder of the trained run; trained if absent")
    parser.add_argument("--steps", type=int, default=400, help="of training")
    parser.add_argument("--images", type=int, default=150, help="val images for mAP")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    facts = machine()
    if not (args.run / "config.yaml").exists():
        train(training_config(args.data, args.steps), args.run)
    models, cutting = all_cases(open_run(args.run, "last").model)
    found = {
        "command": f"python benchmarks/detector_svd.py --data FOLDER --run RUN --images {args.images} --rounds {args.rounds}",
        "machine": facts,
        "windows": WINDOWS,
        "rounds": args.rounds,
        "images": args.images,
        "weights": {name: weights_of(model) for name, model in models.items()},
        "cutting": cutting,
        "speed": speeds(models, WINDOWS, args.rounds),
        "map": quality(models, args.data, args.images),
    }
    write_whole(RESULTS / "detector_svd.json", (json.dumps(found, indent=1) + "\n").encode())
    write_whole(RESULTS / "detector_svd.md", render(found).encode())
    print(render(found))


if __name__ == "__main__":
    main()
