"""Speed and memory of the evaluator next to hotcoco, faster-coco-eval, pycocotools and torchmetrics, in one run.

    python -m benchmarks.evaluator                 # some minutes; writes results/evaluator.{json,md}
    python -m benchmarks.evaluator --rounds 3      # rougher

COCO AP (ten thresholds, 101 recall levels): boxes of 20 classes on as many images as VOC 2007 test has, and masks of 160 x 160
pixels. Every tool starts from the least that its users have: stepgrad and torchmetrics from lists of dicts of tensors, the
others from annotations and results that they have read, so that only evaluate() and accumulate() are timed. "files" begins with
COCO's two json files instead. All find the same AP to six digits, but torchmetrics, which differs in the sixth digit for boxes
and more for masks: its AP is shown, not checked.
Needs `pip install ".[bench]" hotcoco`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import stepgrad as sg
from benchmarks.children import peak, run_child
from benchmarks.report import RESULTS, Claim, claims_table, heading, write
from benchmarks.timing import interleaved, machine, version
from experiments.records import commit, table
from stepgrad.data import COCODataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import get_protocol

CLASSES, IMAGES, OBJECTS = 20, 4952, 12_000
SIZES = {"small": 100_000, "large": 400_000}
PEERS = ("hotcoco", "faster-coco-eval", "pycocotools", "torchmetrics")
KINDS = ("boxes", "masks", "files")
SIDE = 160  # pixels of the images with masks
Entries = list[dict[str, Any]]


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


def with_masks(scene: Scene, seed: int = 0) -> Scene:
    """The same with an ellipse in each box, as COCO's run lengths."""
    from pycocotools.mask import encode

    y, x = np.mgrid[:SIDE, :SIDE]

    def rle(box: list[float]) -> dict[str, Any]:
        x1, y1, x2, y2 = (max(0.0, v * SIDE / 512) for v in box)  # boxes lie within 512 pixels
        inside = ((2 * x - x1 - x2) / (x2 - x1)) ** 2 + ((2 * y - y1 - y2) / (y2 - y1)) ** 2 <= 1.0
        return encode(np.asfortranarray(inside.astype(np.uint8)))

    entries = [
        [{**entry, "masks": [rle(box) for box in entry["boxes"].tolist()]} for entry in side]
        for side in (scene.preds, scene.targets)
    ]
    return Scene(*entries)


def stepgrad_case(scene: Scene, task: str = "boxes") -> Callable[[], float]:
    def run() -> float:
        evaluator = sg.Evaluator(CLASSES, "coco", task=task)
        evaluator.update(scene.preds, scene.targets)
        return evaluator.compute().map

    return run


def torchmetrics_case(scene: Scene, backend: str, kind: str = "bbox") -> Callable[[], float]:
    from torchmetrics.detection import MeanAveragePrecision

    preds, targets = (_with_pixels(side) if kind == "segm" else side for side in (scene.preds, scene.targets))

    def run() -> float:
        metric = MeanAveragePrecision(iou_type=kind, backend=backend)
        metric.warn_on_many_detections = False
        metric.update(preds, targets)
        return float(metric.compute()["map"])

    return run


def _with_pixels(entries: Entries) -> Entries:
    """Masks as torchmetrics takes them: (n, H, W)."""
    from pycocotools.mask import decode

    pixels = [np.stack([np.zeros((SIDE, SIDE)), *map(decode, entry["masks"])])[1:] for entry in entries]
    return [
        {**entry, "masks": torch.from_numpy(masks.astype(np.bool_))}
        for entry, masks in zip(entries, pixels, strict=True)
    ]


def coco_case(scene: Scene, tool: str, kind: str = "bbox") -> Callable[[], float]:
    """A tool with the interface of pycocotools, all of COCO's sizes and limits; what it reads is read before."""
    api, evaluation = _coco_tools()[tool]
    truth, found = _coco_dicts(scene)
    with contextlib.redirect_stdout(io.StringIO()):
        ground = _loaded(api, truth)
        results = getattr(ground, "loadRes", None) or ground.load_res
        detections = results([dict(row) for row in found])

    return lambda: _coco_ap(evaluation(ground, detections, kind))


