"""YOLOv8n's own detections on VOC: how much better their scores could be, and what a look at their neighbours gives of that.

    python -m experiments.yolo.own_logits bounds --data DIR --cache DIR --out FILE.jsonl
    python -m experiments.yolo.own_logits rescore --data DIR --cache DIR --out FILE.jsonl

Its logits for VOC's classes come from the cached features and its last layer; it has never seen these pictures. Rescoring is in
the setting of Pato et al. 2020: scores, classes and boxes of the hundred best detections after NMS, no pixels. Attention
over an image's detections adds to each score: trained to regress the IoU, as they did, or for COCO's AP itself, from the
regressed network or from nothing; one network, one size. Rates are chosen on every eighth training image, val is looked at once.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torchvision.ops import box_iou

from experiments.records import commit, grouped, load_runs, mean_and_spread, save_run, table
from experiments.yolo.network import WEIGHTS, load
from experiments.yolo.sets import SETS
from stepgrad.evaluation import Evaluator
from stepgrad.losses.detection import MAPLoss
from stepgrad.losses.functional import suppress_and_rank
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss
from stepgrad.models.fine_tuning import ImageWindows

# aeroplane, bicycle, ..., tvmonitor among COCO's eighty
COCO_COLUMNS = (4, 1, 14, 8, 39, 5, 2, 15, 56, 19, 60, 16, 17, 3, 0, 58, 18, 57, 6, 62)
CLASSES = len(COCO_COLUMNS)
BEST = 100
NMS = 0.6
UNITS = 64
EPOCHS = 10
IMAGES_PER_STEP = 32
MAP_STEPS = 250
GONE = -1e6  # a score below all others
RATES = (3e-4, 1e-3, 3e-3)
PROTOCOLS = ("coco", "voc12")
INTRODUCTION = """# YOLOv8n's own detections on VOC 2012 val: bounds, and rescoring by neighbours

    python -m experiments.yolo.own_logits bounds --data DIR --cache DIR --out FILE.jsonl
    python -m experiments.yolo.own_logits rescore --data DIR --cache DIR --out FILE.jsonl"""


@dataclass(frozen=True)
class Found:
    """The detections of one image, best first."""

    logits: Tensor  # (M,)
    classes: Tensor  # (M,)
    boxes: Tensor  # (M, 4)
    target: dict[str, Tensor]

    def overlap(self) -> Tensor:
        """(M, G) with the objects of the same class that count; others 0."""
        found = box_iou(self.boxes, self.target["boxes"].float())
        counted = ~(self.target["difficult"].bool() | self.target["iscrowd"].bool())
        return found * (self.classes[:, None] == self.target["labels"]) * counted


def with_logits(images: Sequence[ImageWindows], layers: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """(N, 20) logits per image."""
    found = []
    for image in images:
        by_level = torch.stack([F.linear(image.features[:, :80], weight, bias) for weight, bias in layers])
        level = image.features[:, -3:].argmax(dim=1)
        found.append(by_level[level, torch.arange(len(level))])
    return found


def last_layers(data: Path) -> list[tuple[Tensor, Tensor]]:
    branches = load(data / WEIGHTS).model["22"]
    layers = [branches.get_submodule(f"cv3.{n}.2") for n in range(3)]
    rows = list(COCO_COLUMNS)
    return [(layer.weight.flatten(1)[rows], layer.bias[rows]) for layer in layers]  # type: ignore[union-attr, index, operator]


def detect(image: ImageWindows, scores: Tensor, nms_threshold: float | None = NMS) -> Found:
    """The hundred best (window, class) pairs after NMS."""
    kept, classes, logits = suppress_and_rank(scores.double(), image.boxes, nms_threshold, candidates=None)
    best = logits.argsort(descending=True, stable=True)[:BEST]
    return Found(logits[best].float(), classes[best], image.boxes[kept[best]], dict(image.target))


def judge(images: Sequence[Found], scores: Sequence[Tensor]) -> dict[str, float]:
    """mAP in points."""
    evaluator = Evaluator(CLASSES, list(PROTOCOLS))
    for n, (image, own) in enumerate(zip(images, scores, strict=True)):
        found = {"boxes": image.boxes, "labels": image.classes, "scores": own.double()}
        evaluator.update([found], [{**image.target, "image_id": n}])
    result = evaluator.compute()
    return {name: round(100 * result[name].map, 2) for name in PROTOCOLS}


def bounds(images: Sequence[ImageWindows], logits: Sequence[Tensor]) -> dict[str, dict[str, float]]:
    """What better scores could give: windows and boxes as they are."""
    found = [detect(image, own) for image, own in zip(images, logits, strict=True)]
    overlaps = [image.overlap() for image in found]
    best = [_best(overlap) for overlap in overlaps]
    as_found = [image.logits for image in found]
    oracle = [_oracle(image) for image in images]
    all_windows = [detect(image, own) for image, own in zip(images, oracle, strict=True)]
    return {
        "as it is": judge(found, as_found),
        "no duplicates: of several detections of an object the best-fitting stays, with the highest score": judge(
            found, [_merged(o, own) for o, own in zip(overlaps, as_found, strict=True)]
        ),
        "no false alarms on background: detections with IoU below 0.1 go last": judge(
            found, [torch.where(b < 0.1, GONE, own) for b, own in zip(best, as_found, strict=True)]
        ),
        "IoU as the score of each detection": judge(found, best),
        "IoU as the score of each window and class, then NMS": judge(all_windows, [i.logits for i in all_windows]),
    }


def _best(overlap: Tensor) -> Tensor:
    return overlap.amax(dim=1) if overlap.shape[1] else overlap.new_zeros(len(overlap))


def _merged(overlap: Tensor, scores: Tensor) -> Tensor:
    """Scores where, of the detections with the same best object at IoU 0.5 or more, the best-fitting has the highest score."""
    best, which = overlap.max(dim=1) if overlap.shape[1] else (_best(overlap), torch.zeros(len(overlap)))
    merged = scores.clone()
    for g in which[best >= 0.5].unique():
        rows = ((which == g) & (best >= 0.5)).nonzero().flatten()
        merged[rows] = GONE
        merged[rows[best[rows].argmax()]] = scores[rows].max()
    return merged


def _oracle(image: ImageWindows) -> Tensor:
    """(N, 20) largest IoU with an object of the class."""
    scores = torch.zeros(len(image.boxes), CLASSES)
    overlap = box_iou(image.boxes, image.target["boxes"].float())
    return scores.scatter_reduce(1, image.target["labels"].expand(len(overlap), -1), overlap, "amax")


class Rescorer(nn.Module):
    """Adds to the score of each detection what its neighbours tell: two layers of attention over an image's detections."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(1 + CLASSES + 6, UNITS)
        layer = nn.TransformerEncoderLayer(UNITS, 4, 2 * UNITS, dropout=0.0, batch_first=True)
        self.around = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.outward = nn.Linear(UNITS, 1)
        nn.init.zeros_(self.outward.weight)
        nn.init.zeros_(self.outward.bias)

    def forward(self, images: Sequence[Found]) -> list[Tensor]:
        """New scores per image."""
        seen = pad_sequence([describe(image) for image in images], batch_first=True)
        counts = [len(image.logits) for image in images]
        absent = torch.arange(seen.shape[1]) >= torch.tensor(counts)[:, None]
        more = self.outward(self.around(self.inward(seen), src_key_padding_mask=absent))[..., 0]
        return [image.logits + own[:count] for image, own, count in zip(images, more, counts, strict=True)]


