"""YOLOv8n or YOLO26n from COCO weights, fine-tuned: the stock trainer against MAPTrainer.

    python -m experiments.yolo.train_for_map run --data FOLDER --runs FOLDER --out FILE.jsonl    # continues where it was stopped

FOLDER of --data holds VisDrone-640, BCCD, VOC2012-320 and weights/yolov8n_coco_fp32.onnx. Both trainers have the same settings,
images, order and random numbers; they differ from the epoch on in which mosaic is closed. The weights after the last epoch are
judged, by ultralytics' own validation: on val for VisDrone and VOC, on test for BCCD. best.pt, chosen on val, is on record too;
VOC's 2000 val images are looked at only in the end.

HIT-UAV (COCO files and pictures of its normal_json; DontCare becomes ignored regions) and VisDrone have regions that nobody
judges. There the arm "masked" is the control of "map": the stock loss, which does not see windows in these regions. Both are
judged by stepgrad without the regions, and each run's detections are kept, for paired intervals over images (`compare`).

    python -m experiments.yolo.train_for_map run --sets hituav --model yolo26n --weights yolo26n.pt --arms stock masked map ...
    python -m experiments.yolo.train_for_map compare --sets hituav --runs FOLDER --out FILE.jsonl

Needs ultralytics and onnx; the weights are AGPL-3.0 and stay out of the
repository, as do the checkpoints.
"""

from __future__ import annotations

import argparse
import json
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
from stepgrad.data.regions import REGIONS_FILE
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.intervals import Interval
from stepgrad.evaluation.paired import compare
from stepgrad.evaluation.result import EvaluationResult

ARMS = ("stock", "masked", "map")
CALIBRATION_IMAGES = 32
MEASURES = {"map": "COCO AP", "map50": "AP at IoU 0.5"}


@dataclass(frozen=True)
class Set:
    """A dataset, and the split that is judged."""

    folder: str
    judged: str
    val_every_epoch: bool = True


SETS = {
    "visdrone": Set("VisDrone-640", "val"),
    "bccd": Set("BCCD", "test"),
    "voc": Set("VOC2012-320", "val", False),
    "hituav": Set("normal_json", "test", False),
}
HIT_UAV, DONT_CARE = "hituav", "DontCare"
WITH_REGIONS = (HIT_UAV, "visdrone")
MASKED = "masked"


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
        if name == HIT_UAV:
            return hit_uav_as_yolo(data / SETS[name].folder, folder)
        convert(data / SETS[name].folder, folder, "yolo", pictures="link", degenerate="drop")
    return folder / "data.yaml"


def hit_uav_as_yolo(source: Path, folder: Path) -> Path:
    """HIT-UAV's json files, which call `annotations` `annotation`, as labels; its DontCare as ignored regions."""
    regions: dict[str, list[list[float]]] = {}
    for split in ("train", "val", "test"):
        content = json.loads((source / "annotations" / f"{split}.json").read_text(encoding="utf-8"))
        names = [entry["name"] for entry in sorted(content["categories"], key=lambda entry: entry["id"])]
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
        lines: dict[int, list[str]] = {image["id"]: [] for image in content["images"]}
        stems = {image["id"]: Path(image["filename"]).stem for image in content["images"]}
        sizes = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
        for entry in content["annotation"]:
            (x, y, w, h), image = entry["bbox"], entry["image_id"]
            if names[entry["category_id"]] == DONT_CARE:
                regions.setdefault(f"{split}/{stems[image]}", []).append([x, y, x + w, y + h])
                continue
            width, height = sizes[image]
            shares = ((x + w / 2) / width, (y + h / 2) / height, w / width, h / height)
            lines[image].append(" ".join([str(entry["category_id"]), *(f"{share:.9f}" for share in shares)]))
        for image in content["images"]:
            stem = stems[image["id"]]
            text = "".join(f"{line}\n" for line in lines[image["id"]])
            (folder / "labels" / split / f"{stem}.txt").write_text(text, encoding="utf-8")
            (folder / "images" / split / f"{stem}.jpg").symlink_to((source / split / image["filename"]).resolve())
    (folder / REGIONS_FILE).write_text(json.dumps(regions), encoding="utf-8")
    kept = [name for name in names if name != DONT_CARE]
    splits = "".join(f"{split}: images/{split}\n" for split in ("train", "val", "test"))
    text = f"path: {folder.resolve()}\n{splits}names: {json.dumps(kept)}\n"
    (folder / "data.yaml").write_text(text, encoding="utf-8")
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

    return {"stock": None, "masked": MAPTrainer.options(weight=0), "map": MAPTrainer}[arm]


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


