"""Speed and memory of the evaluator next to torchmetrics and faster-coco-eval, on the same detections in one run.

    python -m benchmarks.evaluator                 # some minutes; writes results/evaluator.{json,md}
    python -m benchmarks.evaluator --rounds 3      # rougher

Detections of 20 classes on as many images as VOC 2007 test has, VOC 2012's area AP at IoU 0.5. The peers do the nearest
thing they can: AP at the single threshold 0.5. All start from what users have: lists of tensors, or for faster-coco-eval
lists of dicts. Needs `pip install ".[detector]" torchmetrics pycocotools`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import stepgrad as sg
from benchmarks.children import peak, run_child
from benchmarks.report import RESULTS, Claim, claims_table, heading, write
from benchmarks.timing import interleaved, machine, version
from experiments.records import table

CLASSES, IMAGES, OBJECTS = 20, 4952, 12_000
SIZES = {"small": 100_000, "large": 400_000}
PEERS = ("torchmetrics", "pycocotools", "faster-coco-eval")
Entries = list[dict[str, Tensor]]


@dataclass(frozen=True)
class Scene:
    preds: Entries
    targets: Entries

    @property
    def detections(self) -> int:
        return sum(len(p["scores"]) for p in self.preds)


def random_scene(detections: int, images: int = IMAGES, objects: int = OBJECTS, seed: int = 0) -> Scene:
    """Objects anywhere; a quarter of the detections sit on an object of their class, scored higher than the others."""
    generator = torch.Generator().manual_seed(seed)
    uniform = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    there, where = _boxes(uniform, objects), torch.randint(images, (objects,), generator=generator)
    labels = torch.randint(CLASSES, (objects,), generator=generator)
    chosen = torch.randint(objects, (detections,), generator=generator)
    on_object = uniform(detections) < 0.25
    jitter = (uniform(detections, 4) - 0.5) * 0.3 * (there[chosen, 2:] - there[chosen, :2]).repeat(1, 2)
    boxes = torch.where(on_object[:, None], there[chosen] + jitter, _boxes(uniform, detections))
    scores = (uniform(detections) * 0.8 + on_object * 0.2).float()
    image = torch.where(on_object, where[chosen], torch.randint(images, (detections,), generator=generator))
    label = torch.where(on_object, labels[chosen], torch.randint(CLASSES, (detections,), generator=generator))
    found = {"boxes": boxes, "scores": scores, "labels": label}
    return Scene(_by_image(found, image, images), _by_image({"boxes": there, "labels": labels}, where, images))


def _boxes(uniform: Callable[..., Tensor], count: int) -> Tensor:
    corner, size = uniform(count, 2) * 300, 20 + uniform(count, 2) * 150
    return torch.cat([corner, corner + size], dim=1)


def _by_image(columns: dict[str, Tensor], image: Tensor, images: int) -> Entries:
    order = torch.argsort(image, stable=True)
    counts = torch.bincount(image, minlength=images).tolist()
    parts = {name: values[order].split(counts) for name, values in columns.items()}
    return [{name: values[i] for name, values in parts.items()} for i in range(images)]


def stepgrad_case(scene: Scene) -> Callable[[], float]:
    def run() -> float:
        evaluator = sg.Evaluator(CLASSES, "voc12")
        evaluator.update(scene.preds, scene.targets)
        return evaluator.compute().map

    return run


def torchmetrics_case(scene: Scene, backend: str) -> Callable[[], float]:
    from torchmetrics.detection import MeanAveragePrecision

    def run() -> float:
        metric = MeanAveragePrecision(iou_thresholds=[0.5], backend=backend)
        metric.warn_on_many_detections = False
        metric.update(scene.preds, scene.targets)
        return float(metric.compute()["map"])

    return run


def faster_coco_eval_case(scene: Scene) -> Callable[[], float]:
    """One threshold, one area range, one limit: the least it can be asked for. Making the dicts is not timed."""
    from faster_coco_eval import COCO, COCOeval_faster

    truth, found = _coco_dicts(scene)

    def run() -> float:
        ground = COCO({**truth, "annotations": [dict(a) for a in truth["annotations"]]})
        evaluation = COCOeval_faster(ground, ground.loadRes([dict(d) for d in found]), "bbox")
        parameters = evaluation.params
        parameters.iouThrs, parameters.maxDets = parameters.iouThrs[:1], [100]
        parameters.areaRng, parameters.areaRngLbl = parameters.areaRng[:1], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
        precision = evaluation.eval["precision"]
        return float(precision[precision > -1].mean())

    return run


def _coco_dicts(scene: Scene) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rows = [
        {
            "image_id": i,
            "category_id": y,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": (x2 - x1) * (y2 - y1),
            "iscrowd": 0,
        }
        for i, target in enumerate(scene.targets)
        for (x1, y1, x2, y2), y in zip(target["boxes"].tolist(), target["labels"].tolist(), strict=True)
    ]
    found = [
        {"image_id": i, "category_id": y, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": s}
        for i, pred in enumerate(scene.preds)
        for (x1, y1, x2, y2), s, y in zip(*(pred[k].tolist() for k in ("boxes", "scores", "labels")), strict=True)
    ]
    truth = {
        "images": [{"id": i} for i in range(len(scene.preds))],
        "categories": [{"id": c} for c in range(CLASSES)],
        "annotations": [{"id": number, **row} for number, row in enumerate(rows, 1)],
    }
    return truth, found


def measure(rounds: int) -> dict[str, Any]:
    scene = random_scene(SIZES["small"])
    cases = {
        "stepgrad, voc12": stepgrad_case(scene),
        "faster-coco-eval": faster_coco_eval_case(scene),
        "torchmetrics (faster_coco_eval)": torchmetrics_case(scene, "faster_coco_eval"),
        "torchmetrics (pycocotools)": torchmetrics_case(scene, "pycocotools"),
    }
    quiet = {name: _quiet(case) for name, case in cases.items()}
    timings = {name: asdict(t) for name, t in interleaved(quiet, rounds).items()}
    values = {name: case() for name, case in quiet.items()}
    large = stepgrad_case(random_scene(SIZES["large"]))
    timings["stepgrad, voc12, 400,000"] = asdict(interleaved({"large": large}, rounds)["large"])
    memory = {str(size): run_child("evaluator", "--memory", size)["extra"] for size in SIZES.values()}
    results = {
        "machine": {**machine(), **{p: version(p) for p in PEERS}},
        "timings": timings,
        "map": values,
        "memory": memory,
    }
    return {**results, "claims": [asdict(claim) for claim in check_claims(timings, memory)]}


def _quiet(case: Callable[[], float]) -> Callable[[], float]:
    def run() -> float:
        with contextlib.redirect_stdout(io.StringIO()):
            return case()

    return run


def check_claims(timings: dict[str, Any], memory: dict[str, int]) -> list[Claim]:
    median = {name: row["median"] for name, row in timings.items()}
    ours = median["stepgrad, voc12"]
    fastest = min(seconds for name, seconds in median.items() if name.startswith("torchmetrics"))
    small, large = (memory[str(size)] for size in SIZES.values())
    return [
        Claim("time against torchmetrics (the faster backend), at the threshold 0.5", 1 / 5, ours / fastest),
        Claim("time against faster-coco-eval, at the threshold 0.5", 1, ours / median["faster-coco-eval"]),
        Claim(
            "memory of four times the detections",
            target=4,
            measured=large / small,
            detail=f"{small / 1e6:.0f} MB beyond the input for 100,000 detections, {large / 1e6:.0f} MB for 400,000",
        ),
    ]


def memory(detections: int) -> dict[str, int]:
    """Peak bytes of one evaluation; the input was there before."""
    for _ in range(2):
        stepgrad_case(random_scene(2000, images=100, objects=300))()  # loads kernels, starts threads
    return peak(stepgrad_case(random_scene(detections)))


def render(results: dict[str, Any]) -> str:
    ours = results["timings"]["stepgrad, voc12"]["median"]
    rows = [
        [
            *(name, f"{row['median']:.3f}", f"{row['fastest']:.3f} - {row['slowest']:.3f}"),
            *(f"{row['median'] / ours:.1f}", f"{results['map'][name]:.6f}" if name in results["map"] else "-"),
        ]
        for name, row in results["timings"].items()
    ]
    parts = [
        "# Speed and memory of the evaluator",
        heading(results),
        f"100,000 detections of {CLASSES} classes on {IMAGES} images, {OBJECTS} objects; medians, every case takes its "
        "turn in every round. The peers average 101 points of recall, stepgrad the area: hence the slightly other mAP.",
        table(["case", "median s", "range s", "relative", "mAP at 0.5"], rows),
        claims_table([Claim(**claim) for claim in results["claims"]]),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often every case is timed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)  # what the child process is asked
    options = parser.parse_args(arguments)
    if options.memory:
        print(json.dumps(memory(options.memory)))
        return
    results = {"command": f"python -m benchmarks.evaluator --rounds {options.rounds}", **measure(options.rounds)}
    write("evaluator", results, render(results), options.out)


if __name__ == "__main__":
    main()