def describe(image: Found) -> Tensor:
    """(M, 27) score, class, and the box as a share of the largest corner there is."""
    size = image.boxes[:, 2:].amax(dim=0).clamp_min(1.0)
    low, high = image.boxes[:, :2] / size, image.boxes[:, 2:] / size
    one_hot = F.one_hot(image.classes, CLASSES).float()
    return torch.cat([image.logits[:, None] / 4, one_hot, low, high, high - low], dim=1)


Loss = Callable[[Sequence[Tensor], Sequence[Found]], Tensor]


def regress(scores: Sequence[Tensor], images: Sequence[Found]) -> Tensor:
    """Squared distance of probability and IoU with the object that a detection is the best of, 0 without such an object."""
    wanted = []
    for image in images:
        overlap = image.overlap()
        mine = overlap * (overlap == overlap.amax(dim=0, keepdim=True)) if len(overlap) else overlap
        wanted.append(_best(mine) * (_best(mine) >= 0.5))
    return F.mse_loss(torch.cat(list(scores)).sigmoid(), torch.cat(wanted), reduction="sum") / len(images)


def exact(loss_fn: MAPLoss) -> Loss:
    def loss(scores: Sequence[Tensor], images: Sequence[Found]) -> Tensor:
        numbers = torch.cat([torch.full((len(image.logits),), n) for n, image in enumerate(images)])
        boxes, classes = (torch.cat([getattr(image, name) for image in images]) for name in ("boxes", "classes"))
        pairs = ScoredPairs(torch.cat(list(scores)).double(), boxes, numbers, classes)
        return ragged_map_loss(loss_fn, pairs, [image.target for image in images])

    return loss


