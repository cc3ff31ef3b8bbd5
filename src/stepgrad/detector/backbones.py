"""Trunks by name: the convolutional part of a classifier, up to the last map worth pooling windows from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx, nn

from stepgrad.detector.geometry import Geometry, geometry_of, walk_layers
from stepgrad.detector.resize import LEAST_SIDE
from stepgrad.errors import ConfigError, suggest

FREEZE = ["original", "trunk", "none"]
_NORMS = nn.modules.batchnorm._BatchNorm


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
        maps = [layer.node for layer in walk_layers(network) if layer.geometry and layer.node.op != "output"]
        graph = maps[-1].graph
    except Exception as error:  # tracing raises whatever the network's code stumbles over
        raise _no_map(name) from error
    old_output = next(node for node in graph.nodes if node.op == "output")
    graph.erase_node(old_output)
    with graph.inserting_after(maps[-1]):
        graph.output(maps[-1])
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
    for layer in walk_layers(trunk):
        if layer.geometry is not None and layer.geometry.stride > last_stride:
            break
        if layer.node.op == "call_module":
            parameters += trunk.get_submodule(str(layer.node.target)).parameters()
        elif layer.node.op == "get_attr":
            owner, _, name = str(layer.node.target).rpartition(".")
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
