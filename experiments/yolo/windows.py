"""The windows of images that YOLOv8n finds, with what a new class head sees of them, kept on disk.

    python -m experiments.yolo.windows --data DIR --cache DIR --set voc      # or bccd, visdrone; goes on where it was stopped

Per window: the 80 features before its last class layer; of each side's 16 probabilities the four largest, their mean and the
entropy; the box's place and size; its level. Not its logits: these know COCO's classes. One file per 100 images.
For VisDrone the boxes are those of `python -m experiments.yolo.box_branch`, which comes first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import nms

from experiments.yolo.box_branch import FILE, BoxBranch, load_branch, padded
from experiments.yolo.network import BINS, GREY, WEIGHTS, Found, YOLOv8n, load
from stepgrad.data import DetectionDataset
from stepgrad.files import write_whole
from stepgrad.models.fine_tuning import ImageWindows
from stepgrad.progress import RichProgress

SIDE = 640
NEARLY_EQUAL = 0.8  # IoU
PART = 100  # images per file


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


Windows = tuple[Tensor, Tensor]  # features and boxes
Finder = Callable[[Tensor], Windows]


def as_it_is(network: YOLOv8n, count: int) -> Finder:
    """The places of an image whose surest class is surest."""

    @torch.no_grad()
    def find(image: Tensor) -> Windows:
        square, box = letterbox(image.float() / 255)
        found = network(square[None])
        best = found.logits[0].amax(dim=1).topk(count).indices.sort().values
        return describe(found, best), _within(box.back(found.boxes[0, best]), image)

    return find


def with_branch(network: YOLOv8n, branch: BoxBranch, count: int) -> Finder:
    """The places of an image whose boxes, by another box branch, fit best; of nearly equal boxes only the best."""

    @torch.no_grad()
    def find(image: Tensor) -> Windows:
        pyramid = network.pyramid(padded(image))
        places = branch(pyramid)
        features = torch.cat([network.class_features(n, x)[0] for n, x in enumerate(pyramid)])
        level = torch.cat([torch.full((x.shape[-2] * x.shape[-1],), n) for n, x in enumerate(pyramid)])
        found = Found(
            places.boxes[None], places.distances.softmax(dim=2)[None], features[None], places.fit[None, :, None], level
        )
        best = nms(places.boxes, places.fit, NEARLY_EQUAL)[:count].sort().values
        return describe(found, best), _within(places.boxes[best], image)

    return find


def _within(boxes: Tensor, image: Tensor) -> Tensor:
    height, width = image.shape[-2:]
    return boxes.clamp(min=0).minimum(torch.tensor([width, height] * 2, dtype=boxes.dtype))


class Cache:
    """The windows of a dataset's images, in files of a hundred images."""

    def __init__(self, folder: Path, dataset: DetectionDataset, windows: int) -> None:
        self.folder, self.dataset, self.windows = folder, dataset, windows

    def fill(self, find: Finder, progress: Any) -> None:
        """Make what is not there yet."""
        todo = [first for first in range(0, len(self.dataset), PART) if not self._file(first).exists()]
        with progress.stage(f"windows of {self.dataset.name}", len(todo) * PART) as tick:
            for first in todo:
                parts = []
                for i in range(first, min(first + PART, len(self.dataset))):
                    parts.append(find(self.dataset[i][0]))
                    tick()
                features, boxes = (torch.stack(kind) for kind in zip(*parts, strict=True))
                self.folder.mkdir(parents=True, exist_ok=True)
                write_whole(self._file(first), save({"features": features.half(), "boxes": boxes}))

    def images(self) -> list[ImageWindows]:
        """What a head sees of each image."""
        found: list[ImageWindows] = []
        for first in range(0, len(self.dataset), PART):
            part = load_file(self._file(first))
            for features, boxes in zip(part["features"], part["boxes"], strict=True):
                found.append(ImageWindows(features.float(), boxes, dict(self.dataset.target(len(found)))))
        return found

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
    chosen = SETS[options.set]
    find = as_it_is(network, chosen.windows)
    if chosen.own_boxes:
        find = with_branch(network, load_branch(network, options.cache / chosen.folder / FILE), chosen.windows)
    with RichProgress() as progress:
        for cache in chosen.caches(options.data, options.cache).values():
            cache.fill(find, progress)


if __name__ == "__main__":
    main()