def stepgrad_files(folder: Path) -> Callable[[], float]:
    def run() -> float:
        data = COCODataset(folder / "truth.json", need_images=False)
        evidence = evidence_from(data, read_detections(folder / "found.json", data))
        return evaluate_under(evidence, get_protocol("coco")).map

    return run


def coco_files(folder: Path, tool: str) -> Callable[[], float]:
    """A tool with the interface of pycocotools, from two files on."""
    api, evaluation = _coco_tools()[tool]

    def run() -> float:
        ground = api(str(folder / "truth.json"))
        results = getattr(ground, "loadRes", None) or ground.load_res
        return _coco_ap(evaluation(ground, results(str(folder / "found.json")), "bbox"))

    return run


def _coco_ap(judged: Any) -> float:
    judged.evaluate()
    judged.accumulate()
    precision = np.asarray(judged.eval["precision"])[..., 0, -1]  # all sizes, 100 detections
    return float(precision[precision > -1].mean())


def _coco_tools() -> dict[str, tuple[Any, Any]]:
    import faster_coco_eval
    import hotcoco
    from pycocotools import coco, cocoeval

    return {
        "hotcoco": (hotcoco.COCO, hotcoco.COCOeval),
        "faster-coco-eval": (faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster),
        "pycocotools": (coco.COCO, cocoeval.COCOeval),
    }


def _loaded(api: Any, truth: dict[str, Any]) -> Any:
    """Annotations; pycocotools takes a file or nothing."""
    if api.__module__ != "pycocotools.coco":
        return api(truth)
    ground = api()
    ground.dataset = truth
    ground.createIndex()
    return ground


def _coco_dicts(scene: Scene) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rows = [
        {
            "image_id": i,
            "category_id": y,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": (x2 - x1) * (y2 - y1),
            "iscrowd": 0,
            **mask,
        }
        for i, target in enumerate(scene.targets)
        for (x1, y1, x2, y2), y, mask in zip(
            target["boxes"].tolist(), target["labels"].tolist(), _segmentations(target), strict=True
        )
    ]
    found = [
        {"image_id": i, "category_id": y, "score": s, **(mask or {"bbox": [x1, y1, x2 - x1, y2 - y1]})}
        for i, pred in enumerate(scene.preds)
        for (x1, y1, x2, y2), s, y, mask in zip(
            *(pred[k].tolist() for k in ("boxes", "scores", "labels")), _segmentations(pred), strict=True
        )
    ]
    truth = {
        "info": {},
        "images": [{"id": i, "height": SIDE, "width": SIDE, "file_name": ""} for i in range(len(scene.preds))],
        "categories": [{"id": c, "name": str(c)} for c in range(CLASSES)],
        "annotations": [{"id": number, **row} for number, row in enumerate(rows, 1)],
    }
    return truth, found


