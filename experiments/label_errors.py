"""Wrong labels found again: precision of `find_label_errors`, of hotcoco and of cleanlab on the same detections.

    python -m experiments.label_errors --set voc_train --data FOLDER --cache DIR --out FILE.jsonl      # then --set bccd

5 % of the labels are deleted and 5 % get another class, drawn at random, with several seeds. Then each tool lists what it takes
for wrong, surest first. *Precision at 100* is the share of different spoilt labels among the first 100 places of its list. A
place that names a spoilt label again is wrong, and so is one that names an error which was in the data before. A place is right
if it names the swapped label, or if its box overlaps the deleted or swapped one by an IoU of 0.5 or more, of whatever class.

`voc_train`: the training images of VOC2012-320 from the 2000th on, detections of YOLOv8n as it was trained on COCO, for VOC's
classes; `voc`: the same for the 2000 val images, runs of an earlier order only. `bccd`: all 364 images, detections of heads on
YOLOv8n's features; each image by a head of 64 units that was trained on the spoilt labels of the other three quarters
(task-aligned labels, 1500 steps of 8 images, rate 0.003, weight decay 1). Of all the 100 best detections per image after NMS at
0.6 with a score of at least 0.01. The windows come from `python -m experiments.yolo.windows`.

The order `likely` was chosen among about twenty on the first 2000 training images of VOC, seeds 11 and 12: on no image that is
counted here. hotcoco stays ahead of it at 100 places of VOC. It goes by the score alone, takes no box for a new object that
overlaps any label by 0.1, and takes no label for wrong that a detection of its class has found.

* `likely`: `find_label_errors(evidence, "coco")`. No box was redrawn and no label put in, so all that it says of these kinds
  counts as wrong here; `likely, add and swap` has only the two kinds of errors that the other tools are asked for.
* `gain`: the same with `order="gain"`: by what mAP would gain.
* `hotcoco`: `COCOeval.image_diagnostics(score_thr=0.01)["label_errors"]`, in its order: by the score of the detection.
* `cleanlab`: boxes by `compute_overlooked_box_scores` and `compute_swap_box_scores` (ObjectLab), lowest first. By default it
  looks at detections with a score of at least 0.95 only, of which these detectors have few; so also with 0.5.
* `earlier order`: `likely` by gain, number of labels and squared precision of the class, as it was before. These rows and
  cleanlab's are from runs before, on the same spoilt labels and detections: hotcoco's list and `score` gave the same again.
* `score`: false alarms by their score, except those that overlap a label of their class by an IoU of 0.5 or more.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from experiments.records import Run, about, grouped, load_runs, mean_and_spread, once, table
from experiments.yolo.own_logits import detect, last_layers, with_logits
from experiments.yolo.sets import SETS, standardised
from stepgrad.evaluation import Evaluator, Evidence, find_label_errors
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.boxes import overlaps_with
from stepgrad.metric.protocol import COCO
from stepgrad.models.fine_tuning import ImageWindows
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import Plan, Task, scores_of, train
from stepgrad.models.fine_tuning.windows import labelled

SHARE = 0.05
FOLDS = 4
LEAST_SCORE = 0.01
PLACES = (100, 500)
Box = NDArray[np.float64]


@dataclass(frozen=True)
class Spoilt:
    """A label that was made wrong."""

    image: int
    box: Box
    row: int | None  # in the objects of the evidence; None: deleted


@dataclass(frozen=True)
class Place:
    """A place of a tool's list."""

    image: int
    box: Box
    row: int | None = None  # of the label that it takes for wrong


def spoil(images: Sequence[ImageWindows], classes: int, seed: int) -> tuple[list[ImageWindows], list[Spoilt]]:
    """The images with some labels deleted and some swapped; difficult ones are left alone."""
    rng = np.random.default_rng(seed)
    counted = [(i, g) for i, image in enumerate(images) for g in np.flatnonzero(~image.target["difficult"].numpy())]
    drawn = rng.permutation(len(counted))[: 2 * round(SHARE * len(counted))]
    deleted, swapped = ({counted[n] for n in half} for half in np.split(drawn, 2))
    after, spoilt, row = [], [], 0
    for i, image in enumerate(images):
        target = {name: value for name, value in image.target.items() if isinstance(value, torch.Tensor)}
        labels, stays = target["labels"].clone(), torch.ones(len(target["labels"]), dtype=torch.bool)
        for g, box in enumerate(target["boxes"].double().numpy()):
            if (i, g) in deleted:
                stays[g] = False
                spoilt.append(Spoilt(i, box, None))
                continue
            if (i, g) in swapped:
                labels[g] = (labels[g] + rng.integers(1, classes)) % classes
                spoilt.append(Spoilt(i, box, row))
            row += 1
        changed = {name: value[stays] for name, value in {**target, "labels": labels}.items()}
        after.append(image._replace(target=changed))
    return after, spoilt