def detections_of(file: Path, data_yaml: Path, split: str, plan: Plan, folder: Path) -> Path:
    """The folder with the detections of a split, in the original pixels, as validation counts them."""
    from ultralytics import YOLO

    from stepgrad.models.yolo import save_counted

    yolo = YOLO(file)
    save_counted(yolo)
    place = {"project": str(folder.resolve()), "name": "judged", "exist_ok": True}
    yolo.val(data=str(data_yaml), split=split, imgsz=plan.size, batch=plan.batch, device="cpu", plots=False, **place)
    return folder / "judged" / "counted" / "detections.json"


def result_of(detections: Path, data_yaml: Path, split: str) -> EvaluationResult:
    """COCO AP without ignored regions, by stepgrad."""
    data = load_dataset(data_yaml, split, images_outside=True)
    found: dict[str, list[Run]] = {image: [] for image in data.ids}
    for row in json.loads(detections.read_text(encoding="utf-8")):
        found[str(row["image_id"])].append(row)
    evaluator = Evaluator(len(data.class_names), "coco", data.class_names)
    for i, image in enumerate(data.ids):
        rows = found[image]
        boxes = torch.tensor([row["bbox"] for row in rows], dtype=torch.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = torch.tensor([row["category_id"] for row in rows], dtype=torch.long) - 1  # as COCO files count
        scores = torch.tensor([row["score"] for row in rows], dtype=torch.float64)
        evaluator.update([{"boxes": boxes, "labels": labels, "scores": scores}], [data.target(i)])
    return evaluator.compute()


def compare_runs(options: argparse.Namespace) -> None:
    """Put on record, for each pair of runs of one seed, the gain over "masked" with its interval over images."""
    for (name, model, seed), runs in grouped(load_runs(options.out, "final"), "set", "model", "seed").items():
        if name != HIT_UAV:
            continue
        data_yaml = as_yolo(options.data, options.runs, name)
        judged = {run["arm"]: result_of(Path(run["detections"]), data_yaml, SETS[name].judged) for run in runs}
        for arm in ("stock", "map"):
            if arm in judged and MASKED in judged:
                facts = {"set": name, "model": model, "seed": seed, "arm": arm, "epochs": runs[0]["epochs"]}
                before, after = judged[MASKED], judged[arm]
                once(options.out, "compare", facts, lambda before=before, after=after: gains_of(before, after))


def gains_of(before: EvaluationResult, after: EvaluationResult) -> Run:
    """COCO AP and that of the rarest class, of both and their difference with its interval, in points."""
    found = compare(before, after)
    rarest = min((row for row in before.classes if row.objects), key=lambda row: row.objects)
    of_rarest = next(row for row in found.by_class if row.name == rarest.name)
    return {
        "images": before.images,
        "COCO AP": in_points(found.values, found.difference, found.interval),
        f"{rarest.name} ({rarest.objects} objects)": in_points(
            of_rarest.values, of_rarest.difference, of_rarest.interval
        ),
    }


def in_points(values: Sequence[float], difference: float, interval: Interval) -> list[float]:
    """Both values, their difference, and its interval."""
    return [round(100 * value, 2) for value in (*values, difference, interval.low, interval.high)]


def one_run(options: argparse.Namespace, name: str, arm: str, seed: int, plan: Plan) -> None:
    """A training and what is known of it, unless that is on record."""
    of = SETS[name]

    def make() -> Run:
        data_yaml = as_yolo(options.data, options.runs, name)
        start = options.weights or start_weights(options.data, options.runs, name, data_yaml, plan.size)
        folder = options.runs / f"{name}-{options.model}-{arm}-{seed}-{plan.epochs}x{plan.size}"
        begun = time.monotonic()
        given = {**plan.arguments(), "seed": seed, "val": of.val_every_epoch}
        train(start, data_yaml, folder, arm, given, options.threads)
        seconds = round(time.monotonic() - begun)
        judged = {
            which: judge(folder / "weights" / f"{which}.pt", data_yaml, of.judged, plan)
            for which in (("last", "best") if of.val_every_epoch else ("last",))
        }
        if name in WITH_REGIONS:
            file = detections_of(folder / "weights" / "last.pt", data_yaml, of.judged, plan, folder)
            result = result_of(file, data_yaml, of.judged)
            by_class = {row.name: round(100 * row.ap, 2) for row in result.classes}
            judged["stepgrad"] = {"map": round(100 * result.map, 2), "by_class": by_class}
            return {**judged, "detections": str(file), "seconds": seconds}
        return {**judged, "seconds": seconds}

    once(options.out, "final", {"set": name, "model": options.model, "arm": arm, "seed": seed, **asdict(plan)}, make)


def page(file: Path) -> str:
    """The page of the runs on record: mean (standard deviation) over seeds, and the gain seed by seed."""
    groups, rows = grouped([r for r in load_runs(file, "final") if r["set"] != HIT_UAV], "set", "arm"), []
    for name in sorted({name for name, _ in groups}):
        for measure, title in MEASURES.items():
            stock, ours = (
                {r["seed"]: r["last"][measure] for r in groups.get((name, arm), [])} for arm in ("stock", "map")
            )
            both = sorted(stock.keys() & ours.keys())
            cells = [mean_and_spread([values[seed] for seed in both]) for values in (stock, ours)]
            rows += [[name, SETS[name].judged, str(len(both)), title, *cells, gain(ours, stock)]] if both else []
    header = ["data", "images judged", "seeds", "measure", "stock", "MAPTrainer", "gain"]
    return f"# YOLOv8n, stock and for mAP\n\n{table(header, rows)}\n{with_regions(load_runs(file, 'compare'))}"


def with_regions(runs: Sequence[Run]) -> str:
    """The section on data with ignored regions: gains over the stock loss that does not see them; nothing without runs."""
    rows = []
    for run in runs:
        for measure in (name for name, numbers in run.items() if isinstance(numbers, list)):
            control, value, difference, low, high = run[measure]
            cells = [run["set"], run["model"], str(run["seed"]), str(run["epochs"]), run["arm"], measure]
            rows.append([*cells, f"{control:.1f}", f"{value:.1f}", f"{difference:+.1f} ({low:+.1f} to {high:+.1f})"])
    if not rows:
        return ""
    header = ["data", "model", "seed", "epochs", "arm", "measure", "stock, masked", "arm", "gain, 95 % over images"]
    says = (
        "Judged by stepgrad on test images, ignored regions left out. *stock, masked* is the stock loss that does not see "
        "windows in these regions; *stock* sees them; *map* is MAPTrainer, which does not. Intervals are paired over images."
    )
    return f"\n## Data with ignored regions\n\n{says}\n\n{table(header, rows)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "compare"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--runs", type=Path, required=True, help="folder for data as YOLO has it, weights and checkpoints"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["stock", "map"])
    parser.add_argument("--model", default="yolov8n", help="what the runs are called")
    parser.add_argument("--weights", type=Path, help="a .pt to start from; without it, YOLOv8n of the ONNX file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--close-mosaic", type=int, default=8)
    parser.add_argument("--size", type=int, default=320)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the training images")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.action == "compare":
        compare_runs(options)
        return
    plan = Plan(options.epochs, options.close_mosaic, options.size, options.batch, options.fraction)
    for name in options.sets:
        for seed in options.seeds:
            for arm in options.arms:
                one_run(options, name, arm, seed, plan)


if __name__ == "__main__":
    main()
