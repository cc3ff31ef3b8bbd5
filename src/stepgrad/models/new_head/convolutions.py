"""A class convolution as linear layers: what it sees at a window's place, and the way back from weights to kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepgrad.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """Where some windows of a level come from."""

    y: Tensor
    x: Tensor
    anchor: Tensor


class ClassConvolutions:
    """The last class layers of a dense detector: one convolution for all levels of its pyramid, or one for each.

    Args:
        layers: the convolutions.
        columns: outputs of an anchor; a convolution has channels anchor * columns + column.
        centre_only: the new kernels see the place of a window only, and are zero around it.
    """

    def __init__(self, layers: Sequence[nn.Module], columns: int, centre_only: bool) -> None:
        self.layers = [_checked(layer) for layer in layers]
        self.columns = columns
        self.centre_only = centre_only
        self.anchors = [layer.out_channels // columns for layer in self.layers]
        self.slots = sum(self.anchors)
        self.widths = [layer.in_channels * self._taps(layer) for layer in self.layers]
        self.width = max(self.widths)

    def _taps(self, layer: nn.Conv2d) -> int:
        return 1 if self.centre_only else layer.kernel_size[0] * layer.kernel_size[1]

    def layer_of(self, level: int) -> int:
        """The number of the convolution that works on a level."""
        return level if len(self.layers) > 1 else 0

    def read(self, maps: Sequence[Tensor], windows: Tensor) -> tuple[Tensor, Tensor]:
        """Slots (N,) and features (N, width) of windows, numbered over levels, places (row by row) and anchors.

        Args:
            maps: what came into the convolutions, (C, H, W) of each level.
            windows: (N,) numbers in ascending order.
        """
        slots, features, start = [], [], 0
        for level, m in enumerate(maps):
            number = self.layer_of(level)
            size = m.shape[-2] * m.shape[-1] * self.anchors[number]
            own = windows[(windows >= start) & (windows < start + size)] - start
            cell, anchor = own // self.anchors[number], own % self.anchors[number]
            place = Place(cell // m.shape[-1], cell % m.shape[-1], anchor)
            slots.append(sum(self.anchors[:number]) + anchor)
            found = self._patches(m, self.layers[number], place)
            features.append(
                F.pad(found, (0, self.width - found.shape[1]))
            )  # levels may have fewer channels than others
            start += size
        return torch.cat(slots), torch.cat(features)

    def _patches(self, m: Tensor, layer: nn.Conv2d, place: Place) -> Tensor:
        """(N, C * taps) of a map (C, H, W): the values that the kernel meets, in the kernel's order."""
        if self.centre_only:
            return m[:, place.y, place.x].T
        (height, width), (above, left) = layer.kernel_size, _padding(layer)
        padded = F.pad(m, (left, left, above, above))
        dy = torch.arange(height, device=m.device)[None, :, None]
        dx = torch.arange(width, device=m.device)[None, None, :]
        patches = padded[:, place.y[:, None, None] + dy, place.x[:, None, None] + dx]  # (C, N, height, width)
        return patches.transpose(0, 1).flatten(1)

    def with_weights(self, weight: Tensor, bias: Tensor) -> list[nn.Conv2d]:
        """New convolutions of (slots, outputs, width) weights and (slots, outputs) biases."""
        parts = zip(self.layers, self.widths, weight.split(self.anchors), bias.split(self.anchors), strict=True)
        return [self._convolution(layer, w[:, :, :width], b) for layer, width, w, b in parts]

    @torch.no_grad()
    def _convolution(self, old: nn.Conv2d, weight: Tensor, bias: Tensor) -> nn.Conv2d:
        new = nn.Conv2d(
            old.in_channels,
            weight.shape[0] * weight.shape[1],
            old.kernel_size,  # type: ignore[arg-type]
            padding=old.padding,  # type: ignore[arg-type]
            dtype=weight.dtype,
        )
        if self.centre_only:
            new.weight.zero_()
            centre = new.weight[:, :, old.kernel_size[0] // 2, old.kernel_size[1] // 2]
            centre.copy_(weight.flatten(0, 1))
        else:
            new.weight.copy_(weight.flatten(0, 1).view_as(new.weight))
        assert new.bias is not None
        new.bias.copy_(bias.flatten())
        return new


def _checked(layer: nn.Module) -> nn.Conv2d:
    """The layer; raises ConfigError unless it is a plain convolution that keeps the size of its map."""
    plain = (
        isinstance(layer, nn.Conv2d)
        and set(layer.stride) == {1}
        and set(layer.dilation) == {1}
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and all(size % 2 == 1 for size in layer.kernel_size)
        and _padding(layer) == tuple(size // 2 for size in layer.kernel_size)
    )
    if not plain:
        raise ConfigError(
            "Expected the last class layers to be convolutions of odd size, of stride 1, that keep the size of their map, "
            f"but got {layer}."
        )
    assert isinstance(layer, nn.Conv2d)
    return layer


def _padding(layer: nn.Conv2d) -> tuple[int, ...]:
    if isinstance(layer.padding, str):
        return tuple(size // 2 if layer.padding == "same" else 0 for size in layer.kernel_size)
    return tuple(layer.padding)
