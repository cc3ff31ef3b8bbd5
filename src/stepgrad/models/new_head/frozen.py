"""What a family of detectors has to define so that its last class layer can be trained again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stepgrad.models.new_head.layer import FIRST, ClassLayer

Pick = Callable[[Tensor], Tensor]
"""From (N,) values, the larger the likelier, to the numbers of some windows in ascending order."""


@dataclass(frozen=True)
class WindowChoice:
    """Which windows of an image are kept: those that most likely show something, and some of the others."""

    best: int
    others: int
    """Drawn at random: the layer will score all windows, so it has to see that most of them show nothing."""

    def of(self, likely: Tensor, image: int, known: Tensor | None = None) -> Tensor:
        """Numbers of the windows, in ascending order.

        Args:
            likely: (N,) orders the windows.
            image: number of the image, the seed of the others.
            known: windows that are kept already.
        """
        order = likely.argsort(descending=True, stable=True)
        if known is not None:
            order = order[~torch.isin(order, known.to(order.device))]
        best, rest = order[: self.best], order[self.best :]
        drawn = torch.randperm(len(rest), generator=torch.Generator().manual_seed(image))[: self.others]
        return torch.cat([best, rest[drawn.to(rest.device)]]).sort().values


class Found(NamedTuple):
    """Windows of an image, on the CPU."""

    numbers: Tensor
    """(N,) among all windows of the image."""
    features: Tensor
    """(N, 2 + width) rows as `ClassLayer` wants them."""
    boxes: Tensor
    """(N, 4) in pixels of the image."""
    shapes: Callable[[Tensor], Tensor] | None = None
    """Masks (n, H, W) or keypoints (n, k, 3) of some of these windows, or their oriented boxes (n, 5), on the CPU."""


class FrozenDetector(ABC):
    """A detector as a new last class layer sees it."""

    model: Any
    slots: int
    width: int
    background: str | None = None
    quality: str | None = None
    first_label: int = 0
    """What the model calls the first class."""
    nms_threshold: float | None
    shapes: str | None = None
    """What it predicts besides boxes: "masks", "keypoints" or "oriented"."""
    keeps_all: bool = False
    """Whether it has so few windows that all of them are kept."""

    @abstractmethod
    def windows(self, image: Tensor, pick: Pick) -> Found:
        """The windows that `pick` picks, given how likely each of all windows shows something to the model as it is."""

    @abstractmethod
    def detect(self, image: Tensor) -> dict[str, Tensor]:
        """Boxes, scores, labels and shapes, as the model itself has them but for labels, which count from 0."""

    @abstractmethod
    def install(self, weight: Tensor, bias: Tensor, class_names: Sequence[str]) -> None:
        """Put the weights of `ClassLayer.folded` into the model, instead of its last class layers."""

    def new_layer(self, num_classes: int) -> ClassLayer:
        """The layer to train, on the CPU, in the model's precision, but at least float32."""
        layer = ClassLayer(
            self.slots, self.width, num_classes + (self.background is not None), self.background, self.quality
        )
        return layer.double() if self.dtype == torch.float64 else layer

    @property
    def _like(self) -> Tensor:
        weights: Tensor = next(self.model.parameters())
        return weights

    @property
    def dtype(self) -> torch.dtype:
        """Of the model's weights."""
        return self._like.dtype

    def prepared(self, image: Tensor) -> Tensor:
        """The image in [0, 1], where the model is."""
        scaled = image if image.dtype.is_floating_point else image / 255
        return scaled.to(self._like.device, self.dtype)


def in_bytes(image: Tensor) -> Tensor:
    """The image in uint8, as processors of other packages take it."""
    return (255 * image).round().to(torch.uint8) if image.dtype.is_floating_point else image


def rows(slot: Tensor, quality: Tensor | None, features: Tensor) -> Tensor:
    """(N, 2 + width), on the CPU."""
    first = features.new_zeros(len(features), FIRST)
    first[:, 0] = slot
    if quality is not None:
        first[:, 1] = quality
    return torch.cat([first, features], dim=1).cpu()


@contextmanager
def inputs_of(layers: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Collects what the layers are called with, in the order of the calls."""
    seen: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def replace_layer(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a layer in the place of another, wherever in the model that stands, on its device and in its precision."""
    like = next(old.parameters())
    new = new.to(like.device, like.dtype).train(old.training)
    # one layer may stand in several places of one list of modules
    places = [name for name, module in model.named_modules(remove_duplicate=False) if module is old]
    for parent, _, name in (place.rpartition(".") for place in places):
        setattr(model.get_submodule(parent), name, new)


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """The layer of a single slot."""
    layer = nn.Linear(weight.shape[2], weight.shape[1], dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight[0])
        layer.bias.copy_(bias[0])
    return layer
