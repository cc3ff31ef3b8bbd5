"""The data that YOLOv8n's features are taken of, and the budgets of heads on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from experiments.yolo.windows import Cache
from stepgrad.data import load_dataset
from stepgrad.models.fine_tuning import ImageWindows

CLASSES_PER_SHARE = 4


@dataclass(frozen=True)
class Parts:
    """Images as a head sees them, their features standardised by those of `train`."""

    train: list[ImageWindows]
    held_out: list[ImageWindows]
    test: list[ImageWindows]
    num_classes: int


@dataclass(frozen=True)
class Set:
    """A dataset with its splits, and how long heads are trained on it."""

    folder: str
    splits: tuple[str, ...]  # the last is looked at once
    windows: int
    held_out: int = 0
    """Every so many-th training image is held out; 0: the second split is."""
    own_boxes: bool = False
    """Whether the boxes come from a box branch that was trained for this set."""
    tail: bool = False
    """Whether most objects of some classes are taken from the training images."""
    nms: float = 0.6
    steps: int = 4000
    images: int = 16  # per step of cross-entropy
    map_steps: int = 150
    map_images: int = 32

    def caches(self, data: Path, cache: Path) -> dict[str, Cache]:
        return {
            split: Cache(cache / self.folder, load_dataset(data / self.folder, split), self.windows)
            for split in self.splits
        }

    def load(self, data: Path, cache: Path, test: bool) -> Parts:
        """Without the test images, unless told: nothing is chosen by them."""
        caches = self.caches(data, cache)
        images = {split: found.images() for split, found in caches.items() if test or split != self.splits[-1]}
        first, last = images[self.splits[0]], images.get(self.splits[-1], [])
        classes = len(caches[self.splits[0]].dataset.class_names)
        first = long_tailed(first, classes) if self.tail else first
        every = self.held_out
        held_out = first[::every] if every else images[self.splits[1]]
        train = [image for n, image in enumerate(first) if n % every] if every else first
        return Parts(*standardised(train, held_out, last), classes)


def standardised(train: Sequence[ImageWindows], *others: Sequence[ImageWindows]) -> list[list[ImageWindows]]:
    """Features with the mean and spread of the training windows taken out."""
    features = torch.cat([image.features for image in train])
    mean, spread = features.mean(dim=0), features.std(dim=0).clamp_min(1e-6)
    return [
        [image._replace(features=(image.features - mean) / spread) for image in images] for images in (train, *others)
    ]


def long_tailed(images: Sequence[ImageWindows], num_classes: int) -> list[ImageWindows]:
    """From the most frequent class on, four classes keep all objects, four the half, four a quarter, and so on.

    The others become difficult: nothing is learnt from them, neither that they are there nor that they are not.
    """
    labels = torch.cat([image.target["labels"] for image in images])
    order = torch.bincount(labels, minlength=num_classes).argsort(descending=True, stable=True)
    drawn = torch.rand(len(labels), generator=torch.Generator().manual_seed(0))
    share = torch.zeros(num_classes)
    share[order] = 0.5 ** (torch.arange(num_classes) // CLASSES_PER_SHARE).float()
    cut = (drawn >= share[labels]).split([len(image.target["labels"]) for image in images])
    return [
        image._replace(target={**image.target, "difficult": image.target["difficult"].bool() | gone})
        for image, gone in zip(images, cut, strict=True)
    ]


SETS = {
    "voc": Set("VOC2012-320", ("train", "val"), 300, held_out=8),
    "voc_tail": Set("VOC2012-320", ("train", "val"), 300, held_out=8, tail=True),
    "bccd": Set("BCCD", ("train", "val", "test"), 300, steps=1500, images=8, map_steps=100),
    "visdrone": Set("VisDrone-640", ("train", "val"), 500, held_out=6, own_boxes=True),
}
