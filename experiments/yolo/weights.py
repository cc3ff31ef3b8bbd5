"""YOLOv8n of ultralytics with the weights of an ONNX file, for training on.

The file has batch norm folded into its convolutions. To go on training one needs it back: with the statistics of some images for
means and variances, and the scale and shift that undo them. In eval mode the network is then exactly what it was, and in training
mode nearly, as batches have nearly those statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.yolo.network import load


def load_folded(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a model with batch norm the weights of one without: each batch norm leaves its input as it is, plus the bias."""
    state = model.state_dict()
    folded = {name.removesuffix(".bn.weight") for name in state if name.endswith(".bn.weight")}
    for name in folded:
        norm: Any = model.get_submodule(f"{name}.bn")
        bias = weights[f"{name}.conv.bias"]
        set_norm(norm, torch.zeros_like(bias), torch.ones_like(bias), bias)
        state.update({f"{name}.bn.{key}": value for key, value in norm.state_dict().items()})
    given = {n: v for n, v in weights.items() if n.removesuffix(".conv.bias") not in folded}
    unknown = sorted(given.keys() - state.keys())
    if unknown:
        raise KeyError(f"{len(unknown)} weights have no place in the model, the first {unknown[0]}")
    model.load_state_dict({**state, **given})


def set_norm(norm: Any, mean: Tensor, variance: Tensor, bias: Tensor) -> None:
    """Statistics, and the scale and shift with which the output is the input plus the bias."""
    with torch.no_grad():
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        norm.weight.copy_((norm.running_var + norm.eps).sqrt())
        norm.bias.copy_(bias + norm.running_mean)


@torch.no_grad()
def calibrate(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Give each batch norm the statistics of these images; in eval mode, the model stays what it is."""
    norms = {module: Moments() for module in model.modules() if isinstance(module, nn.BatchNorm2d)}
    hooks = [module.register_forward_pre_hook(moments.look_at) for module, moments in norms.items()]
    model.eval()
    for batch in batches:
        model(batch)
    for hook in hooks:
        hook.remove()
    for norm, moments in norms.items():
        set_norm(norm, *moments.mean_and_variance(), norm.bias - norm.running_mean)


class Moments:
    """Sums over what enters a layer, by channel."""

    def __init__(self) -> None:
        self.count = 0
        self.total: Any = 0.0
        self.squares: Any = 0.0

    def look_at(self, module: nn.Module, inputs: tuple[Tensor]) -> None:
        x = inputs[0].double()
        self.count += x.numel() // x.shape[1]
        self.total = self.total + x.sum((0, 2, 3))
        self.squares = self.squares + x.square().sum((0, 2, 3))

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        mean: Tensor = self.total / self.count
        return mean, (self.squares / self.count - mean.square()).clamp_min(0.0)


def write_checkpoint(onnx_file: Path, batches: Iterable[Tensor], out: Path) -> None:
    """A .pt that `YOLO` opens, as if it were the weights that ultralytics offers."""
    from ultralytics import YOLO

    yolo = YOLO("yolov8n.yaml")
    load_folded(yolo.model, load(onnx_file).state_dict())
    calibrate(yolo.model, batches)
    out.parent.mkdir(parents=True, exist_ok=True)
    yolo.save(out)