def _segmentations(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Per row the mask as COCO's json has it; nothing where there are boxes only."""
    if "masks" not in entry:
        return [{}] * len(entry["labels"])
    return [{"segmentation": {**m, "counts": m["counts"].decode()}} for m in entry["masks"]]


def measure(rounds: int) -> dict[str, Any]:
    scene = random_scene(SIZES["small"])
    small = with_masks(random_scene(5000, images=500, objects=1500))
    timings: dict[str, Any] = {}
    values: dict[str, float] = {}
    for what in KINDS:
        cases = _cases(what, scene, small)
        quiet = {name: _quiet(case, name, values) for name, case in cases.items()}
        slow = {name: quiet.pop(name) for name in list(quiet) if name.endswith(("pycocotools", "torchmetrics"))}
        timings |= {name: asdict(t) for name, t in interleaved(quiet, rounds).items()}
        timings |= {name: asdict(t) for name, t in interleaved(slow, 1, warm_up=0).items()}
        _check_equal({name: value for name, value in values.items() if name.startswith(what)})
    one, many = stepgrad_case(scene), _resampling_case(scene)
    timings |= {
        name: asdict(t) for name, t in interleaved({"one evaluation": one, "1,000 resamples": many}, rounds).items()
    }
    large = stepgrad_case(random_scene(SIZES["large"]))
    timings["boxes: stepgrad, 400,000"] = asdict(interleaved({"large": large}, rounds)["large"])
    memory = {str(size): run_child("evaluator", "--memory", size)["extra"] for size in SIZES.values()}
    results = {
        "machine": {**machine(), **{p: version(p) for p in PEERS}, "commit": commit()},
        "timings": timings,
        "map": values,
        "memory": memory,
    }
    return {**results, "claims": [asdict(claim) for claim in check_claims(timings, memory)]}


def _cases(what: str, scene: Scene, small: Scene) -> dict[str, Callable[[], float]]:
    """The tools on boxes, on masks, or on files of boxes."""
    if what == "files":
        folder = Path(tempfile.mkdtemp())
        for name, content in zip(("truth", "found"), _coco_dicts(scene), strict=True):
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return {
            "files: stepgrad": stepgrad_files(folder),
            **{f"files: {tool}": coco_files(folder, tool) for tool in PEERS[:-1]},
        }
    data, kind = (scene, "bbox") if what == "boxes" else (small, "segm")
    return {
        f"{what}: stepgrad": stepgrad_case(data, what),
        **{f"{what}: {tool}": coco_case(data, tool, kind) for tool in PEERS[:-1]},
        f"{what}: torchmetrics": torchmetrics_case(data, "faster_coco_eval", kind),
    }


def _resampling_case(scene: Scene) -> Callable[[], float]:
    """The interval of mAP, after the evaluation."""
    evaluator = sg.Evaluator(CLASSES, "coco")
    evaluator.update(scene.preds, scene.targets)
    result = evaluator.compute()
    return lambda: result.interval(resamples=1000)[0]


def _check_equal(values: dict[str, float]) -> None:
    """Raise unless all tools found the same AP, but torchmetrics, whose number is only shown."""
    ours = next(value for name, value in values.items() if name.endswith("stepgrad"))
    for name, value in values.items():
        if abs(value - ours) > 5e-7 and not name.endswith("torchmetrics"):
            raise RuntimeError(f"{name} found {value}, stepgrad {ours}")


def _quiet(case: Callable[[], float], name: str, values: dict[str, float]) -> Callable[[], None]:
    """The case without what it prints; its value goes to `values`."""

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            values[name] = case()

    return run


def check_claims(timings: dict[str, Any], memory: dict[str, int]) -> list[Claim]:
    median = {name: row["median"] for name, row in timings.items()}
    small, large = (memory[str(size)] for size in SIZES.values())
    against = [
        Claim(f"{what}: time against {tool}", target, median[f"{what}: stepgrad"] / median[f"{what}: {tool}"])
        for what in KINDS
        for tool, target in (("hotcoco", 1.0), ("faster-coco-eval", 1.0), ("torchmetrics", 0.2))
        if f"{what}: {tool}" in median
    ]
    return [
        *against,
        Claim("1,000 resamples against one evaluation", 5, median["1,000 resamples"] / median["one evaluation"]),
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
    median = {name: row["median"] for name, row in results["timings"].items()}
    ours = {what: median[f"{what}: stepgrad"] for what in KINDS}
    rows = [
        [
            *(name, f"{row['median']:.3f}", f"{row['fastest']:.3f} - {row['slowest']:.3f}"),
            *(
                f"{row['median'] / ours.get(name[:5], ours['boxes']):.2f}",
                f"{results['map'].get(name, float('nan')):.6f}",
            ),
        ]
        for name, row in results["timings"].items()
    ]
    parts = [
        "# Speed and memory of the evaluator",
        heading(results),
        f"COCO AP. Boxes: 100,000 detections of {CLASSES} classes on {IMAGES} images, {OBJECTS} objects. Masks: 5,000 of "
        f"{SIDE} x {SIDE} pixels on 500 images. Medians; every case takes its turn in every round, but pycocotools and "
        "torchmetrics once. stepgrad and torchmetrics are timed from lists of dicts of tensors on, with all checks of the input; "
        "the others from data that they have read on, with COCO's four sizes and three limits. Files: the boxes from "
        "COCO's two json files on, read, checked and judged. The run stops unless all find "
        "the same AP to six digits, but torchmetrics, whose AP is shown and not checked.",
        table(
            ["case", "median s", "range s", "relative", "AP"], [[c.replace("nan", "-") for c in row] for row in rows]
        ),
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