def fit(network: Rescorer, images: Sequence[Found], loss: Loss, steps: int, rate: float, seed: int) -> Rescorer:
    network = copy.deepcopy(network).train()
    optimizer = torch.optim.AdamW(network.parameters(), rate)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = [images[i] for i in torch.randint(len(images), (IMAGES_PER_STEP,), generator=generator)]
        optimizer.zero_grad()
        loss(network(chosen), chosen).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        decay.step()
    return network.eval()


@torch.no_grad()
def measure(network: Rescorer, images: Sequence[Found]) -> dict[str, float]:
    return judge(images, [scores for n in range(0, len(images), 50) for scores in network(images[n : n + 50])])


def rescore(train: Sequence[Found], test: Sequence[Found], out: Path, seeds: Sequence[int]) -> None:
    """Rates on held-out training images with the first seed, then every seed on test."""
    held_out = train[::8]
    rest = [image for n, image in enumerate(train) if n % 8]
    loss_fn = MAPLoss(CLASSES, "coco", nms_threshold=None, absent_classes="zero")
    losses: dict[str, Loss] = {"regressed": regress, "coco": exact(loss_fn)}
    losses["coco after regressed"] = losses["coco"]
    losses["more regressed"] = regress
    best: dict[str, tuple[float, float]] = {}
    starts: dict[str, Rescorer] = {}

    def run(name: str, rate: float, seed: int, images: Sequence[Found]) -> Rescorer:
        torch.manual_seed(seed)
        after = name in ("coco after regressed", "more regressed")
        start = starts[f"regressed {seed} {len(images)}"] if after else Rescorer()
        whole = EPOCHS * len(images) // IMAGES_PER_STEP
        network = fit(start, images, losses[name], MAP_STEPS if after else whole, rate, seed)
        if name == "regressed":
            starts[f"{name} {seed} {len(images)}"] = network
        return network

    save_run(out, "choose", {"way": "as it is", "held_out": judge(held_out, [i.logits for i in held_out])})
    for name in ("regressed", "more regressed", "coco", "coco after regressed"):
        tried: dict[float, Rescorer] = {}
        for rate in RATES:
            tried[rate] = run(name, rate, 0, rest)
            found = measure(tried[rate], held_out)
            best[name] = max(best.get(name, (-1.0, rate)), (found["coco"], rate))
            print(name, rate, found, flush=True)
            save_run(out, "choose", {"way": name, "rate": rate, "held_out": found, "commit": commit()})
        if name == "regressed":
            starts[f"regressed 0 {len(rest)}"] = tried[best[name][1]]
    save_run(out, "final", {"way": "as it is", "seed": 0, "test": judge(test, [i.logits for i in test])})
    for seed in seeds:
        for name in losses:
            found = measure(run(name, best[name][1], seed, train), test)
            save_run(
                out, "final", {"way": name, "seed": seed, "rate": best[name][1], "test": found, "commit": commit()}
            )


def page(file: Path) -> str:
    """The page of the runs on record."""
    found = [[run["what"], *(f"{run['test'][name]:.1f}" for name in PROTOCOLS)] for run in load_runs(file, "bounds")]
    rescored = [
        [way, *(mean_and_spread([run["test"][name] for run in runs]) for name in PROTOCOLS)]
        for (way,), runs in grouped(load_runs(file, "final"), "way").items()
    ]
    tables = [
        table(["scores of YOLOv8n's detections on VOC val", "COCO AP", "area mAP"], found),
        table(["rescored by its neighbours", "COCO AP", "area mAP"], rescored),
    ]
    return "\n\n".join([INTRODUCTION, *tables]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bounds", "rescore"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    layers = last_layers(options.data)
    caches = SETS["voc"].caches(options.data, options.cache)
    images = {split: cache.images() for split, cache in caches.items()}
    logits = {split: with_logits(own, layers) for split, own in images.items()}
    if options.what == "bounds":
        for what, found in bounds(images["val"], logits["val"]).items():
            print(what, found, flush=True)
            save_run(options.out, "bounds", {"what": what, "test": found, "commit": commit()})
        return
    found = {
        split: [detect(image, own) for image, own in zip(images[split], logits[split], strict=True)] for split in images
    }
    rescore(found["train"], found["val"], options.out, options.seeds)


if __name__ == "__main__":
    main()
