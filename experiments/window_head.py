"""A small head on frozen window features: its scores, its cross-entropy training, and its mAP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torchvision.ops import box_iou

import stepgrad
from experiments.voc_subset import CLASSES, WindowedImage

NUM_CLASSES = len(CLASSES)
BACKGROUND = NUM_CLASSES
IGNORED = -1

ScoreForm = Literal["raw", "logprob"]


@dataclass(frozen=True)
class Part:
    """Images with their features and the class of every window: what a run trains or evaluates on."""

    images: Sequence[WindowedImage]
    features: Sequence[Tensor]  # (N, D) float16 each
    labels: Sequence[Tensor]  # (N,) each

    def __getitem__(self, index: slice) -> Part:
        return Part(self.images[index], self.features[index], self.labels[index])

    def __len__(self) -> int:
        return len(self.images)


def make_part(images: Sequence[WindowedImage], features: Sequence[Tensor]) -> Part:
    return Part(images, features, [window_labels(image) for image in images])


def window_labels(image: WindowedImage) -> Tensor:
    """(N,) class of the object with the largest IoU if that is >= 0.5, else background; ignored if it is difficult."""
    if len(image.boxes) == 0:
        return torch.full((len(image.windows),), BACKGROUND)
    overlap, best = box_iou(image.windows, image.boxes).max(dim=1)
    labels = torch.where(image.difficult[best], IGNORED, image.labels[best])
    return torch.where(overlap >= 0.5, labels, BACKGROUND)


class WindowHead(nn.Module):
    """One hidden layer with dropout; the last column is background."""

    def __init__(self, features: int, hidden: int = 512) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, NUM_CLASSES + 1)
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features.float())

    def scores(self, features: Tensor, form: ScoreForm) -> Tensor:
        """(N, K) scores: log-probabilities after softmax with background, or the outputs as they are."""
        outputs = self(features)
        return (log_softmax(outputs, dim=1) if form == "logprob" else outputs)[:, :NUM_CLASSES]


def new_head(features: int, seed: int) -> WindowHead:
    torch.manual_seed(seed)
    return WindowHead(features)


def image_batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless batches of image indices; every image comes once before any comes again."""
    while True:
        yield from torch.randperm(count, generator=generator)[: count - count % size].split(size)


def train_nll(head: WindowHead, part: Part, steps: int, lr: float, seed: int) -> None:
    """Cross-entropy on 8 images x 64 windows a step, a quarter of them on objects, as Fast R-CNN samples them."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    optimiser = torch.optim.Adam(head.parameters(), lr=lr)
    batches = image_batches(len(part), 8, generator)
    head.train()
    for _ in range(steps):
        chosen = [(i, _fast_rcnn_sample(part.labels[i], generator)) for i in next(batches).tolist()]
        features = torch.cat([part.features[i][rows] for i, rows in chosen])
        labels = torch.cat([part.labels[i][rows] for i, rows in chosen])
        optimiser.zero_grad()
        cross_entropy(head(features), labels).backward()
        optimiser.step()


def _fast_rcnn_sample(labels: Tensor, generator: torch.Generator, size: int = 64) -> Tensor:
    foreground = ((labels != BACKGROUND) & (labels != IGNORED)).nonzero()[:, 0]
    background = (labels == BACKGROUND).nonzero()[:, 0]
    foreground = foreground[torch.randperm(len(foreground), generator=generator)][: size // 4]
    background = background[torch.randperm(len(background), generator=generator)]
    return torch.cat([foreground, background[: size - len(foreground)]])


@torch.inference_mode()
def evaluate(head: WindowHead, part: Part, form: ScoreForm) -> float:
    """mAP in per cent over all windows: area AP, NMS 0.3, mean over all classes."""
    head.eval()
    scores = [head.scores(features, form) for features in part.features]
    boxes, targets = [i.windows for i in part.images], [i.target for i in part.images]
    result = stepgrad.mean_average_precision(scores, boxes, targets, protocol="voc12", nms_threshold=0.3)
    return 100 * float(result.map)
