"""Ways to other scores for the windows of a frozen detector, and the settings that each is tuned by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.masks.windows import Tensors
from stepgrad.data import VOC_CLASSES
from stepgrad.losses.detection import MAPLoss
from stepgrad.metric.protocol import COCO, VOC12, Protocol
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import outputs_of
from stepgrad.models.fine_tuning.windows import Labelled

AREA = replace(VOC12, absent_classes="skip")
RATES = (1e-3, 3e-3, 1e-2, 3e-2)


class Arm(NamedTuple):
    """A way to other scores."""

    says: str
    form: str  # "added" to the logits; "scored": log p + alpha log q; "head": new logits
    loss: str  # "aligned" cross-entropy, "scoring", "exact" AP
    by: str = "shape"  # the overlap that it learns from: that of the task, or "box"
    start: str | None = None


def arms_of(shape: str, overlap: str, ap: str) -> dict[str, Arm]:
    """The ways to other scores where masks, or poses, are judged: "mask", "mask IoU", "mask AP"."""
    by_box = "cross-entropy, task-aligned by box IoU"
    by_shape = f"cross-entropy, task-aligned by {overlap}"
    return {
        "box-aligned": Arm(f"quality: {by_box}", "added", "aligned", "box"),
        f"{shape}-aligned": Arm(f"quality: {by_shape}", "added", "aligned"),
        "scoring": Arm(f"{shape} scoring: {overlap} regressed", "scored", "scoring"),
        "exact": Arm(f"quality: exact {ap}", "added", "exact"),
        "exact-box": Arm("quality: exact box AP", "added", "exact", "box"),
        "scoring-exact": Arm(f"{shape} scoring, then exact {ap}", "scored", "exact", start="scoring"),
        "head-box": Arm(f"new head: {by_box}", "head", "aligned", "box"),
        f"head-{shape}": Arm(f"new head: {by_shape}", "head", "aligned"),
        "head-box-exact": Arm(f"new head: by box IoU, then exact {ap}", "head", "exact", start="head-box"),
        f"head-{shape}-exact": Arm(f"new head: by {overlap}, then exact {ap}", "head", "exact", start=f"head-{shape}"),
    }


@dataclass(frozen=True)
class Point:
    """One training."""

    arm: str
    rate: float = 0.0
    steps: int = 150
    weight_decay: float = 0.0
    hit: float = 0.5  # scoring: box IoU from which a window is a positive
    alpha: float = 1.0  # scoring: weight of log q
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
class Study:
    """What the scores of a frozen detector's windows are judged by, and the ways to other scores."""

    word: str  # what the shapes are called
    overlap: str  # and how alike two of them are
    classes: int
    metrics: Mapping[
        str, tuple[Protocol, str]
    ]  # protocol and overlap, "shape" or "box"; the first one chooses settings
    arms: Mapping[str, Arm]
    nms: float = 0.6
    stages: Mapping[str, Sequence[Sequence[Mapping[str, float]]]] = field(
        default_factory=lambda: STAGES
    )  # by loss, or by arm
    over: Sequence[str] = ("own", "scoring")  # whose gains are told with intervals
    resamples: int = 1000

    @property
    def chosen_by(self) -> str:
        return next(iter(self.metrics))


MASKS = Study(
    "mask",
    "mask IoU",
    len(VOC_CLASSES),
    {"mask AP": (COCO, "shape"), "mask AP50": (AREA, "shape"), "box AP": (COCO, "box")},
    arms_of("mask", "mask IoU", "mask AP"),
)


@dataclass(frozen=True, kw_only=True)
class Seen(Labelled):
    """The windows of an image, labelled by one of two overlaps."""

    own: Tensor  # (N, K) the detector's logits
    tables: Tensors  # (N, G) the task's overlap, "shape", and "box" IoU
    by: str  # the one it is trained with


def best_of_class(table: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(N, K) largest overlap with an object of the class."""
    return torch.zeros(len(table), classes).scatter_reduce(1, labels.expand(len(table), -1), table.float(), "amax")


def new_network(form: str, width: int, classes: int, seed: int) -> nn.Module:
    """16 units to one quality, which is 0 at first; or 64 units to the logits of the classes."""
    units, columns = (64, classes) if form == "head" else (16, 1)
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


def loss_of(point: Point, start: nn.Module, study: Study) -> Callable[[Tensor, Sequence[Seen]], Tensor]:
    """The loss of a network's outputs for all windows of some images."""
    arm, classes = study.arms[point.arm], study.classes
    cross_entropy = Reading(classes, labels="aligned").stock_loss
    map_loss = MAPLoss(classes, COCO, nms_threshold=study.nms, radius=point.radius, absent_classes="zero")

    def aligned(outputs: Tensor, images: Sequence[Seen]) -> Tensor:
        return cross_entropy(scores_of(outputs, images), images)

    def scoring(outputs: Tensor, images: Sequence[Seen]) -> Tensor:
        wanted = torch.cat([quality(image, point.hit) for image in images])
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


def quality(image: Seen, hit: float) -> Tensor:
    """(N,) overlap with the object that the window's box fits best; NaN where it fits none."""
    if not len(image.target["labels"]):
        return torch.full((len(image.boxes),), torch.nan)
    fits, which = image.tables["box"].max(dim=1)
    found = image.tables["shape"].gather(1, which[:, None])[:, 0]
    return torch.where(fits >= hit, found, torch.nan).float()
