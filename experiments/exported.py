"""What changes the mAP of an exported detector: resize kernel, colour, NMS and limits, int8.

    python -m experiments.exported --data FOLDER --dynamic yolo11n.onnx --work DIR --out FILE.jsonl

YOLOv8n as exported (float, 640 x 640 pixels, COCO's classes, of which VOC's count) on the first images of VOC2012-320's val
list, by the protocol `coco`. Each row changes one thing, and `stepgrad evaluate --model ... --against ...` prints the same
numbers. Images have a longest side of 320 and are enlarged here; where a kernel shrinks them, YOLO11n sees 160 pixels.
Intervals are 95 %, paired over images.

`int8` is onnxruntime's static quantiser (QDQ, a scale per tensor, MinMax, calibrated on 32 images of the train list) on the whole
graph; `int8, end in float` leaves out what decodes boxes and joins them with scores, from where the head's branches meet.
"""

from __future__ import annotations

import argparse
import io
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.records import Run, about, load_runs, once, table
from stepgrad.cli.judged import only_images
from stepgrad.data import load_dataset
from stepgrad.data.base import DetectionDataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.evaluation.paired import compare
from stepgrad.evaluation.result import evaluate_under
from stepgrad.files import write_whole
from stepgrad.metric.protocol import COCO
from stepgrad.models.exported.causes import CauseStage, Views, stages_between
from stepgrad.models.exported.limits import Detected
from stepgrad.models.exported.pipeline import Pipeline, as_detections, open_pipeline
from stepgrad.models.exported.pixels import prepare
from stepgrad.models.exported.recipe import Recipe

CALIBRATION = 32
FIELDS = ("boxes", "scores", "labels")
WORDS = (
    *("kernel=nearest", "colour=bgr", "resize=stretch"),
    *("nms=0.45", "max_detections=100", "max_detections=20", "min_score=0.25"),
    "multi_label=false",
)


def quantise(model: Path, to: Path, pictures: Sequence[Any], leave_out: Sequence[str]) -> Path:
    """The model in int8, by onnxruntime."""
    from onnxruntime import quantization as q

    inputs = iter([{"images": pixels[None]} for pixels in pictures])

    class Reader(q.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return next(inputs, None)

    if not to.exists():
        q.quantize_static(
            str(model), str(to), Reader(), quant_format=q.QuantFormat.QDQ, nodes_to_exclude=list(leave_out)
        )
    return to


def decoding(model: Path) -> list[str]:
    """The nodes that decode boxes and join them with scores: all that follow the places where the head's branches meet."""
    import onnx

    after: set[str] = set()
    names = []
    for node in onnx.load(str(model)).graph.node:
        if node.name.startswith("/model.22/Concat") or set(node.input) & after:
            after |= set(node.output)
            names.append(node.name)
    return names


def ways(
    model: Path, dynamic: Path, data: DetectionDataset, train: DetectionDataset, work: Path
) -> Iterator[tuple[str, Pipeline, Pipeline]]:
    """Every row: its name, and both pipelines."""
    plain = open_pipeline(model, data.class_names)
    for word in WORDS:
        yield word, plain, replace(open_pipeline(model, data.class_names, [word]), network=plain.network)
    pictures = [prepare(train.image(i), Recipe())[0] for i in range(CALIBRATION)]
    for name, leave_out in (("int8", []), ("int8, end in float", decoding(model))):
        file = quantise(model, work / f"{name.replace(', ', '-').replace(' ', '-')}.onnx", pictures, leave_out)
        yield name, plain, open_pipeline(file, data.class_names)
    small = open_pipeline(dynamic, data.class_names, ["size=160"])
    for word in ("kernel=pillow-linear", "kernel=nearest"):
        other = open_pipeline(dynamic, data.class_names, ["size=160", word])
        yield f"YOLO11n at 160: {word}", small, replace(other, network=small.network)


def measure(options: argparse.Namespace) -> None:
    """Run every stage of every row on every image, each network once for each input, and put the rows on record."""
    source = options.data / "VOC2012-320"
    data = only_images(load_dataset(source, "val"), 0, options.images)
    train = load_dataset(source, "train")
    model = options.data / "weights" / "yolov8n_coco_fp32.onnx"
    rows = list(ways(model, options.dynamic, data, train, options.work))
    stages: list[list[CauseStage]] = [stages_between(start, end) for _, start, end in rows]
    found = [detected(data, i, stages, options.work / f"{data.ids[i]}.npz") for i in range(len(data))]
    facts = {"images": len(data), "cpu": platform.processor() or platform.machine()}
    for r, (name, _, _) in enumerate(rows):
        once(
            options.out, "row", {"name": name, **facts}, lambda r=r: judged(data, stages[r], [one[r] for one in found])
        )  # type: ignore[misc]


def detected(
    data: DetectionDataset, index: int, rows: Sequence[Sequence[CauseStage]], file: Path
) -> list[list[Detected]]:
    """The detections of every stage of every row in one image; those of an image that was done before are read again."""
    if not file.exists():
        views = Views(data.image(index))
        made = [stage.detect(views) for row in rows for stage in row]
        arrays = {f"{i} {name}": values for i, one in enumerate(made) for name, values in vars(one).items()}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write_whole(file, buffer.getvalue())
        print(f"{index + 1} of {len(data)} images", flush=True)
    with np.load(file) as stored:
        every = iter(Detected(*(stored[f"{i} {name}"] for name in FIELDS)) for i in range(sum(map(len, rows))))
        return [[next(every) for _ in row] for row in rows]


def judged(data: DetectionDataset, stages: Sequence[CauseStage], found: Sequence[Sequence[Detected]]) -> Run:
    """mAP at every stage, and the paired interval of the whole difference."""
    of_stages = list(zip(*found, strict=True))
    results = [evaluate_under(evidence_from(data, as_detections(one)), COCO) for one in of_stages]
    whole = compare(results[0], results[-1], resamples=1000, seed=0)
    steps = zip(stages[1:], results, results[1:], strict=False)
    return {
        "start": results[0].map,
        "end": results[-1].map,
        "interval": [whole.interval.low, whole.interval.high],
        "parts": [[stage.cause, 100 * (now.map - was.map)] for stage, was, now in steps],
    }


def page(runs: Path) -> str:
    """The page of the rows on record."""
    rows = load_runs(runs, "row")
    cells = [
        [
            f"`{row['name']}`" if "=" in row["name"] else row["name"],
            f"{100 * row['start']:.1f}",
            f"{100 * row['end']:.1f}",
            f"{100 * (row['end'] - row['start']):+.2f} ({100 * row['interval'][0]:+.2f} to {100 * row['interval'][1]:+.2f})",
            ", ".join(f"{cause} {points:+.2f}" for cause, points in row["parts"]),
        ]
        for row in rows
    ]
    where = f"{rows[0]['images']} images, {rows[0]['cpu']}, commit {rows[0]['commit']}" if rows else "no rows yet"
    heads = ["changed", "before", "after", "points of mAP", "by cause"]
    return f"# Exported models: what changes mAP\n{about(__doc__)}\n{where}\n\n{table(heads, cells)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with VOC2012-320 and weights")
    parser.add_argument("--dynamic", type=Path, required=True, help="a YOLO11n exported with a dynamic input")
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="folder for the quantised models and for what was detected in each image",
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=200)
    measure(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
