"""A class convolution as linear layers: what it sees at a window's place, and the way back from weights to kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepgrad.errors import ConfigError


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
        taps = [1 if centre_only else layer.kernel_size[0] * layer.kernel_size[1] for layer in self.layers]
        self.widths = [layer.in_channels * count for layer, count in zip(self.layers, taps, strict=True)]
        self.width = max(self.widths)

    def read(self, maps: Sequence[Tensor], windows: Tensor) -> tuple[Tensor, Tensor]:
        """Slots (N,) and features (N, width) of windows, numbered over levels, places (row by row) and anchors.

        Args:
            maps: what came into the convolutions, (C, H, W) of each level.
            windows: (N,) numbers in ascending order.
        """
        slots, features, start = [], [], 0
        for level, m in enumerate(maps):
            number = level if len(self.layers) > 1 else 0
            anchors = self.anchors[number]
            size = m.shape[-2] * m.shape[-1] * anchors
            own = windows[(windows >= start) & (windows < start + size)] - start
            slots.append(sum(self.anchors[:number]) + own % anchors)
            found = self._seen(m, self.layers[number])[:, own // anchors].T
            features.append(
                F.pad(found, (0, self.width - found.shape[1]))
            )  # levels may have fewer channels than others
            start += size
        return torch.cat(slots), torch.cat(features)

    def _seen(self, m: Tensor, layer: nn.Conv2d) -> Tensor:
        """(C * taps, places) of a map (C, H, W): the values that the kernel meets at each place, in the kernel's order."""
        if self.centre_only:
            return m.flatten(1)
        return F.unfold(m[None], layer.kernel_size, padding=_padding(layer))[0]

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
