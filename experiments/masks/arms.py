"""Ways to other scores for the windows of a frozen detector, and the settings that each is tuned by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.masks.windows import Tensors
from stepgrad.data import VOC_CLASSES
from stepgrad.losses.detection import MAPLoss
from stepgrad.metric.protocol import COCO, VOC12
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import outputs_of
from stepgrad.models.fine_tuning.windows import Labelled

CLASSES = len(VOC_CLASSES)
NMS = 0.6
AREA = replace(VOC12, absent_classes="skip")
METRICS = {"mask AP": (COCO, "mask"), "mask AP50": (AREA, "mask"), "box AP": (COCO, "box")}
RATES = (1e-3, 3e-3, 1e-2, 3e-2)


class Arm(NamedTuple):
    """A way to other scores."""

    says: str
    form: str  # "added" to the logits; "scored": log p + alpha log q; "head": new logits
    loss: str  # "aligned" cross-entropy, "scoring", "exact" AP
    by: str = "mask"  # the overlap that it learns from
    start: str | None = None


ARMS = {
    "box-aligned": Arm("quality: cross-entropy, task-aligned by box IoU", "added", "aligned", "box"),
    "mask-aligned": Arm("quality: cross-entropy, task-aligned by mask IoU", "added", "aligned"),
    "scoring": Arm("mask scoring: mask IoU regressed", "scored", "scoring"),
    "exact": Arm("quality: exact mask AP", "added", "exact"),
    "exact-box": Arm("quality: exact box AP", "added", "exact", "box"),
    "scoring-exact": Arm("mask scoring, then exact mask AP", "scored", "exact", start="scoring"),
    "head-box": Arm("new head: cross-entropy, task-aligned by box IoU", "head", "aligned", "box"),
    "head-mask": Arm("new head: cross-entropy, task-aligned by mask IoU", "head", "aligned"),
    "head-box-exact": Arm("new head: by box IoU, then exact mask AP", "head", "exact", start="head-box"),
    "head-mask-exact": Arm("new head: by mask IoU, then exact mask AP", "head", "exact", start="head-mask"),
}


@dataclass(frozen=True)
class Point:
    """One training."""

    arm: str
    rate: float = 0.0
    steps: int = 150
    weight_decay: float = 0.0
    hit: float = 0.5  # mask scoring: box IoU from which a window is a positive
    alpha: float = 1.0  # mask scoring: weight of log q
    radius: float = 3.0  # exact AP
    pull: float = 0.02  # exact AP: weight of the mean squared distance from the scores before
    images: int | None = None  # that train; None: all


def grid(**axes: Sequence[float]) -> list[dict[str, float]]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


STAGES = {
    "aligned": [grid(rate=RATES, steps=(1000, 3000), weight_decay=(0.0, 0.3))],
    "scoring": [grid(rate=RATES, steps=(1000, 3000), hit=(0.1, 0.5), alpha=(0.5, 1.0, 2.0, 4.0))],
    "exact": [grid(rate=RATES, radius=(0.5, 1.0, 3.0)), grid(pull=(0.0, 0.1)), grid(steps=(400,))],
}
"""Settings to try, each stage from the best so far: 15 or 16 trainings. One training serves every alpha."""


@dataclass(frozen=True)
class Seen(Labelled):
    """The windows of an image, labelled by one of two overlaps."""

    own: Tensor  # (N, K) the detector's logits
    tables: Tensors  # (N, G) IoU by "mask" and by "box"
    by: str  # the one it is trained with


def best_of_class(table: Tensor, labels: Tensor) -> Tensor:
    """(N, K) largest overlap with an object of the class."""
    return torch.zeros(len(table), CLASSES).scatter_reduce(1, labels.expand(len(table), -1), table.float(), "amax")


def new_network(form: str, width: int, seed: int) -> nn.Module:
    """16 units to one quality, which is 0 at first; or 64 units to the logits of the classes."""
    units, columns = (64, CLASSES) if form == "head" else (16, 1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        last = nn.Linear(units, columns)
        network = nn.Sequential(nn.Linear(width, units), nn.SiLU(), last)
    nn.init.constant_(last.bias, -4.0 if form == "head" else 0.0)
    if form != "head":
        nn.init.zeros_(last.weight)
    return network


def read_scores(outputs: Tensor, own: Tensor, form: str, alpha: float) -> Tensor:
    """(N, K) scores to rank by, from what a network says and the detector's logits."""
    if form == "head":
        return outputs
    return F.logsigmoid(own) + alpha * F.logsigmoid(outputs) if form == "scored" else own + outputs


def loss_of(point: Point, start: nn.Module) -> Callable[[Tensor, Sequence[Seen]], Tensor]:
    """The loss of a network's outputs for all windows of some images."""
    arm = ARMS[point.arm]
    cross_entropy = Reading(CLASSES, labels="aligned").stock_loss
    map_loss = MAPLoss(CLASSES, COCO, nms_threshold=NMS, radius=point.radius, absent_classes="zero")

    def aligned(outputs: Tensor, images: Sequence[Seen]) -> Tensor:
        return cross_entropy(scores_of(outputs, images), images)

    def scoring(outputs: Tensor, images: Sequence[Seen]) -> Tensor:
        wanted = torch.cat([mask_quality(image, point.hit) for image in images])
        positive = ~wanted.isnan()
        losses = F.binary_cross_entropy_with_logits(outputs[positive, 0], wanted[positive], reduction="sum")
        return losses / positive.sum().clamp_min(1)

    def exact(outputs: Tensor, images: Sequence[Seen]) -> Tensor:
        scores = scores_of(outputs, images)
        with torch.no_grad():
            before = scores_of(outputs_of(start, images), images)
        parts = list(scores.double().split([len(image.boxes) for image in images]))
        boxes, targets = [image.boxes for image in images], [image.target for image in images]
        ap = map_loss(parts, boxes, targets, overlaps=[image.tables[image.by] for image in images])
        return ap + point.pull * F.mse_loss(scores, before)

    def scores_of(outputs: Tensor, images: Sequence[Seen]) -> Tensor:
        return read_scores(outputs, torch.cat([image.own for image in images]), arm.form, point.alpha)

    return {"aligned": aligned, "scoring": scoring, "exact": exact}[arm.loss]


def mask_quality(image: Seen, hit: float) -> Tensor:
    """(N,) mask IoU with the object that the window's box fits best; NaN where it fits none."""
    if not len(image.target["labels"]):
        return torch.full((len(image.boxes),), torch.nan)
    fits, which = image.tables["box"].max(dim=1)
    quality = image.tables["mask"].gather(1, which[:, None])[:, 0]
    return torch.where(fits >= hit, quality, torch.nan).float()
