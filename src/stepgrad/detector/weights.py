"""Weights to start from: torchvision's by name, or a file; and a report of which layers stay random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.detector.backbones import Backbone
from stepgrad.detector.head import Head
from stepgrad.errors import ConfigError, DataError, suggest
from stepgrad.names import from_home

StateDict = Mapping[str, Tensor]
_WAY_OUT = "give a local .safetensors or .pt file, or weights: null for random ones"
_SUFFIXES = (".safetensors", ".pt", ".pth")


@dataclass(frozen=True)
class WeightsReport:
    """The layers that were loaded, their source, and the layers that stay random."""

    source: str | None
    loaded: tuple[str, ...]
    random: tuple[str, ...]
    frozen_random: tuple[str, ...] = ()
    """Layers that were not loaded and will not train."""

    def __str__(self) -> str:
        parts = [f"loaded {_listed(self.loaded)} from {self.source}"] if self.loaded else []
        parts += [f"random: {_listed(self.random)}"] if self.random else []
        text = "; ".join(parts)
        if self.frozen_random:
            text += f"; frozen although random: {_listed(self.frozen_random)} (freeze: none lets them train)"
        return text


def _listed(layers: tuple[str, ...]) -> str:
    """`trunk (5 layers), fc6, fc7`"""
    trunk = [name for name in layers if name.startswith("trunk.")]
    count = [f"trunk ({len(trunk)} layer{'s' * (len(trunk) > 1)})"] if trunk else []
    return ", ".join([*count, *(name.removeprefix("head.") for name in layers if name not in trunk)])


def fill_weights(backbone: Backbone, head: Head, source: str | Path | None) -> WeightsReport:
    """Load the trunk, and the layers of the head that fit; with None all weights stay random."""
    loaded: list[str] = []
    if source is not None:
        state = read_state(backbone.name, source)
        loaded = _fill_trunk(backbone, state, str(source)) + _fill_head(backbone, head, state)
    layers = _layers(backbone.trunk, "trunk.") | _layers(head, "head.")
    random = {name: layer for name, layer in layers.items() if name not in loaded}
    return WeightsReport(
        None if source is None else str(source),
        tuple(name for name in layers if name in loaded),
        tuple(random),
        tuple(name for name, layer in random.items() if _is_stuck(layer)),
    )


def _layers(module: nn.Module, prefix: str) -> dict[str, nn.Module]:
    """Layers with parameters of their own."""
    return {prefix + name: layer for name, layer in module.named_modules() if list(layer.parameters(recurse=False))}


def _is_stuck(layer: nn.Module) -> bool:
    """Whether a layer does not train. BatchNorm is left out: at rest it passes everything on, random or not."""
    is_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
    return not is_norm and not any(p.requires_grad for p in layer.parameters(recurse=False))


def read_state(backbone: str, source: str | Path) -> StateDict:
    """The tensors of a file, or of torchvision's weights by name ("imagenet" or such as "IMAGENET1K_V1")."""
    path = from_home(source)
    if path.is_file():
        return _read_file(path)
    if path.suffix in _SUFFIXES or len(path.parts) > 1:
        raise DataError(f"{path}: no such weights file; {_WAY_OUT}")
    return _download(backbone, str(source))


def _read_file(path: Path) -> StateDict:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each format has its own errors
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: is not a readable weights file ({reason}); {_WAY_OUT}") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise DataError(f"{path}: expected a state dict (tensors by name) but got {type(content).__name__}.")
    odd = next((name for name, v in content.items() if v.layout is not torch.strided or v.is_quantized), None)
    if odd is not None:
        raise DataError(
            f"{path}: expected plain tensors but {odd!r} is sparse or quantized; save its to_dense() or dequantize()."
        )
    return {str(name).removeprefix("module."): tensor for name, tensor in content.items()}


def _download(backbone: str, name: str) -> StateDict:
    if backbone == "tiny":
        raise ConfigError(f"weights: `tiny` has no weights called {name!r}, it starts from random ones; {_WAY_OUT}.")
    from torchvision.models import get_model_weights

    known: Any = get_model_weights(backbone)
    offered: dict[str, Any] = {"imagenet": known.DEFAULT, **known.__members__}
    chosen = offered.get(name.rpartition(".")[2])
    if chosen is None:
        names = list(offered)
        raise ConfigError(
            f"weights: expected a file or one of {names} for {backbone} but got {name!r}.{suggest(name, names)}"
        )
    try:
        # an earlier download is not checked again, so it must not be able to hold code either
        state: StateDict = chosen.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except Exception as error:  # no network, a proxy, a full disk, a damaged download
        raise DataError(
            f"{chosen.url}: cannot be downloaded ({error}); download it on another machine, then {_WAY_OUT}"
        ) from error
    return state


def _fill_trunk(backbone: Backbone, state: StateDict, source: str) -> list[str]:
    """Load all of the trunk, from a whole network's names, a detector's, or the trunk's own."""
    wanted = {k: v for k, v in backbone.trunk.state_dict().items() if not k.endswith("num_batches_tracked")}
    prefixes = dict.fromkeys(("trunk.", backbone.prefix, "features.", ""))
    prefix = next((p for p in prefixes if any(p + name in state for name in wanted)), None)
    if prefix is None:
        raise DataError(
            f"{source}: expected weights of {backbone.name}, with names such as "
            f"{backbone.prefix + next(iter(wanted))!r}, but got {len(state)} tensors, first "
            f"{list(state)[:3]}."
        )
    tensors = {name: state[prefix + name] for name in wanted if prefix + name in state}
    for name, expected in wanted.items():
        if name not in tensors:
            raise DataError(f"{source}: has no {prefix + name!r}, {tuple(expected.shape)}; {backbone.name} needs it.")
        if tensors[name].shape != expected.shape:
            raise DataError(
                f"{source}: expected {prefix + name!r} of {backbone.name} to have shape {tuple(expected.shape)} but got "
                f"{tuple(tensors[name].shape)}; does it belong to another network?"
            )
    backbone.trunk.load_state_dict(tensors, strict=False)
    return list(_layers(backbone.trunk, "trunk."))


def _fill_head(backbone: Backbone, head: Head, state: StateDict) -> list[str]:
    """Load fc6 and fc7 of a classifier, or all layers of a detector's head, where the shapes fit."""
    sources = {f"head.{name}": f"head.{name}" for name in ("fc6", "fc7", "scores")}
    if backbone.fully_connected is not None and "head.fc6.weight" not in state:
        sources = dict(zip(("head.fc6", "head.fc7"), backbone.fully_connected, strict=True))
    loaded = []
    for layer, origin in sources.items():
        module = head.get_submodule(layer.removeprefix("head."))
        tensors = {name: state.get(f"{origin}.{name}") for name in ("weight", "bias")}
        if all(v is not None and v.shape == module.get_parameter(name).shape for name, v in tensors.items()):
            module.load_state_dict(tensors)
            loaded.append(layer)
    return loaded
