"""A small SSD, trained on endless `shapes` to the end; its weights, 1.4 MB, come with the package.

python -m experiments.endless.train --family ssd --steps 16000 --out RUN     # hours; see experiments/endless
python -m experiments.endless.package --start RUN                            # writes ssd.safetensors here
"""

from __future__ import annotations

from collections import OrderedDict
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.extras import need

need("torchvision", "safetensors", purpose="stepgrad.models.demo")

from safetensors.torch import load
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD
from torchvision.ops import FeaturePyramidNetwork

SIZE = 160
"""Of images, in pixels."""
CHANNELS = 64
CLASSES = 6
WEIGHTS = "ssd.safetensors"


class SmallPyramid(nn.Module):
    """Features of 64 channels at strides 8, 16 and 32, from ten convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_stage(3, 16), _stage(16, 32))
        self.stages = nn.ModuleList([_stage(32, 64), _stage(64, 96), _stage(96, 128)])
        self.fpn = FeaturePyramidNetwork([64, 96, 128], CHANNELS)
        self.out_channels: int | list[int] = CHANNELS

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        levels: OrderedDict[str, Tensor] = OrderedDict()
        x = self.stem(x)
        for number, stage in enumerate(self.stages):
            x = stage(x)
            levels[str(number)] = x
        found: dict[str, Tensor] = self.fpn(levels)
        return found


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    """Half the size; group normalisation, as batches are small and of different sizes."""
    layers: list[nn.Module] = []
    for i, stride in ((inputs, 2), (outputs, 1)):
        layers += [nn.Conv2d(i, outputs, 3, stride, 1, bias=False), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def small_ssd(classes: int = CLASSES) -> nn.Module:
    """torchvision's SSD on the small pyramid, with random weights."""
    backbone = SmallPyramid()
    backbone.out_channels = [CHANNELS] * 3
    boxes = DefaultBoxGenerator([[2], [2], [2]], scales=[0.12, 0.25, 0.5, 0.8])
    model: nn.Module = SSD(backbone, boxes, (SIZE, SIZE), classes + 1, score_thresh=0.01)
    return model


def trained_ssd() -> Any:
    """The SSD with the weights of the package, in eval mode, without gradients."""
    halves = load(files("stepgrad.models.demo").joinpath(WEIGHTS).read_bytes())
    with torch.random.fork_rng():
        model = small_ssd()
    model.load_state_dict(
        {name: value.float() if value.is_floating_point() else value for name, value in halves.items()}
    )
    return model.eval().requires_grad_(False)
