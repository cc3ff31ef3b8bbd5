"""The head of Fast R-CNN: fc6, fc7, the class scores and, if wanted, the boxes that move away from their windows.

A box (Girshick 2015, Sec. 2.3) is said by how far its centre lies from that of the window, in widths and heights of the
window, and by the logarithms of the ratios of their sizes. These numbers are small, so the layer learns them less their mean
and over their standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepgrad.detector.sampling import Sample

LARGEST = math.log(1000 / 16)
"""Of a logarithm of a ratio when boxes are decoded, either way: an untrained layer must not make a box without end."""
USUAL_STD = (0.1, 0.1, 0.2, 0.2)
"""Where nothing has been measured yet: py-faster-rcnn's, close to what selective search gives on VOC."""


def encode(windows: Tensor, boxes: Tensor) -> Tensor:
    """(N, 4) numbers that lead from windows (N, 4) to boxes (N, 4).

    >>> encode(torch.tensor([[0.0, 0.0, 10.0, 20.0]]), torch.tensor([[5.0, 0.0, 15.0, 20.0]]))   # half a width to the right
    tensor([[0.5000, 0.0000, 0.0000, 0.0000]])
    """
    centre, size = _centre_and_size(windows)
    box_centre, box_size = _centre_and_size(boxes)
    return torch.cat([(box_centre - centre) / size, (box_size / size).log()], dim=-1)


def decode(windows: Tensor, numbers: Tensor) -> Tensor:
    """Boxes (N, K, 4) from windows (N, 4) and numbers (N, K, 4).

    >>> decode(torch.tensor([[0.0, 0.0, 10.0, 20.0]]), torch.tensor([[[0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]))
    tensor([[[ 5.,  0., 15., 20.],
             [ 0.,  0., 10., 20.]]])
    """
    centre, size = (part[:, None] for part in _centre_and_size(windows))
    box_centre = centre + numbers[..., :2] * size
    half = 0.5 * size * numbers[..., 2:].clamp(-LARGEST, LARGEST).exp()
    return torch.cat([box_centre - half, box_centre + half], dim=-1)


def clip(boxes: Tensor, height: int, width: int) -> Tensor:
    """The parts of boxes inside an image. Centres are brought inside first, so that every box keeps some area."""
    centre, size = _centre_and_size(boxes)
    limit = boxes.new_tensor([width, height])
    centre = torch.minimum(centre.clamp(min=0.0), limit)
    low, high = (centre - 0.5 * size).clamp(min=0.0), torch.minimum(centre + 0.5 * size, limit)
    inside = (boxes[..., :2] >= 0.0).all(-1) & (boxes[..., 2:] <= limit).all(-1)  # these stay as they are, to the bit
    return torch.where(inside[..., None], boxes, torch.cat([low, high], dim=-1))


def _centre_and_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    low, high = boxes[..., :2], boxes[..., 2:]
    return 0.5 * (low + high), high - low


class BoxRegression(nn.Module):
    """The layer that moves boxes, one box per class, and the scale of its output.

    It starts as the original's, N(0, 0.001) without biases: boxes are windows, moved by the mean of their class.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.layer = nn.Linear(hidden, 4 * num_classes)
        nn.init.normal_(self.layer.weight, std=0.001)
        nn.init.zeros_(self.layer.bias)
        self.register_buffer("mean", torch.zeros(num_classes, 4))
        self.register_buffer("std", torch.tensor(USUAL_STD).repeat(num_classes, 1))

    def forward(self, hidden: Tensor) -> Tensor:
        """(N, 4K) outputs; those of class c begin at column 4c."""
        outputs: Tensor = self.layer(hidden)
        return outputs

    @property
    def measured(self) -> bool:
        """Whether mean and standard deviation are those of some data."""
        return bool(self.mean.any())

    def measure(self, samples: Iterable[Sample]) -> None:
        """Take mean and standard deviation of each class from windows on objects; those of a class with fewer than two stay."""
        windows, boxes, labels = _on_objects(list(samples), self.num_classes)[:3]
        numbers = encode(windows, boxes)
        for c in range(self.num_classes):
            of_class = numbers[labels == c]
            if len(of_class) > 1:
                self.mean[c] = of_class.mean(0)
                self.std[c] = of_class.std(0, unbiased=False).clamp(min=1e-3)  # alike windows must not divide by zero

    def boxes(self, outputs: Tensor, windows: Tensor) -> Tensor:
        """(N, K, 4) float64 boxes of windows (N, 4), where the windows are."""
        numbers = outputs.detach().to(windows.device).double().reshape(len(windows), self.num_classes, 4)
        std, mean = (buffer.to(windows.device).double() for buffer in (self.std, self.mean))
        return decode(windows.double(), numbers * std + mean)

    def loss(self, outputs: Sequence[Tensor], samples: Sequence[Sample]) -> Tensor:
        """Smooth L1, summed over the coordinates of windows on objects."""
        joined = (
            torch.cat(list(outputs)).float() if outputs else torch.zeros(0, 4 * self.num_classes, requires_grad=True)
        )
        windows, boxes, labels, rows = _on_objects(samples, self.num_classes)
        mean, std = (buffer[labels.to(buffer.device)].double().cpu() for buffer in (self.mean, self.std))
        wanted = ((encode(windows, boxes) - mean) / std).to(joined.device, torch.float32)
        by_class = joined.reshape(len(joined), self.num_classes, 4)
        moves = by_class[rows.to(joined.device), labels.to(joined.device)]
        return F.smooth_l1_loss(moves, wanted, reduction="sum")


def _on_objects(samples: Sequence[Sample], num_classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Windows, boxes and labels of all windows on objects, in float64 on the CPU, and which of all windows they are."""
    labels = torch.cat([torch.zeros(0, dtype=torch.long), *(s.labels for s in samples)])
    rows = (labels < num_classes).nonzero().flatten()
    windows = torch.cat([torch.zeros(0, 4), *(s.windows for s in samples)])[rows]
    boxes = torch.cat([torch.zeros(0, 4), *(s.boxes for s in samples)])[rows]
    return windows.double(), boxes.double(), labels[rows], rows


class Head(nn.Module):
    """Scores of windows from their pooled features.

    New class scores start as the original's, N(0, 0.01) with zero biases. Where fc6 and fc7 are not loaded they start
    from He's normal distribution: the original, which always loads them, has no rule for this, and N(0, 0.01) would
    shrink the signal of small layers at each step. With `box_classes`, boxes of so many classes are moved as well.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float, box_classes: int = 0) -> None:
        super().__init__()
        self.fc6 = nn.Linear(inputs, hidden)
        self.fc7 = nn.Linear(hidden, hidden)
        self.scores = nn.Linear(hidden, outputs)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.fc6, self.fc7):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.scores.weight, std=0.01)
        nn.init.zeros_(self.scores.bias)
        # last, so that all other weights are those of a head without it
        self.boxes = BoxRegression(hidden, box_classes) if box_classes else None

    def forward(self, pooled: Tensor) -> Tensor:
        """(N, inputs) pooled features to (N, outputs) activations in float32, whatever the precision in use.

        The outputs of the box regression, where there is one, are further columns.

        In half precision the last layer would give hundreds of windows the same score, and a ranking needs them apart.
        """
        hidden = self.dropout(F.relu(self.fc6(pooled)))
        hidden = self.dropout(F.relu(self.fc7(hidden)))
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.to(self.scores.weight.dtype)
            scores: Tensor = self.scores(hidden)
            return scores if self.boxes is None else torch.cat([scores, self.boxes(hidden)], dim=1)
