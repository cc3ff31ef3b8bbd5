"""Where the cells of a convolutional feature map lie in the picture, from the arithmetic of its layers.

Cell i of a map is centred on input pixel `first_centre + stride * i` (pixels count from 0, centres are whole numbers). A
layer with kernel k, stride s, padding p and dilation d on a map of stride S and first centre c gives stride S s and
first centre c + S (d (k - 1) / 2 - p).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from stepgrad.errors import ConfigError

_POOLINGS = (nn.MaxPool2d, nn.AvgPool2d)
_POOLING_FUNCTIONS: tuple[Any, ...] = (F.max_pool2d, F.avg_pool2d, torch.max_pool2d)
_RESAMPLINGS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample, nn.Flatten)


@dataclass(frozen=True)
class Geometry:
    """A map's place in the picture, the same along both axes."""

    stride: int = 1
    first_centre: float = 0.0

    def after(self, kernel: int, stride: int, padding: int, dilation: int = 1) -> Geometry:
        """The geometry of the map a layer makes of this one.

        >>> Geometry().after(kernel=11, stride=4, padding=2).after(kernel=3, stride=2, padding=0)
        Geometry(stride=8, first_centre=7.0)
        """
        reach = dilation * (kernel - 1) / 2
        return Geometry(self.stride * stride, self.first_centre + self.stride * (reach - padding))

    def cells(self, windows: Tensor) -> Tensor:
        """Windows (continuous x1, y1, x2, y2 in input pixels) in units of cells: of their first and last pixel.

        >>> Geometry(16, 0.0).cells(torch.tensor([[0.0, 0.0, 17.0, 33.0]]))
        tensor([[0., 0., 1., 2.]])
        """
        last_pixel = windows.new_tensor([0.0, 0.0, 1.0, 1.0])
        return (windows - last_pixel - self.first_centre) / self.stride


@dataclass(frozen=True)
class LayerGeometry:
    """The geometry of the output of one node of a traced network; None: the output is no map of the picture."""

    node: fx.Node
    geometry: Geometry | None


def geometry_of(trunk: nn.Module) -> Geometry:
    """The geometry of a trunk's output."""
    geometries = [layer.geometry for layer in walk_layers(trunk) if layer.node.op != "output"]
    if not geometries or geometries[-1] is None:
        raise ConfigError(f"Expected a trunk whose output is a map of the picture but got {type(trunk).__name__}.")
    return geometries[-1]


def walk_layers(network: nn.Module) -> Iterator[LayerGeometry]:
    """The nodes of a network in order of execution."""
    graph = network.graph if isinstance(network, fx.GraphModule) else fx.Tracer().trace(network)
    geometries: dict[fx.Node, Geometry | None] = {}
    for node in graph.nodes:
        geometries[node] = _geometry(node, network, geometries)
        yield LayerGeometry(node, geometries[node])


def _geometry(node: fx.Node, network: nn.Module, earlier: dict[fx.Node, Geometry | None]) -> Geometry | None:
    if node.op == "placeholder":
        return Geometry()
    before = next((earlier[n] for n in node.all_input_nodes if earlier[n] is not None), None)
    if before is None:
        return None
    if node.op == "call_module":
        layer = network.get_submodule(str(node.target))
        if isinstance(layer, _RESAMPLINGS):
            return None
        if isinstance(layer, nn.Conv2d):
            return _after(before, layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        if isinstance(layer, _POOLINGS):
            return _after(before, layer.kernel_size, layer.stride, layer.padding, getattr(layer, "dilation", 1))
    if node.op == "call_function" and node.target in _POOLING_FUNCTIONS:
        return _after_function(before, node)
    if "flatten" in str(node.target) or "adaptive" in str(node.target) or node.target in ("mean", torch.mean):
        return None
    return before


def _after_function(before: Geometry, node: fx.Node) -> Geometry:
    names = ["input", "kernel_size", "stride", "padding", "dilation"]
    if node.target is F.avg_pool2d:  # its fifth argument is another
        names.pop()
    arguments: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    kernel = arguments["kernel_size"]
    stride = arguments.get("stride") or kernel
    return _after(before, kernel, stride, arguments.get("padding", 0), arguments.get("dilation", 1))


def _after(before: Geometry, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Geometry:
    along = [before.after(*(_axis(value, axis) for value in (kernel, stride, padding, dilation))) for axis in (0, 1)]
    if along[0] != along[1]:
        raise ConfigError(f"Expected a backbone with the same stride along both axes but got {along[0]}, {along[1]}.")
    return along[0]


def _axis(value: Any, axis: int) -> int:
    return int(value[axis]) if isinstance(value, (tuple, list)) else int(value)