def evidence_of(images: Sequence[ImageWindows], scores: Sequence[torch.Tensor], names: Sequence[str]) -> Evidence:
    """The best detections of each image by these logits (N, K)."""
    evaluator = Evaluator(len(names), "coco", names)
    for i, (image, logits) in enumerate(zip(images, scores, strict=True)):
        found = detect(image, logits)
        probability = found.logits.double().sigmoid()
        sure = probability >= LEAST_SCORE
        kept = {"boxes": found.boxes[sure], "labels": found.classes[sure], "scores": probability[sure]}
        evaluator.update([kept], [{**image.target, "image_id": i + 1}])
    return evaluator.evidence()


def out_of_fold(images: Sequence[ImageWindows], classes: int, seed: int) -> list[torch.Tensor]:
    """Logits of each image by a head that was trained on the other folds."""
    scores: dict[int, torch.Tensor] = {}
    for fold in range(FOLDS):
        own, others = ([i for i in range(len(images)) if (i % FOLDS == fold) == mine] for mine in (True, False))
        rest, held_out = standardised([images[i] for i in others], [images[i] for i in own])
        torch.manual_seed(seed)
        head = nn.Sequential(nn.Linear(rest[0].features.shape[1], 64), nn.SiLU(), nn.Linear(64, classes))
        nn.init.constant_(head[-1].bias, -4.0)  # type: ignore[arg-type]
        reading = Reading(classes, labels="aligned")
        task = Task(reading, COCO, 0.6, reading.stock_loss)
        plan = Plan("stock", 1500, 8, 3e-3, 1.0)
        trained = train(head, labelled("train", rest, classes), task, plan, seed, lambda: None)
        scores.update(zip(own, scores_of(trained, labelled("held_out", held_out, classes), task), strict=True))
    return [scores[i] for i in range(len(images))]


def by_us(evidence: Evidence, **options: Any) -> list[Place]:
    return [Place(e.image, np.array(e.box), e.object) for e in find_label_errors(evidence, COCO, **options)]


def by_score(evidence: Evidence) -> list[Place]:
    """False alarms, surest first, one per place."""
    found, there = evidence.detections, evidence.objects
    places: list[Place] = []
    taken: dict[int, list[Box]] = {}
    for row in np.argsort(-found.scores, kind="stable"):
        image, box = int(found.images[row]), found.boxes[row]
        own = (there.images == image) & (there.labels == found.labels[row])
        near = np.concatenate([there.boxes[own], *(b[None] for b in taken.get(image, []))])
        if not (overlaps_with(box, near, 0.0) >= 0.5).any():
            taken.setdefault(image, []).append(box)
            places.append(Place(image, box))
    return places


