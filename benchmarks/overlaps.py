"""What masks, poses and oriented boxes cost: as losses against that of boxes, and judged against other evaluators.

    python -m benchmarks.overlaps                 # about three minutes; writes results/overlaps.json and overlaps.md

Every case takes its turn in every round. Evaluators get what they read fastest: COCO's compressed runs, oriented boxes as
numbers. Their AP must agree to six digits, or nothing is written.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor
from torchvision.ops import box_iou

import stepgrad as sg
from benchmarks.report import Claim, claims_table, heading, write
from benchmarks.timing import interleaved, machine

CLASSES, OBJECTS, WINDOWS, SIDE = 20, 10, 100, 160
LOSS_IMAGES, JUDGED_IMAGES, DETECTIONS = 16, 300, 60
POINTS = 17


def _boxes(random: np.random.Generator, count: int) -> Tensor:
    corners = random.uniform(0, SIDE - 50, (count, 2))
    return torch.from_numpy(np.concatenate([corners, corners + random.uniform(20, 50, (count, 2))], axis=1).round())


def ellipses(boxes: Tensor) -> Tensor:
    """(n, SIDE, SIDE) masks of the ellipses in boxes."""
    y, x = torch.meshgrid(torch.arange(SIDE).double(), torch.arange(SIDE).double(), indexing="ij")
    centre, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    across = (x - centre[:, 0, None, None]) / half[:, 0, None, None]
    along = (y - centre[:, 1, None, None]) / half[:, 1, None, None]
    return across**2 + along**2 <= 1


def oriented(boxes: Tensor, angles: Tensor) -> Tensor:
    """(n, 5) cx, cy, w, h, angle."""
    return torch.cat([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2], angles[:, None]], dim=1)


def poses(boxes: Tensor, random: np.random.Generator) -> Tensor:
    """(n, POINTS, 3) points in boxes, all visible."""
    within = torch.from_numpy(random.uniform(0, 1, (len(boxes), POINTS, 2)))
    points = boxes[:, None, :2] + within * (boxes[:, None, 2:] - boxes[:, None, :2])
    return torch.cat([points, torch.full((len(boxes), POINTS, 1), 2.0)], dim=2)


def images(count: int, windows: int) -> list[dict[str, Any]]:
    """Objects, and windows scattered around them, with every kind of shape."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(count):
        objects, labels = _boxes(random, OBJECTS), torch.from_numpy(random.integers(0, CLASSES, OBJECTS))
        of = torch.from_numpy(random.integers(0, OBJECTS, windows))
        boxes = (objects[of] + torch.from_numpy(random.normal(0, 3, (windows, 4))).round()).clamp(0, SIDE)
        boxes[:, 2:] = torch.maximum(boxes[:, 2:], boxes[:, :2] + 2)
        scores = torch.from_numpy(random.normal(-3, 1, (windows, CLASSES)))
        scores[torch.arange(windows), labels[of]] += 3
        angles = torch.from_numpy(random.uniform(0, np.pi, OBJECTS))
        turned = angles[of] + torch.from_numpy(random.normal(0, 0.1, windows))
        points = poses(objects, random)
        near = points[of] + torch.from_numpy(random.normal(0, 2, (windows, POINTS, 3))) * torch.tensor([1.0, 1, 0])
        made.append(
            {
                "scores": scores,
                "boxes": boxes,
                "guess": labels[of],
                "masks": ellipses(boxes),
                "keypoints": near,
                # Not whole numbers: an IoU of exactly 0.6 is just above or just below a threshold of 0.6, by rounding.
                "oriented": oriented(boxes * 1.0137, turned),
                "target": {
                    "boxes": objects,
                    "labels": labels,
                    "masks": ellipses(objects),
                    "keypoints": points,
                    "oriented": oriented(objects, angles),
                    "areas": (objects[:, 2:] - objects[:, :2]).prod(dim=1),
                },
            }
        )
    return made


def loss_cases() -> dict[str, Callable[[], object]]:
    """Forward and backward of COCO's mAP."""
    made = images(LOSS_IMAGES, WINDOWS)
    scores = [image["scores"].clone().requires_grad_() for image in made]
    boxes, targets = [image["boxes"] for image in made], [image["target"] for image in made]
    tables = [box_iou(b, t["boxes"]) for b, t in zip(boxes, targets, strict=True)]

    def step(key: str = "boxes", overlap: Any = None, **given: Any) -> Callable[[], object]:
        windows, objects = boxes, targets
        if key == "oriented":  # they stand in the place of boxes
            windows = [image[key] for image in made]
            objects = [{"boxes": target[key], "labels": target["labels"]} for target in targets]
        elif overlap is not None:
            given[key] = [image[key] for image in made]
        loss_fn = sg.MAPLoss(CLASSES, "coco", nms_threshold=0.6, overlap=overlap)
        return lambda: torch.autograd.grad(loss_fn(scores, windows, objects, **given), scores)

    return {
        "boxes": step(),
        "given overlaps": step(overlaps=tables),
        "masks": step("masks", sg.overlaps.Masks()),
        "keypoints": step("keypoints", sg.overlaps.Keypoints()),
        "oriented boxes": step("oriented", sg.overlaps.Rotated()),
    }


def _runs(masks: Tensor) -> list[dict[str, Any]]:
    found = coco_mask.encode(np.asfortranarray(masks.permute(1, 2, 0).numpy().astype(np.uint8)))
    return [{"size": run["size"], "counts": run["counts"].decode()} for run in found]


