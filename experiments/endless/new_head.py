"""A new class head on a trained detector's features: cross-entropy to the end, then more of it or mAP.

    python -m experiments.endless.new_head --start RUN --seeds 0 1 2 3 4 --out FILE.jsonl

This is how most people use a detector: its trunk and boxes stay, classes are learnt anew. Trunk and box branch
of the SSD that `experiments.endless.train` made are frozen; for the 300 likeliest boxes per image the features around their
place (3 x 3 x 64), which anchor and level they come from and how far the box was moved go into a head of 64 units. Training
images are a fixed set, as labelled images are. Every arm starts from the same head and has its best rate of a grid on "val";
"test" is looked at once, at the end.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_iou

import stepgrad as sg
from experiments.endless.run_files import load_start
from stepgrad.data import EndlessShapes

KEPT = 300
NMS = 0.5
CLASSES = 6
SOURCE_SEED = 7
"""Images the trunk never saw."""
RATES = {"more": (3e-4, 1e-3, 3e-3), "soft": (3e-4, 1e-3, 3e-3), "map": (1e-3, 3e-3, 1e-2)}


@dataclass(frozen=True)
class Windows:
    """What a head sees of one image, and what it should find there."""

    features: Tensor  # (N, F)
    boxes: Tensor  # (N, 4)
    overlap: Tensor  # (N, K) largest IoU with an object of the class, by which the window is labelled
    target: dict[str, Tensor]


@torch.no_grad()
def windows_of(model: Any, fresh: Any) -> Windows:
    """The boxes of one image that most likely hold something, with their features."""
    images, _ = model.transform([fresh.image.float() / 255])
    maps = list(model.backbone(images.tensors).values())
    found = model.head(maps)
    moved = found["bbox_regression"][0]
    boxes = model.box_coder.decode_single(moved, model.anchor_generator(images, maps)[0]).clamp(
        0, fresh.image.shape[-1]
    )
    something = 1 - found["cls_logits"][0].softmax(dim=1)[:, 0]
    best = something.topk(min(KEPT, len(something))).indices.sort().values
    around = torch.cat([_around(m, a, level) for level, (m, a) in enumerate(zip(maps, _anchors(model), strict=True))])
    target = {"boxes": fresh.target["boxes"], "labels": fresh.target["labels"]}
    features = torch.cat([around, moved], dim=1)[best]
    return Windows(features, boxes[best], _overlap(boxes[best], target), target)


def _anchors(model: Any) -> list[int]:
    counts: list[int] = model.anchor_generator.num_anchors_per_location()
    return counts


def _around(features: Tensor, anchors: int, level: int) -> Tensor:
    """For every place and anchor of a level: the 3 x 3 features, which anchor it is, and the level."""
    places = F.unfold(features, 3, padding=1)[0].T
    which = torch.eye(anchors).repeat(len(places), 1)
    return torch.cat([places.repeat_interleave(anchors, 0), which, torch.full((len(which), 1), float(level))], dim=1)


def _overlap(boxes: Tensor, target: dict[str, Tensor]) -> Tensor:
    overlap = torch.zeros(len(boxes), CLASSES)
    if len(target["boxes"]):
        best, which = box_iou(boxes.float(), target["boxes"].float()).max(dim=1)
        overlap[torch.arange(len(boxes)), target["labels"][which]] = best
    return overlap


def new_head(features: int, seed: int, units: int = 64) -> nn.Sequential:
    torch.manual_seed(seed)
    head = nn.Sequential(nn.Linear(features, units), nn.ReLU(), nn.Linear(units, CLASSES))
    nn.init.constant_(head[-1].bias, -3.0)  # few windows are hits
    return head


def train(
    head: nn.Module, images: Sequence[Windows], steps: int, rate: float, seed: int, loss: str, batch: int
) -> nn.Module:
    """A copy of the head, trained with a cosine to zero; loss: "hard" or "soft" cross-entropy, or a protocol of mAP."""
    head = copy.deepcopy(head)
    draws = torch.Generator().manual_seed(seed)
    if loss in ("hard", "soft"):
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(head.parameters(), rate)
    else:
        optimizer = torch.optim.Adam(head.parameters(), rate)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    map_loss = None if loss in ("hard", "soft") else sg.MAPLoss(CLASSES, loss, nms_threshold=NMS)
    for _ in range(steps):
        chosen = [images[i] for i in torch.randint(len(images), (batch,), generator=draws).tolist()]
        scores = head(torch.cat([w.features for w in chosen]))
        if map_loss is not None:
            lists = scores.double().split([len(w.features) for w in chosen])
            value = map_loss(list(lists), [w.boxes for w in chosen], [w.target for w in chosen])
        else:
            overlap = torch.cat([w.overlap for w in chosen])
            hit = (overlap >= 0.5).float()
            value = F.binary_cross_entropy_with_logits(
                scores, hit * overlap if loss == "soft" else hit, reduction="sum"
            )
            value = value / len(scores)
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        decay.step()
    return head


@torch.no_grad()
def judge(head: nn.Module, images: Sequence[Windows]) -> dict[str, float]:
    """mAP by protocol, in points."""
    scores, boxes = [head(w.features).double() for w in images], [w.boxes for w in images]
    found = {}
    for protocol in ("voc12", "coco"):
        result = sg.mean_average_precision(
            scores, boxes, [w.target for w in images], protocol=protocol, nms_threshold=NMS
        )
        found[protocol] = round(100 * result.map, 2)
    return found


def extract(model: nn.Module, first: int, count: int) -> list[Windows]:
    source = EndlessShapes(SOURCE_SEED)
    return [windows_of(model, source[n]) for n in range(first, first + count)]


def standardise(images: Sequence[Windows], like: Sequence[Windows]) -> list[Windows]:
    """Features with the mean and spread of the training images taken out."""
    known = torch.cat([w.features for w in like])
    mean, spread = known.mean(0), known.std(0) + 1e-3
    return [Windows((w.features - mean) / spread, w.boxes, w.overlap, w.target) for w in images]


def arms(start: nn.Module, train_set: Sequence[Windows], val: Sequence[Windows], seed: int, map_steps: int) -> Any:
    """Each arm's best head on val, by COCO's AP; cross-entropy continues for as many images as mAP sees."""
    settings = {
        "more": ("hard", 4 * map_steps, 8),
        "soft": ("soft", 4 * map_steps, 8),
        "map": ("coco", map_steps, 32),
    }
    for arm, (loss, steps, batch) in settings.items():
        tried = []
        for rate in RATES[arm]:
            begun = time.perf_counter()
            head = train(start, train_set, steps, rate, seed + 50, loss, batch)
            tried.append((judge(head, val), rate, head, time.perf_counter() - begun))
        yield arm, max(tried, key=lambda t: t[0]["coco"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, required=True, help="folder of a finished run of an SSD")
    parser.add_argument("--images", type=int, default=900, help="for training")
    parser.add_argument("--val-images", type=int, default=200)
    parser.add_argument("--test-images", type=int, default=300)
    parser.add_argument("--steps", type=int, default=2000, help="of cross-entropy, before the arms part")
    parser.add_argument("--map-steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    _, model = load_start(options.start)
    model.eval()
    sizes = [options.images, options.val_images, options.test_images]
    parts = [extract(model, sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    train_set, val, test = (standardise(part, parts[0]) for part in parts)
    for seed in options.seeds:
        for start_loss in ("hard", "soft"):
            head = new_head(train_set[0].features.shape[1], seed)
            start = train(head, train_set, options.steps, 3e-3, seed, start_loss, 8)
            runs = [{"arm": "start", "val": judge(start, val), "test": judge(start, test)}]
            for arm, (on_val, rate, best, seconds) in arms(start, train_set, val, seed, options.map_steps):
                runs.append({"arm": arm, "rate": rate, "val": on_val, "test": judge(best, test), "seconds": seconds})
            for run in runs:
                line = {"seed": seed, "start": start_loss, "images": options.images, **run}
                print(json.dumps(line), flush=True)
                with open(options.out, "a", encoding="utf-8") as handle:
                    handle.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