def by_hotcoco(evidence: Evidence) -> list[Place]:
    from hotcoco import COCO as Annotations
    from hotcoco import COCOeval

    there, found = evidence.objects, evidence.detections
    wh = np.concatenate([there.boxes[:, :2], there.sizes], axis=1)
    annotations = [
        {
            "id": g + 1,
            "image_id": int(there.images[g]) + 1,
            "category_id": int(there.labels[g]) + 1,
            "bbox": wh[g].tolist(),
            "area": float(there.sizes[g].prod()),
            "iscrowd": int(there.difficult[g]),  # ignored, as the others ignore them
        }
        for g in range(len(there))
    ]
    images = [{"id": i + 1, "width": 10_000, "height": 10_000} for i in range(evidence.num_images)]
    categories = [{"id": c + 1, "name": name} for c, name in enumerate(evidence.class_names)]
    truth = Annotations({"images": images, "annotations": annotations, "categories": categories})
    rows = np.concatenate([found.boxes[:, :2], found.sizes], axis=1)
    results = [
        {"image_id": int(i) + 1, "category_id": int(c) + 1, "bbox": box.tolist(), "score": float(s)}
        for i, c, box, s in zip(found.images, found.labels, rows, found.scores, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        errors = evaluation.image_diagnostics(iou_thr=0.5, score_thr=LEAST_SCORE)["label_errors"]
    return [
        Place(e["image_id"] - 1, found.boxes[e["dt_id"] - 1], None if e["gt_id"] is None else e["gt_id"] - 1)
        for e in errors
    ]


def by_cleanlab(evidence: Evidence, threshold: float | None) -> list[Place]:
    from cleanlab.object_detection.rank import compute_overlooked_box_scores, compute_swap_box_scores

    there, found = evidence.objects, evidence.detections
    labels, predictions, rows, detections = [], [], [], []
    for i in range(evidence.num_images):
        own = np.flatnonzero(there.images == i)
        of_image = np.flatnonzero(found.images == i)
        by_class = [of_image[found.labels[of_image] == c] for c in range(evidence.num_classes)]
        labels.append({"bboxes": there.boxes[own], "labels": there.labels[own], "image_name": str(i)})
        boxes = [np.concatenate([found.boxes[d], found.scores[d, None]], axis=1) for d in by_class]
        predictions.append(np.array([*boxes, None], dtype=object)[:-1])
        rows.append(own)
        detections.append(np.concatenate(by_class))
    options: dict[str, Any] = {} if threshold is None else {"high_probability_threshold": threshold}
    overlooked = compute_overlooked_box_scores(labels=labels, predictions=predictions, **options)
    swapped = compute_swap_box_scores(labels=labels, predictions=predictions, **options)
    scored: list[tuple[float, Place]] = []
    for i in range(evidence.num_images):
        scored += [(s, Place(i, found.boxes[d])) for s, d in zip(overlooked[i], detections[i], strict=True)]
        scored += [(s, Place(i, there.boxes[g], int(g))) for s, g in zip(swapped[i], rows[i], strict=True)]
    scored = [entry for entry in scored if not np.isnan(entry[0])]  # boxes that it has no opinion on
    return [place for _, place in sorted(scored, key=lambda entry: entry[0])]


FIRST = 2000  # training images of VOC that the order was chosen by
METHODS: dict[str, Callable[[Evidence], list[Place]]] = {
    "likely": by_us,
    "likely, add and swap": lambda evidence: by_us(evidence, kinds=["add", "swap"]),
    "gain": lambda evidence: by_us(evidence, order="gain"),
    "gain, add and swap": lambda evidence: by_us(evidence, order="gain", kinds=["add", "swap"]),
    "hotcoco": by_hotcoco,
    "cleanlab": lambda evidence: by_cleanlab(evidence, None),
    "cleanlab, 0.5": lambda evidence: by_cleanlab(evidence, 0.5),
    "score": by_score,
}


def precisions(places: Sequence[Place], spoilt: Sequence[Spoilt]) -> list[float]:
    """In per cent, at each of PLACES; a list that is shorter finds nothing in the places that it leaves empty."""
    named: set[int] = set()
    hits = []
    for place in places[: max(PLACES)]:
        fits = [n for n, label in enumerate(spoilt) if n not in named and _names(place, label)]
        named.update(fits[:1])
        hits.append(bool(fits))
    return [round(100 * sum(hits[:most]) / most, 1) for most in PLACES]


def _names(place: Place, label: Spoilt) -> bool:
    if place.image != label.image:
        return False
    if place.row is not None:
        return place.row == label.row
    return bool(overlaps_with(place.box, label.box[None], 0.0)[0] >= 0.5)


def make(name: str, images: Sequence[ImageWindows], names: Sequence[str], data: Path, seed: int) -> Run:
    """The precision of every tool on one draw of spoilt labels."""
    after, spoilt = spoil(images, len(names), seed)
    scores = with_logits(after, last_layers(data)) if name.startswith("voc") else out_of_fold(after, len(names), seed)
    evidence = evidence_of(after, scores, names)
    tools = {method: of for method, of in METHODS.items() if "cleanlab" not in method or find_spec("cleanlab")}
    found = {method: precisions(of(evidence), spoilt) for method, of in tools.items()}
    mean_ap = round(100 * evaluate_under(evidence, COCO).map, 1)
    return {"found": found, "spoilt": len(spoilt), "detections": len(evidence.detections), "coco": mean_ap}


def page(file: Path) -> str:
    """The page of the runs on record."""
    parts = []
    for (name,), runs in grouped(load_runs(file, "final"), "set").items():
        first = runs[0]
        rows = [
            [f"`{method}`", *(mean_and_spread([run["found"][method][n] for run in runs]) for n in range(len(PLACES)))]
            for method in first["found"]
        ]
        header = ["", *(f"precision at {most}" for most in PLACES)]
        facts = (
            f"{len(runs)} seeds, {first['spoilt']} spoilt labels, COCO AP {mean_and_spread([r['coco'] for r in runs])}"
        )
        parts.append(f"## {name}\n{facts}\n\n{table(header, rows)}")
    return f"# Wrong labels found again\n{about(__doc__)}\n" + "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=["voc", "voc_train", "bccd"], required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True, help="of `python -m experiments.yolo.windows`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    caches = SETS[options.set.removesuffix("_train")].caches(options.data, options.cache)
    of_voc = {"voc": ["val"], "voc_train": ["train"]}
    chosen = [caches[split] for split in of_voc.get(options.set, list(caches))]
    images = [image for cache in chosen for image in cache.images()][FIRST if options.set == "voc_train" else 0 :]
    names = chosen[0].dataset.class_names
    for seed in options.seeds:
        once(
            options.out,
            "final",
            {"set": options.set, "seed": seed},
            lambda seed=seed: make(options.set, images, names, options.data, seed),  # type: ignore[misc]
        )


if __name__ == "__main__":
    main()
