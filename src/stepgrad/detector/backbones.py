"""Trunks by name: the convolutional part of a classifier, up to the last map worth pooling windows from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from stepgrad.detector.pooling import LEAST_SIDE, Geometry
from stepgrad.errors import ConfigError, suggest

FREEZE = ["original", "trunk", "none"]
_NORMS = nn.modules.batchnorm._BatchNorm
_POOLINGS = (nn.MaxPool2d, nn.AvgPool2d)
_POOLING_FUNCTIONS: tuple[Any, ...] = (F.max_pool2d, F.avg_pool2d, torch.max_pool2d)
_RESAMPLINGS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample, nn.Flatten)


@dataclass(frozen=True)
class Backbone:
    """A trunk, and the facts about it that the detector needs."""

    name: str
    trunk: nn.Module
    geometry: Geometry
    channels: int
    pool: int
    """Windows are pooled to pool x pool cells."""
    frozen_stride: int
    """`freeze="original"` stops the layers up to the last map of this stride."""
    prefix: str = ""
    """Of the trunk's names in the state dict of the whole network."""
    fully_connected: tuple[str, str] | None = None
    """Names of fc6 and fc7 there."""


def build_backbone(name: str) -> Backbone:
    """alexnet, vgg16, `tiny`, or another torchvision classifier, with random weights.

    >>> build_backbone("alexnet").geometry   # not 16 i: torchvision's AlexNet pads less than Caffe's
    Geometry(stride=16, first_centre=15.0)
    >>> build_backbone("alexnett")
    Traceback (most recent call last):
    stepgrad.errors.ConfigError: backbone: expected `tiny` or a torchvision classifier but got 'alexnett'. Did you mean 'alexnet'?
    """
    if name == "tiny":
        return _finish(name, tiny_trunk(), pool=5, frozen_stride=0)
    from torchvision import models

    classifiers = models.list_models(module=models)
    if name not in classifiers:
        raise ConfigError(
            f"backbone: expected `tiny` or a torchvision classifier but got {name!r}."
            f"{suggest(str(name), ['tiny', *classifiers])}"
        )
    if name == "alexnet":
        return _finish(name, _features(name), 6, 4, "features.", ("classifier.1", "classifier.4"))
    if name.startswith("vgg"):
        return _finish(name, _features(name), 7, 2, "features.", ("classifier.0", "classifier.3"))
    return _finish(name, _traced_trunk(name), pool=7, frozen_stride=4)


def tiny_trunk() -> nn.Sequential:
    """Five convolutions of stride 8 that learn from nothing in a minute; GroupNorm, so images do not see each other."""
    widths = [(3, 32, 2), (32, 64, 2), (64, 128, 1), (128, 128, 2), (128, 128, 1)]
    layers: list[nn.Module] = []
    for inputs, outputs, stride in widths:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        layers += [convolution, nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def _features(name: str) -> nn.Sequential:
    """AlexNet's and VGG's convolutions without the last pooling, at stride 16; He's initialisation.

    The fully connected layers, most of the network, are never allocated.
    """
    from torchvision.models import get_model

    with torch.device("meta"):
        whole = get_model(name, weights=None).features[:-1]
    trunk: nn.Sequential = whole.to_empty(device="cpu")
    for layer in trunk:
        if isinstance(layer, (nn.Conv2d, _NORMS)):
            layer.reset_parameters()
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # these networks have biases everywhere
    return trunk


def _traced_trunk(name: str) -> fx.GraphModule:
    """Any classifier up to the last map of the picture, as it runs in evaluation: no auxiliary heads, no random depth."""
    from torchvision.models import get_model

    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}  # theirs takes half a minute
    network = get_model(name, weights=None, **options).eval()
    try:
        last = [node for node, geometry in geometries(network).items() if geometry and node.op != "output"][-1]
    except Exception as error:  # tracing raises whatever the network's code stumbles over
        raise _no_map(name) from error
    graph = last.graph
    graph.erase_node(next(node for node in graph.nodes if node.op == "output"))
    with graph.inserting_after(last):
        graph.output(last)
    trunk = fx.GraphModule(network, graph)
    trunk.graph.eliminate_dead_code()
    trunk.delete_all_unused_submodules()
    trunk.recompile()
    return trunk


