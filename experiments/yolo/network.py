"""YOLOv8n as one reads it off its weights: convolutions with batch norm folded in, names as in the ONNX file.

The backbone ends at strides 8, 16 and 32; a pyramid goes up and down again; at each stride one branch gives a distribution
over 16 distances for each side of the box, and another the class logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

WEIGHTS = Path("weights/yolov8n_coco_fp32.onnx")
"""In the folder of the data."""
GREY = 114 / 255  # around pictures
STRIDES = (8, 16, 32)
BINS = 16
WIDTHS = (64, 128, 256)  # of the pyramid, by stride
CLASS_FEATURES = 80


class Conv(nn.Module):
    """Convolution and SiLU."""

    def __init__(self, inputs: int, outputs: int, size: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, size // 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.conv(x))


class Bottleneck(nn.Module):
    """Two convolutions, added to what came in where the way back is short."""

    def __init__(self, channels: int, add: bool) -> None:
        super().__init__()
        self.cv1, self.cv2, self.add = Conv(channels, channels, 3), Conv(channels, channels, 3), add

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cv2(self.cv1(x))
        return x + y if self.add else y


class Stage(nn.Module):
    """Half of the channels through a chain of bottlenecks; all links of the chain are joined at the end."""

    def __init__(self, inputs: int, outputs: int, links: int, add: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.cv1, self.cv2 = Conv(inputs, outputs), Conv((2 + links) * half, outputs)
        self.m = nn.ModuleList([Bottleneck(half, add) for _ in range(links)])

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.cv1(x).chunk(2, 1))
        for link in self.m:
            parts.append(link(parts[-1]))
        joined: Tensor = self.cv2(torch.cat(parts, 1))
        return joined


class Pool(nn.Module):
    """What is around a place, at four sizes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(channels, channels // 2), Conv(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.cv1(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        joined: Tensor = self.cv2(torch.cat(parts, 1))
        return joined


class Branches(nn.Module):
    """At each stride, a branch for boxes (cv2) and one for classes (cv3)."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.cv2 = nn.ModuleList(
            nn.Sequential(Conv(w, 64, 3), Conv(64, 64, 3), nn.Conv2d(64, 4 * BINS, 1)) for w in WIDTHS
        )
        self.cv3 = nn.ModuleList(
            nn.Sequential(
                Conv(w, CLASS_FEATURES, 3),
                Conv(CLASS_FEATURES, CLASS_FEATURES, 3),
                nn.Conv2d(CLASS_FEATURES, classes, 1),
            )
            for w in WIDTHS
        )


class Found(NamedTuple):
    """Of a batch of images, for the A = 8400 places of 640 x 640 pixels."""

    boxes: Tensor  # (B, A, 4) in pixels
    sides: Tensor  # (B, A, 4, 16) probabilities of the distances to left, top, right and bottom
    features: Tensor  # (B, A, 80) before the last class layer
    logits: Tensor  # (B, A, 80)
    level: Tensor  # (A,)


class YOLOv8n(nn.Module):
    """Images (B, 3, H, W) in [0, 1], sides multiples of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "0": Conv(3, 16, 3, 2),
                "1": Conv(16, 32, 3, 2),
                "2": Stage(32, 32, 1, True),
                "3": Conv(32, 64, 3, 2),
                "4": Stage(64, 64, 2, True),
                "5": Conv(64, 128, 3, 2),
                "6": Stage(128, 128, 2, True),
                "7": Conv(128, 256, 3, 2),
                "8": Stage(256, 256, 1, True),
                "9": Pool(256),
                "12": Stage(384, 128, 1, False),
                "15": Stage(192, 64, 1, False),
                "16": Conv(64, 64, 3, 2),
                "18": Stage(192, 128, 1, False),
                "19": Conv(128, 128, 3, 2),
                "21": Stage(384, 256, 1, False),
                "22": Branches(),
            }
        )

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """Features at strides 8, 16 and 32."""
        m = self.model
        eighth = m["4"](m["3"](m["2"](m["1"](m["0"](x)))))
        sixteenth = m["6"](m["5"](eighth))
        last = m["9"](m["8"](m["7"](sixteenth)))
        middle = m["12"](torch.cat([F.interpolate(last, scale_factor=2.0), sixteenth], 1))
        fine = m["15"](torch.cat([F.interpolate(middle, scale_factor=2.0), eighth], 1))
        middle = m["18"](torch.cat([m["16"](fine), middle], 1))
        return [fine, middle, m["21"](torch.cat([m["19"](middle), last], 1))]

    def forward(self, x: Tensor) -> Found:
        branches = self.model["22"]
        parts = [self._level(n, p, branches) for n, p in enumerate(self.pyramid(x))]
        boxes, sides, features, logits = (torch.cat(kind, 1) for kind in list(zip(*parts, strict=True)))
        level = torch.cat([torch.full((p[0].shape[1],), n) for n, p in enumerate(parts)])
        return Found(boxes, sides, features, logits, level)

    def _level(self, n: int, x: Tensor, branches: nn.Module) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        distances = branches.get_submodule(f"cv2.{n}")(x).flatten(2).transpose(1, 2)  # (B, A, 64)
        sides = distances.unflatten(2, (4, BINS)).softmax(dim=3)
        far = sides @ torch.arange(BINS, dtype=x.dtype, device=x.device)
        ys, xs = (torch.arange(size, dtype=x.dtype, device=x.device) + 0.5 for size in x.shape[-2:])
        centre = torch.stack(torch.meshgrid(ys, xs, indexing="ij")[::-1], dim=-1).flatten(0, 1)
        boxes = torch.cat([centre - far[..., :2], centre + far[..., 2:]], dim=2) * STRIDES[n]
        features = self.class_features(n, x)
        last = branches.get_submodule(f"cv3.{n}.2")
        assert isinstance(last, nn.Conv2d)
        return boxes, sides, features, F.linear(features, last.weight.flatten(1), last.bias)

    def class_features(self, n: int, x: Tensor) -> Tensor:
        """(B, A, 80) of a stride, before the last class layer."""
        branches = self.model["22"]
        features: Tensor = branches.get_submodule(f"cv3.{n}.1")(branches.get_submodule(f"cv3.{n}.0")(x))
        return features.flatten(2).transpose(1, 2)


def load(file: Path) -> YOLOv8n:
    """The network with the weights of an ONNX file."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(file)).graph
    weights = {t.name: torch.from_numpy(np.array(numpy_helper.to_array(t))) for t in graph.initializer}
    weights = {name: value for name, value in weights.items() if name.startswith("model.") and ".dfl." not in name}
    network = YOLOv8n()
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)
