"""Trains a head on frozen window features for one row: any loss, any start, one optimiser and rate.

A step scores all its windows without a graph, takes the loss's gradient in the scores, and back-propagates only the
windows that have one: after NMS most have none, and what they would add is zero. Dropout uses the same mask in both
passes, so that this is the plain step, cheaper.

It is not the engine of `stepgrad.detector.training`, which trains a detector by one of two losses. Here the inputs are
features of windows and outputs of other models, the losses are those of nine papers, the result is a mean over steps,
and windows that show
difficult objects take no part in cross-entropy; each row has to be seconds long, for there are hundreds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import stepgrad
from experiments.baselines import make_baseline
from experiments.rows import Row
from experiments.score_memory import RememberingLoss
from experiments.window_head import (
    BACKGROUND,
    IGNORED,
    NUM_CLASSES,
    Part,
    ScoreForm,
    Tuning,
    WindowHead,
    image_batches,
)
from stepgrad.data.base import DatasetTarget

NLL_IMAGES = 8  # per step of cross-entropy


@dataclass(frozen=True)
class StepInput:
    """The windows of one step."""

    features: Tensor  # (N, D)
    boxes: list[Tensor]  # per image
    targets: list[DatasetTarget]

    @property
    def counts(self) -> list[int]:
        return [len(boxes) for boxes in self.boxes]


def train_row(
    head: WindowHead, part: Part, row: Row, tuning: Tuning, seed: int, watch: Callable[[int, dict], None] | None = None
) -> None:
    """Train `head` in place, to the running mean of its weights; `watch` is told step and metrics after each step."""
    average = RunningMean(head, row.average, NLL_IMAGES if row.loss == "nll" else row.images)
    if row.loss == "nll":
        train_nll(head, part, row.steps * row.images // NLL_IMAGES, tuning, seed, average.update)
        average.store()
        return
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    loss_fn = make_loss(row)
    optimiser = tuning.make(head.parameters())
    batches = image_batches(len(part), row.images, generator)
    head.train()
    for step in range(row.steps):
        images = next(batches).tolist()
        optimiser.zero_grad()
        back_propagate(head, draw_windows(part, images, row, generator), loss_fn, row.scores, row.l2)
        if row.nll_weight:
            (row.nll_weight * nll_of(head, part, images, generator)).backward()
        if not row.unlimited:
            tuning.tame(head)
        optimiser.step()
        average.update()
        if watch is not None:
            watch(step + 1, loss_fn.metrics)
    average.store()


class RunningMean:
    """The mean of a head's weights over the last steps; at first over all of them.

    `decay` is for 64 images, so that steps of few images average over as many images as steps of many.
    """

    def __init__(self, head: WindowHead, decay: float, images: int) -> None:
        self.head, self.decay, self.images, self.steps = head, decay, images, 0
        self.mean = [p.detach().clone() for p in head.parameters()]

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        share = max(1 - self.decay ** (self.images / 64), 1 / (self.steps + 1))
        for mean, now in zip(self.mean, self.head.parameters(), strict=True):
            mean.lerp_(now, share)

    @torch.no_grad()
    def store(self) -> None:
        """Put the mean in the head."""
        for mean, now in zip(self.mean, self.head.parameters(), strict=True):
            now.copy_(mean)


def train_nll(
    head: WindowHead,
    part: Part,
    steps: int,
    tuning: Tuning,
    seed: int,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Cross-entropy on 8 images x 64 windows per step, a quarter of them on objects, as Fast R-CNN samples them."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    optimiser = tuning.make(head.parameters())
    batches = image_batches(len(part), NLL_IMAGES, generator)
    head.train()
    for _ in range(steps):
        optimiser.zero_grad()
        nll_of(head, part, next(batches).tolist(), generator).backward()
        tuning.tame(head)
        optimiser.step()
        after_step()


def make_loss(row: Row) -> Any:
    if row.loss == "map":
        return RememberingLoss(stepgrad.MAPLoss(NUM_CLASSES, **row.options), row.memory)
    return make_baseline(row.loss, NUM_CLASSES, **row.options)


def back_propagate(head: WindowHead, given: StepInput, loss_fn: Any, form: ScoreForm, l2: float = 0.0) -> None:
    """Add the loss's gradient in the weights; only windows with a gradient go through the head a second time."""
    kept = head.dropout_mask(len(given.features))
    with torch.no_grad():
        scores = head.scores(given.features, form, kept)
    scores.requires_grad_()
    loss = loss_fn(list(scores.split(given.counts)), given.boxes, given.targets)
    (gradient,) = torch.autograd.grad(loss + l2 * scores.square().sum() if l2 else loss, scores)
    rows = gradient.abs().sum(1).nonzero()[:, 0]
    if len(rows):
        again = head.scores(given.features[rows], form, None if kept is None else kept[rows])
        again.backward(gradient[rows])


def draw_windows(part: Part, images: list[int], row: Row, generator: torch.Generator) -> StepInput:
    """The windows of some images that a step scores."""
    rows = [choose_windows(part.labels[i], row.windows, row.foreground, generator) for i in images]
    return StepInput(
        torch.cat([part.inputs(i, r) for i, r in zip(images, rows, strict=True)]),
        [part.images[i].windows[r] for i, r in zip(images, rows, strict=True)],
        [part.images[i].target for i in images],
    )


def choose_windows(labels: Tensor, count: int | None, foreground: float | None, generator: torch.Generator) -> Tensor:
    """Indices of windows: all, a random few, or a random few with a share of them on objects where there are so many.

    >>> labels = torch.tensor([BACKGROUND] * 90 + [3] * 10)
    >>> chosen = choose_windows(labels, 20, 0.25, torch.Generator().manual_seed(0))
    >>> len(chosen), int((labels[chosen] == 3).sum())
    (20, 5)
    """
    if count is None:
        return torch.arange(len(labels))
    if foreground is None:
        return torch.randperm(len(labels), generator=generator)[:count]
    on_object = (labels != BACKGROUND) & (labels != IGNORED)
    front, back = on_object.nonzero()[:, 0], (~on_object).nonzero()[:, 0]
    front = front[torch.randperm(len(front), generator=generator)][: round(count * foreground)]
    return torch.cat([front, back[torch.randperm(len(back), generator=generator)][: count - len(front)]])


def nll_of(head: WindowHead, part: Part, images: list[int], generator: torch.Generator) -> Tensor:
    """Cross-entropy on windows drawn as Fast R-CNN does."""
    chosen = [(i, fast_rcnn_sample(part.labels[i], generator)) for i in images]
    features = torch.cat([part.inputs(i, rows) for i, rows in chosen])
    return cross_entropy(head(features), torch.cat([part.labels[i][rows] for i, rows in chosen]))


def fast_rcnn_sample(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Indices of 64 windows, a quarter on objects where there are so many; none of them ignored.

    `stepgrad.detector.sampling` draws the same way, but in another order, and has no windows to ignore.
    """
    used = (labels != IGNORED).nonzero()[:, 0]
    return used[choose_windows(labels[used], 64, 0.25, generator)]
