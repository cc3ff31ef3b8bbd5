"""The windows of images that YOLOv8n finds, with what a new class head sees of them, kept on disk.

    python -m experiments.yolo.windows --data DIR --cache DIR --set voc      # or bccd; goes on where it was stopped

Per window: the 80 features before its last class layer; of each side's 16 probabilities the four largest, their mean and the
entropy; the box's place and size; its level. Not its logits: these know COCO's classes. One file per 100 images.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn import functional as F

from experiments.yolo.network import BINS, Found, YOLOv8n, load
from stepgrad.cli.progress import RichProgress
from stepgrad.data import VOCDataset
from stepgrad.files import write_whole
from stepgrad.fine_tuning import ImageWindows

SIDE = 640
GREY = 114 / 255
PART = 100  # images per file
WEIGHTS = Path("weights/yolov8n_coco_fp32.onnx")


@dataclass(frozen=True)
class Letterbox:
    """An image in the middle of a grey square, and the way back."""

    scale: float
    left: int
    top: int

    def back(self, boxes: Tensor) -> Tensor:
        shift = torch.tensor([self.left, self.top, self.left, self.top], dtype=boxes.dtype)
        return (boxes - shift) / self.scale


def letterbox(image: Tensor) -> tuple[Tensor, Letterbox]:
    """(3, 640, 640) of an image (3, H, W) in [0, 1]."""
    height, width = image.shape[-2:]
    scale = SIDE / max(height, width)
    size = [max(1, round(height * scale)), max(1, round(width * scale))]
    small = F.interpolate(image[None], size, mode="bilinear", antialias=True)[0]
    top, left = (SIDE - size[0]) // 2, (SIDE - size[1]) // 2
    square = torch.full((3, SIDE, SIDE), GREY)
    square[:, top : top + size[0], left : left + size[1]] = small
    return square, Letterbox(scale, left, top)


def describe(found: Found, which: Tensor) -> Tensor:
    """What a head sees of some places of the first image: (N, 111)."""
    sides = found.sides[0, which]
    far = sides @ torch.arange(BINS, dtype=sides.dtype)
    entropy = -(sides * sides.clamp_min(1e-9).log()).sum(-1)
    largest = sides.topk(4, dim=-1).values.flatten(1)
    boxes = found.boxes[0, which] / SIDE
    size = (boxes[:, 2:] - boxes[:, :2]).clamp_min(1e-3)
    level = F.one_hot(found.level[which], 3).to(sides.dtype)
    return torch.cat([found.features[0, which], largest, far, entropy, boxes, size.log(), level], dim=1)


@torch.no_grad()
def windows_of(network: YOLOv8n, image: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Features and boxes of the places whose surest class is surest."""
    square, box = letterbox(image.float() / 255)
    found = network(square[None])
    best = found.logits[0].amax(dim=1).topk(count).indices.sort().values
    height, width = image.shape[-2:]
    boxes = box.back(found.boxes[0, best]).clamp(min=0)
    return describe(found, best), boxes.minimum(torch.tensor([width, height] * 2, dtype=boxes.dtype))


class Cache:
    """The windows of a dataset's images, in files of a hundred images."""

    def __init__(self, folder: Path, dataset: VOCDataset, windows: int) -> None:
        self.folder, self.dataset, self.windows = folder, dataset, windows

    def fill(self, network: YOLOv8n, progress: Any) -> None:
        """Make what is not there yet."""
        todo = [first for first in range(0, len(self.dataset), PART) if not self._file(first).exists()]
        with progress.stage(f"windows of {self.dataset.name}", len(todo) * PART) as tick:
            for first in todo:
                parts = []
                for i in range(first, min(first + PART, len(self.dataset))):
                    parts.append(windows_of(network, self.dataset[i][0], self.windows))
                    tick()
                features, boxes = (torch.stack(kind) for kind in zip(*parts, strict=True))
                self.folder.mkdir(parents=True, exist_ok=True)
                write_whole(self._file(first), save({"features": features.half(), "boxes": boxes}))

    def images(self, count: int | None = None, windows: int | None = None) -> list[ImageWindows]:
        """The first images, as a head sees them; of each at most so many windows, the surest being no more than others."""
        found: list[ImageWindows] = []
        for first in range(0, min(count or len(self.dataset), len(self.dataset)), PART):
            part = load_file(self._file(first))
            for n, (features, boxes) in enumerate(zip(part["features"], part["boxes"], strict=True)):
                found.append(
                    ImageWindows(features[:windows].float(), boxes[:windows], dict(self.dataset.target(first + n)))
                )
        return found[:count]

    def _file(self, first: int) -> Path:
        return self.folder / f"{self.dataset.split}-{self.windows}-{first:05}.safetensors"


def main(arguments: Sequence[str] | None = None) -> None:
    from experiments.yolo.sets import SETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--set", choices=list(SETS), required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    network = load(options.data / WEIGHTS)
    with RichProgress() as progress:
        for cache in SETS[options.set].caches(options.data, options.cache).values():
            cache.fill(network, progress)


if __name__ == "__main__":
    main()
