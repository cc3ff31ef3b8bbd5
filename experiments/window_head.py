"""A small head on frozen window features: its windows, its scores and its mAP.

It is not the detector's head: one hidden layer where that has fc6 and fc7, and it can be a correction that is added to the
outputs of another model, which is what most rows train.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, log_softmax, relu

import stepgrad
from stepgrad.data import VOC_CLASSES
from stepgrad.data.base import DatasetTarget
from stepgrad.detector.sampling import label_windows
from stepgrad.detector.training.inputs import Example, Images

NUM_CLASSES = len(VOC_CLASSES)
BACKGROUND = NUM_CLASSES
IGNORED = -1

ScoreForm = Literal["raw", "logprob"]


@dataclass(frozen=True)
class Part:
    """Images, as features of their windows, and the class of every window: what a run trains or evaluates on."""

    images: Sequence[Example]  # in place of each image, the (N, D) float16 features of its windows
    labels: Sequence[Tensor]  # (N,) each
    base: Sequence[Tensor] | None = None  # (N, K + 1) outputs each, of a model that a `ResidualHead` corrects

    def __getitem__(self, index: slice) -> Part:
        base = None if self.base is None else self.base[index]
        return Part(self.images[index], self.labels[index], base)

    def __len__(self) -> int:
        return len(self.images)

    def inputs(self, image: int, rows: Tensor | None = None) -> Tensor:
        """(N, D) or, with a base, (N, D + K + 1): what a head takes, for all windows of an image or some of them."""
        features: Tensor = self.images[image].image if rows is None else self.images[image].image[rows]
        if self.base is None:
            return features
        base = self.base[image] if rows is None else self.base[image][rows]
        return torch.cat([features.float(), base], dim=1)


def make_part(data: Images, features: Sequence[Tensor]) -> Part:
    """The images of `data` with the features of their windows."""
    return part_of([Example(found, *data.facts(i)) for i, found in enumerate(features)])


def part_of(images: Sequence[Example]) -> Part:
    return Part(images, [window_labels(image.windows, image.target) for image in images])


def window_labels(windows: Tensor, target: DatasetTarget) -> Tensor:
    """(N,) the class that each window shows, as the detector assigns it; ignored if the object is difficult."""
    shown = torch.where(target["difficult"], IGNORED, target["labels"])
    return label_windows(windows, target["boxes"], shown, NUM_CLASSES)[1]


class WindowHead(nn.Module):
    """One hidden layer with dropout; the last column is background."""

    drops = 0.5

    def __init__(self, features: int, hidden: int = 512) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.output = nn.Linear(hidden, NUM_CLASSES + 1)

    def forward(self, features: Tensor, kept: Tensor | None = None) -> Tensor:
        """(N, K + 1) outputs; `kept`, (N, hidden), is the dropout mask to use, else one is drawn in training."""
        hidden = relu(self.hidden(features.float()))
        hidden = dropout(hidden, self.drops, self.training) if kept is None else hidden * kept / (1 - self.drops)
        return self.output(hidden)

    def dropout_mask(self, count: int) -> Tensor | None:
        """(count, hidden) units that stay, drawn from torch's generator; None where nothing is dropped."""
        if not self.training or not self.drops:
            return None
        return torch.rand(count, self.hidden.out_features) >= self.drops

    def scores(self, features: Tensor, form: ScoreForm, kept: Tensor | None = None) -> Tensor:
        """(N, K) scores: log-probabilities after softmax with background, or the outputs as they are."""
        outputs = self(features, kept)
        return (log_softmax(outputs, dim=1) if form == "logprob" else outputs)[:, :NUM_CLASSES]


class ResidualHead(WindowHead):
    """Adds to the outputs of another model, which are the last columns of its inputs; at first it adds nothing.

    It drops no units: what it corrects is not learnt by heart, and the noise would be in every score that is ranked.
    """

    drops = 0.0

    def __init__(self, features: int, hidden: int = 512) -> None:
        super().__init__(features, hidden)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, features: Tensor, kept: Tensor | None = None) -> Tensor:
        return features[:, -(NUM_CLASSES + 1) :] + super().forward(features, kept)


class PerClassHead(ResidualHead):
    """A network of its own for every class: no class shares a weight with another.

    Each adds to the log-probability of its class. Its scores are these outputs as they are: a softmax would tie the classes
    together again.
    """

    def __init__(self, features: int, hidden: int = 64) -> None:
        nn.Module.__init__(self)
        self.hidden = nn.Linear(features, NUM_CLASSES * hidden)
        self.output = nn.Linear(hidden, NUM_CLASSES)  # row c: the output of network c
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, features: Tensor, kept: Tensor | None = None) -> Tensor:
        base = log_softmax(features[:, -(NUM_CLASSES + 1) :].float(), dim=1)
        hidden = relu(self.hidden(features.float())).unflatten(1, (NUM_CLASSES, -1))
        added = (hidden * self.output.weight).sum(2) + self.output.bias
        return torch.cat([base[:, :NUM_CLASSES] + added, base[:, NUM_CLASSES:]], dim=1)


@dataclass(frozen=True)
class Tuning:
    """Optimiser and learning rate: what the grid is over. "sgd" scales every gradient down to length 1 at most."""

    optimiser: str
    rate: float

    def make(self, parameters: Any) -> torch.optim.Optimizer:
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, lr=self.rate)
        return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)

    def tame(self, head: nn.Module) -> None:
        if self.optimiser == "sgd":
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)

    def __str__(self) -> str:
        return f"{self.optimiser} {self.rate:g}"


def new_head(features: int, seed: int, kind: type[WindowHead] = WindowHead, hidden: int = 512) -> WindowHead:
    torch.manual_seed(seed)
    return kind(features, hidden)


def image_batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless batches of image indices; every image comes once before any comes again."""
    while True:
        yield from torch.randperm(count, generator=generator)[: count - count % size].split(size)


@torch.inference_mode()
def evaluate(head: WindowHead, part: Part, form: ScoreForm, protocols: Sequence[str] = ("voc12",)) -> dict[str, float]:
    """mAP in per cent by protocol, over all windows, NMS at 0.3; nothing for a head that turned non-finite."""
    head.eval()
    scores = [head.scores(part.inputs(i), form) for i in range(len(part))]
    if not all(bool(s.isfinite().all()) for s in scores):
        return {}
    boxes, targets = [i.windows for i in part.images], [i.target for i in part.images]
    return {
        name: 100 * float(stepgrad.mean_average_precision(scores, boxes, targets, protocol=name, nms_threshold=0.3).map)
        for name in protocols
    }