def judged_images() -> list[dict[str, Any]]:
    """Detections and objects of one class each, with masks as runs."""
    made = images(JUDGED_IMAGES, DETECTIONS)
    for image in made:
        image["score"] = image["scores"].gather(1, image["guess"][:, None])[:, 0].sigmoid()
        image["masks"], image["target"]["masks"] = _runs(image["masks"]), _runs(image["target"]["masks"])
    return made


def stepgrad_ap(made: list[dict[str, Any]], task: str) -> float:
    evaluator = sg.Evaluator(CLASSES, "coco", task=task)
    key = "masks" if task == "masks" else "boxes"
    found = [{"scores": i["score"], "labels": i["guess"], key: i[task]} for i in made]
    evaluator.update(found, [{"labels": i["target"]["labels"], key: i["target"][task]} for i in made])
    return evaluator.compute().map


def coco_files(made: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same as content of COCO's files, with oriented boxes as hotcoco has them (`obb`)."""
    objects: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for n, image in enumerate(made):
        target = image["target"]
        for g in range(OBJECTS):
            own = {"obb": target["oriented"][g].tolist(), "segmentation": target["masks"][g]}
            x1, y1, x2, y2 = target["boxes"][g].tolist()
            where = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": float(coco_mask.area(own["segmentation"]))}
            objects.append(
                {"id": len(objects) + 1, "image_id": n, "iscrowd": 0, **_class(target["labels"][g]), **own, **where}
            )
        for d in range(DETECTIONS):
            own = {"obb": image["oriented"][d].tolist(), "segmentation": image["masks"][d]}
            found.append({"image_id": n, "score": float(image["score"][d]), **_class(image["guess"][d]), **own})
    content = {
        "images": [{"id": n, "width": SIDE, "height": SIDE} for n in range(len(made))],
        "categories": [{"id": c + 1, "name": str(c)} for c in range(CLASSES)],
        "annotations": objects,
    }
    return content, found


def _class(label: Tensor) -> dict[str, int]:
    return {"category_id": int(label) + 1}


def pycocotools_ap(content: dict[str, Any], found: list[dict[str, Any]]) -> Callable[[], float]:
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = content
        truth.createIndex()
        results = truth.loadRes([{k: v for k, v in d.items() if k != "obb"} for d in found])

    def judge() -> float:
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation = COCOeval(truth, results, "segm")
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        return float(evaluation.stats[0])

    return judge


def hotcoco_ap(content: dict[str, Any], found: list[dict[str, Any]], kind: str) -> Callable[[], float]:
    import hotcoco

    other = "segmentation" if kind == "obb" else "obb"
    with contextlib.redirect_stdout(io.StringIO()):
        objects = [{k: v for k, v in o.items() if k != other} for o in content["annotations"]]
        truth = hotcoco.COCO({**content, "annotations": objects})
        results = truth.load_res([{k: v for k, v in d.items() if k != other} for d in found])

    def judge() -> float:
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation = hotcoco.COCOeval(truth, results, kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        return float(evaluation.stats[0])

    return judge


def judging_cases() -> dict[str, dict[str, Callable[[], float]]]:
    made = judged_images()
    content, found = coco_files(made)
    return {
        "masks": {
            "stepgrad": lambda: stepgrad_ap(made, "masks"),
            "hotcoco": hotcoco_ap(content, found, "segm"),
            "pycocotools": pycocotools_ap(content, found),
        },
        "oriented boxes": {
            "stepgrad": lambda: stepgrad_ap(made, "oriented"),
            "hotcoco": hotcoco_ap(content, found, "obb"),
        },
    }


def measure(rounds: int) -> dict[str, Any]:
    results: dict[str, Any] = {"machine": machine(), "loss": {}, "judging": {}}
    results["loss"] = {name: t.median for name, t in interleaved(loss_cases(), rounds, warm_up=2).items()}
    for kind, cases in judging_cases().items():
        values = {name: case() for name, case in cases.items()}
        if max(values.values()) - min(values.values()) > 1e-6:
            raise SystemExit(f"the evaluators do not agree about {kind}: {values}")
        times = interleaved(cases, max(3, rounds // 4))
        results["judging"][kind] = {n: {"seconds": t.median, "AP": values[n]} for n, t in times.items()}
    return results


def render(results: dict[str, Any]) -> str:
    loss, judging = results["loss"], results["judging"]
    targets = {"given overlaps": 1.1, "masks": 2.0}
    claims = [
        Claim(f"loss with {name}, against boxes", targets.get(name, 2.0), seconds / loss["boxes"])
        for name, seconds in loss.items()
        if name != "boxes"
    ]
    for kind, cases in judging.items():
        for name in cases:
            if name != "stepgrad":
                target = 0.1 if name == "pycocotools" else 2.0
                ratio = cases["stepgrad"]["seconds"] / cases[name]["seconds"]
                claims.append(Claim(f"evaluator, {kind}, against {name}", target, ratio))
    about = (
        f"Loss: {LOSS_IMAGES} images of {WINDOWS} windows and {OBJECTS} objects, masks of {SIDE} x {SIDE}, {CLASSES} classes, "
        "`coco`, forward and backward, masks as dense tensors. Evaluators: "
        f"{JUDGED_IMAGES} images of {DETECTIONS} detections, `coco`; AP equal to six digits. hotcoco and pycocotools "
        "read and index their files before the clock starts. Medians; every case takes its turn in every round."
    )
    page = ["# What masks, poses and oriented boxes cost", heading(results), about, claims_table(claims)]
    return "\n\n".join(page) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="how often every case is timed")
    options = parser.parse_args(arguments)
    results = {"command": f"python -m benchmarks.overlaps --rounds {options.rounds}"} | measure(options.rounds)
    write("overlaps", results, render(results))


if __name__ == "__main__":
    main()
