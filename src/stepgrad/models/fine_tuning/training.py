"""A head trained on windows for one of two losses, and judged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from stepgrad.errors import ConfigError, NonFiniteError
from stepgrad.evaluation import Evaluator
from stepgrad.losses.detection import MAPLoss
from stepgrad.losses.functional import mean_average_precision, suppress_and_rank
from stepgrad.losses.objective import BatchLoss
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.models.fine_tuning.outputs import Reading, UsualLoss
from stepgrad.models.fine_tuning.shaped import OfTable, known, suppress_oriented, tables
from stepgrad.models.fine_tuning.windows import ImageWindows, Labelled, batches


@dataclass(frozen=True)
class Task:
    """What a head is trained and judged by."""

    reading: Reading
    protocol: Protocol
    nms_threshold: float | None
    stock_loss: UsualLoss
    class_names: Sequence[str] | None = None
    loss_options: dict[str, Any] = field(default_factory=dict)
    by_table: bool = False
    """Whether windows bring their overlaps with objects along, as boxes are not what counts."""

    @property
    def reported(self) -> list[Protocol]:
        """What numbers on test images go by: the protocol that is trained for, and the best-known others."""
        others = [get_protocol(name) for name in ("coco", "voc12") if name != self.protocol.name]
        return [self.protocol, *others]

    def check(self) -> None:
        """Raise ConfigError if class names or options of the loss do not fit, before anything is trained."""
        self.evaluator()
        try:
            _map_loss(self)
        except TypeError as error:  # an option that nobody knows
            raise ConfigError(f"Expected options of finetune or of MAPLoss but got others: {error}.") from error

    def evaluator(self) -> Evaluator:
        """An empty one, for what a head finds."""
        task = OfTable() if self.by_table else "boxes"
        return Evaluator(self.reading.num_classes, self.reported, self.class_names, task=task)


@dataclass(frozen=True)
class Plan:
    """How long, and how fast; the rate falls to zero along a cosine."""

    loss: str  # "stock" or "map"
    steps: int
    images: int
    rate: float
    weight_decay: float = 0.0
    average: float = 0.0
    """Decay per step of a running mean of the weights, which is what is kept; 0: the last weights are."""


def train(
    head: nn.Module, images: Sequence[Labelled], task: Task, plan: Plan, seed: int, tick: Callable[[], object]
) -> nn.Module:
    """A copy of the head, trained by AdamW; the same seed draws the same images, whatever the loss."""
    head = copy.deepcopy(head).train()
    weights = [weight for weight in head.parameters() if weight.requires_grad]
    if not weights:
        raise ConfigError("Expected a head with weights to train but none of its parameters requires a gradient.")
    optimizer = torch.optim.AdamW(weights, plan.rate, weight_decay=plan.weight_decay)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    drawn = batches(images, plan.images, torch.Generator().manual_seed(seed))
    loss_of = _map_loss(task) if plan.loss == "map" else task.stock_loss
    mean = AveragedModel(head, multi_avg_fn=get_ema_multi_avg_fn(plan.average)) if plan.average else None
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)  # dropout
        for step in range(plan.steps):
            chosen = next(drawn)
            loss = loss_of(outputs_of(head, chosen), chosen)
            if not bool(torch.isfinite(loss)):
                raise NonFiniteError(
                    f"Step {step + 1} at rate {plan.rate:g}: the loss is {float(loss.detach())}; lower the rate."
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
            if mean is not None:
                mean.update_parameters(head)
            tick()
    return (head if mean is None else mean.module).eval()


def _map_loss(task: Task) -> UsualLoss:
    """mAP as a loss of a head's outputs."""
    loss_fn = MAPLoss(task.reading.num_classes, task.protocol, nms_threshold=task.nms_threshold, **task.loss_options)
    return loss_of_outputs(loss_fn, task.reading, task.nms_threshold)


def loss_of_outputs(loss_fn: BatchLoss, reading: Reading, nms_threshold: float | None = None) -> UsualLoss:
    """A loss of windows' scores as one of a head's outputs."""

    def loss(outputs: Tensor, images: Sequence[Labelled]) -> Tensor:
        scores = reading.scores(outputs).double().split([len(image.boxes) for image in images])
        told = tables(images, nms_threshold)
        return loss_fn(list(scores), [image.boxes for image in images], [image.target for image in images], **told)

    return loss


def outputs_of(head: nn.Module, images: Sequence[Labelled | ImageWindows]) -> Tensor:
    """The head's outputs for all windows of some images, in order."""
    like = next(head.parameters())
    features = torch.cat([image.features for image in images]).to(like.device, like.dtype)
    outputs: Tensor = head(features)
    return outputs


@torch.no_grad()
def scores_of(head: nn.Module, images: Sequence[Labelled], task: Task) -> list[Tensor]:
    """(N, K) scores per image, by the head as it is used: in eval mode."""
    head.eval()
    return [task.reading.scores(outputs_of(head, [image])).double().cpu() for image in images]


def judge(head: nn.Module, images: Sequence[Labelled], task: Task, protocols: Sequence[Protocol]) -> tuple[float, ...]:
    """mAP after NMS, by each protocol."""
    scores = scores_of(head, images, task)
    boxes, targets = [image.boxes for image in images], [image.target for image in images]
    threshold = task.nms_threshold
    told = tables(images, threshold)
    return tuple(
        mean_average_precision(scores, boxes, targets, protocol=protocol, nms_threshold=threshold, **told).map
        for protocol in protocols
    )


def detections(head: nn.Module, images: Sequence[Labelled], task: Task, ids: Sequence[Any] | None = None) -> Evaluator:
    """An evaluator that holds what the head finds, in images of these ids; by default they are counted from 0."""
    evaluator = task.evaluator()
    for i, (image, scores) in enumerate(zip(images, scores_of(head, images, task), strict=True)):
        if image.oriented is None:
            kept, labels, values = suppress_and_rank(scores, image.boxes, task.nms_threshold, candidates=None)
        else:
            kept, labels, values = suppress_oriented(scores, image.oriented, task.nms_threshold)
        found = {"boxes": image.boxes[kept], "labels": labels, "scores": values}
        target = {**image.target, "image_id": i if ids is None else ids[i]}
        if image.table is not None:
            found |= known(image.boxes[kept], image.table[kept].tolist())
            target |= known(image.target["boxes"], range(len(image.target["labels"])))
        evaluator.update([found], [target])
    return evaluator
