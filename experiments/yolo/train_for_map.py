"""YOLOv8n from COCO weights, fine-tuned on drone photos, blood cells and VOC: the stock trainer against MAPTrainer.

    python -m experiments.yolo.train_for_map run --data FOLDER --runs FOLDER --out FILE.jsonl    # continues where it was stopped

FOLDER of --data holds VisDrone-640, BCCD, VOC2012-320 and weights/yolov8n_coco_fp32.onnx. Both trainers have the same settings,
images, order and random numbers; they differ from the epoch on in which mosaic is closed. The weights after the last epoch are
judged, by ultralytics' own validation: on val for VisDrone and VOC, on test for BCCD. best.pt, chosen on val, is on record too;
VOC's 2000 val images are looked at only in the end. Needs ultralytics and onnx; the weights are AGPL-3.0 and stay out of the
repository, as do the checkpoints.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.records import Run, gain, grouped, load_runs, mean_and_spread, once, table
from experiments.yolo.network import WEIGHTS
from experiments.yolo.weights import write_checkpoint
from experiments.yolo.windows import letterbox
from stepgrad.data import load_dataset
from stepgrad.data.convert import convert

ARMS = ("stock", "map")
CALIBRATION_IMAGES = 32
MEASURES = {"map": "COCO AP", "map50": "AP at IoU 0.5"}


@dataclass(frozen=True)
class Set:
    """A dataset, and the split that is judged."""

    folder: str
    judged: str
    val_every_epoch: bool = True


SETS = {"visdrone": Set("VisDrone-640", "val"), "bccd": Set("BCCD", "test"), "voc": Set("VOC2012-320", "val", False)}


@dataclass(frozen=True)
class Plan:
    """What both trainers are given."""

    epochs: int
    close_mosaic: int
    size: int
    batch: int
    fraction: float  # of the training images

    def arguments(self) -> dict[str, Any]:
        return {
            "epochs": self.epochs,
            "close_mosaic": self.close_mosaic,
            "imgsz": self.size,
            "batch": self.batch,
            "fraction": self.fraction,
            "device": "cpu",
            "plots": False,
            "exist_ok": True,
            "patience": 0,
        }


def as_yolo(data: Path, runs: Path, name: str) -> Path:
    """The data.yaml of a dataset, written once; pictures are links, so nothing is put beside the originals."""
    folder = runs / "data" / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        convert(data / SETS[name].folder, folder, "yolo", pictures="link", degenerate="drop")
    return folder / "data.yaml"


def calibration(data_yaml: Path, size: int) -> Iterator[Tensor]:
    images = load_dataset(data_yaml, "train", images_outside=True)
    step = max(1, len(images) // CALIBRATION_IMAGES)
    for i in range(0, min(len(images), step * CALIBRATION_IMAGES), step):
        square, _ = letterbox(images[i][0].float() / 255)
        yield torch.nn.functional.interpolate(square[None], (size, size), mode="bilinear", antialias=True)


def start_weights(data: Path, runs: Path, name: str, data_yaml: Path, size: int) -> Path:
    """The COCO weights as a checkpoint, with the statistics of this dataset at this size."""
    file = runs / f"yolov8n-{name}-{size}.pt"
    if not file.exists():
        write_checkpoint(data / WEIGHTS, calibration(data_yaml, size), file)
    return file


def trainer_of(arm: str) -> Any:
    from stepgrad.models.yolo import MAPTrainer

    return MAPTrainer if arm == "map" else None


def train(start: Path, data_yaml: Path, folder: Path, arm: str, given: dict[str, Any], threads: int) -> None:
    """One training, or the rest of one that was stopped."""
    from ultralytics import YOLO

    last = folder / "weights" / "last.pt"
    epoch = torch.load(last, map_location="cpu", weights_only=False)["epoch"] if last.exists() else None
    if epoch == -1:  # finished
        return
    yolo = YOLO(last if epoch is not None else start)
    yolo.add_callback("on_train_start", lambda _: torch.set_num_threads(threads))
    if epoch is not None:
        yolo.train(resume=True, trainer=trainer_of(arm))
        return
    place = {"data": str(data_yaml), "project": str(folder.parent.resolve()), "name": folder.name}
    yolo.train(trainer=trainer_of(arm), **place, **given)


def judge(file: Path, data_yaml: Path, split: str, plan: Plan) -> dict[str, float]:
    """mAP in points, as ultralytics counts it."""
    from ultralytics import YOLO

    found = YOLO(file).val(
        data=str(data_yaml), split=split, imgsz=plan.size, batch=plan.batch, device="cpu", plots=False, verbose=False
    )
    return {measure: round(100 * float(getattr(found.box, measure)), 2) for measure in MEASURES}


def one_run(options: argparse.Namespace, name: str, arm: str, seed: int, plan: Plan) -> None:
    """A training and what is known of it, unless that is on record."""
    of = SETS[name]

    def make() -> Run:
        data_yaml = as_yolo(options.data, options.runs, name)
        start = start_weights(options.data, options.runs, name, data_yaml, plan.size)
        folder = options.runs / f"{name}-{arm}-{seed}-{plan.epochs}x{plan.size}"
        begun = time.monotonic()
        given = {**plan.arguments(), "seed": seed, "val": of.val_every_epoch}
        train(start, data_yaml, folder, arm, given, options.threads)
        seconds = round(time.monotonic() - begun)
        judged = {
            which: judge(folder / "weights" / f"{which}.pt", data_yaml, of.judged, plan)
            for which in (("last", "best") if of.val_every_epoch else ("last",))
        }
        return {**judged, "seconds": seconds}

    once(options.out, "final", {"set": name, "arm": arm, "seed": seed, **asdict(plan)}, make)


def page(file: Path) -> str:
    """The page of the runs on record: mean (standard deviation) over seeds, and the gain seed by seed."""
    groups, rows = grouped(load_runs(file, "final"), "set", "arm"), []
    for name in sorted({name for name, _ in groups}):
        for measure, title in MEASURES.items():
            stock, ours = ({r["seed"]: r["last"][measure] for r in groups.get((name, arm), [])} for arm in ARMS)
            both = sorted(stock.keys() & ours.keys())
            cells = [mean_and_spread([values[seed] for seed in both]) for values in (stock, ours)]
            rows += [[name, SETS[name].judged, str(len(both)), title, *cells, gain(ours, stock)]] if both else []
    header = ["data", "images judged", "seeds", "measure", "stock", "MAPTrainer", "gain"]
    return f"# YOLOv8n, stock and for mAP\n\n{table(header, rows)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--runs", type=Path, required=True, help="folder for data as YOLO has it, weights and checkpoints"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--close-mosaic", type=int, default=8)
    parser.add_argument("--size", type=int, default=320)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the training images")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    plan = Plan(options.epochs, options.close_mosaic, options.size, options.batch, options.fraction)
    for name in options.sets:
        for seed in options.seeds:
            for arm in options.arms:
                one_run(options, name, arm, seed, plan)


if __name__ == "__main__":
    main()