def _no_map(name: str) -> ConfigError:
    return ConfigError(
        f"backbone: {name!r} gives no feature map that windows can be pooled from; use a convolutional network such as "
        "alexnet, vgg16 or resnet50."
    )


@torch.no_grad()
def _finish(
    name: str,
    trunk: nn.Module,
    pool: int,
    frozen_stride: int,
    prefix: str = "",
    fully_connected: tuple[str, str] | None = None,
) -> Backbone:
    """Measure the trunk, and check the arithmetic of its layers against the size of real maps."""
    geometry = geometry_of(trunk)
    trunk.eval()
    sides = (LEAST_SIDE, LEAST_SIDE + 2 * geometry.stride)
    try:
        maps = [trunk(torch.zeros(1, 3, LEAST_SIDE, side)) for side in sides]
        fits = all(m.ndim == 4 for m in maps) and maps[1].shape[3] - maps[0].shape[3] == 2
    except Exception as error:  # networks for one size only raise whatever they stumble over
        raise _no_map(name) from error
    if not fits or geometry.stride == 1:
        raise _no_map(name)
    return Backbone(name, trunk, geometry, maps[0].shape[1], pool, frozen_stride, prefix, fully_connected)


def freeze_layers(backbone: Backbone, freeze: str) -> None:
    """Stop the layers that do not train: those of the original, the whole trunk, or none; BatchNorm always.

    BatchNorm keeps its statistics and its scale: with them an image's scores would depend on the rest of its batch.
    """
    trunk = backbone.trunk
    if freeze == "trunk":
        trunk.requires_grad_(False)
    if freeze == "original":
        for parameter in _early_parameters(trunk, backbone.frozen_stride):
            parameter.requires_grad_(False)
    for module in trunk.modules():
        if isinstance(module, _NORMS):
            module.requires_grad_(False)


def _early_parameters(trunk: nn.Module, last_stride: int) -> list[nn.Parameter]:
    """Parameters in use before the map gets coarser than `last_stride`."""
    parameters: list[nn.Parameter] = []
    for node, geometry in geometries(trunk).items():
        if geometry is not None and geometry.stride > last_stride:
            break
        if node.op == "call_module":
            parameters += trunk.get_submodule(str(node.target)).parameters()
        elif node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            attribute = getattr(trunk.get_submodule(owner), name)
            parameters += [attribute] if isinstance(attribute, nn.Parameter) else []
    return parameters


def hold_frozen_layers(trunk: nn.Module) -> None:
    """Put the layers that do not train into evaluation mode."""
    if not any(p.requires_grad for p in trunk.parameters()):
        trunk.eval()
    for module in trunk.modules():
        own = list(module.parameters(recurse=False))
        if isinstance(module, _NORMS) or (own and not any(p.requires_grad for p in own)):
            module.eval()


def geometry_of(trunk: nn.Module) -> Geometry:
    """The geometry of a trunk's output."""
    found = [geometry for node, geometry in geometries(trunk).items() if node.op != "output"]
    if not found or found[-1] is None:
        raise ConfigError(f"Expected a trunk whose output is a map of the picture but got {type(trunk).__name__}.")
    return found[-1]


def geometries(network: nn.Module) -> dict[fx.Node, Geometry | None]:
    """The nodes of a network in order of execution, and the geometry of their output; None: it is no map of the picture."""
    graph = network.graph if isinstance(network, fx.GraphModule) else fx.Tracer().trace(network)
    found: dict[fx.Node, Geometry | None] = {}
    for node in graph.nodes:
        found[node] = _geometry(node, network, found)
    return found


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
