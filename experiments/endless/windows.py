"""What a new class head of two layers sees of an image: the boxes that the detector found, and its features where they come from.

`stepgrad demo` shows the last class layer instead, as `train_new_head` trains it: one layer, and the features around a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stepgrad.data.base import DetectionDataset
from stepgrad.models.demo.detector import CLASSES
from stepgrad.models.fine_tuning import ImageWindows

NMS_THRESHOLD = 0.5
START_RATE, MORE_RATE, MAP_RATE = 1e-2, 3e-3, 3e-3
WEIGHT_DECAY = 1.0
"""Of cross-entropy, which overfits without. The best of several each, on held-out images."""
TRAINING_SEED = 7
"""Of the training images, which the detector never saw."""
WINDOWS = 300
"""Per image: those that most likely hold something."""
_TOGETHER = 16  # images in one pass of the detector


@torch.no_grad()
def extract(model: Any, dataset: DetectionDataset, tick: Callable[[], object]) -> list[ImageWindows]:
    """The windows of all images of a dataset, which are of one size."""
    found: list[ImageWindows] = []
    for first in range(0, len(dataset), _TOGETHER):
        given = [dataset[i] for i in range(first, min(first + _TOGETHER, len(dataset)))]
        windows = find(model, [image.float() / 255 for image, _ in given])
        for seen, (_, target) in zip(windows, given, strict=True):
            found.append(
                ImageWindows(seen.features, seen.boxes, {"boxes": target["boxes"], "labels": target["labels"]})
            )
            tick()
    return found


class Found(NamedTuple):
    """The windows of an image."""

    features: Tensor  # (N, F)
    boxes: Tensor  # (N, 4)
    scores: Tensor  # (N, K) log-probabilities of the classes
    finest: Tensor  # (C, H, W) the features that everything comes from, at stride 8


def find(model: Any, images: list[Tensor], count: int = WINDOWS) -> Iterator[Found]:
    """The windows of each image that most likely hold something."""
    prepared, _ = model.transform(images)
    maps = list(model.backbone(prepared.tensors).values())
    found = model.head(maps)
    anchors = model.anchor_generator(prepared, maps)
    counts: list[int] = model.anchor_generator.num_anchors_per_location()
    whats = torch.cat(
        [_what(m.shape[-2:].numel(), each, level) for level, (m, each) in enumerate(zip(maps, counts, strict=True))]
    )
    scores = found["cls_logits"].log_softmax(dim=2)
    something = 1 - found["cls_logits"].softmax(dim=2)[:, :, 0]
    for i, image in enumerate(images):
        best = something[i].topk(min(count, something.shape[1])).indices.sort().values
        moved = found["bbox_regression"][i][best]
        boxes = model.box_coder.decode_single(moved, anchors[i][best]).clamp(0, image.shape[-1])
        places = torch.cat([_per_anchor(m[i], each) for m, each in zip(maps, counts, strict=True)])
        features = torch.cat([places[best], whats[best], moved], dim=1)
        yield Found(features, boxes, scores[i, best, 1:], maps[0][i])


def _per_anchor(features: Tensor, anchors: int) -> Tensor:
    """(places x anchors, C) features of a level's map (C, H, W)."""
    return features.flatten(1).T.repeat_interleave(anchors, 0)


def _what(places: int, anchors: int, level: int) -> Tensor:
    """Which anchor of its place each box comes from, and the level."""
    which = torch.eye(anchors).repeat(places, 1)
    return torch.cat([which, torch.full((len(which), 1), float(level))], dim=1)


def standardised(images: Sequence[ImageWindows], like: Sequence[ImageWindows]) -> list[ImageWindows]:
    """With mean and spread of the features of `like` taken out."""
    known = torch.cat([image.features for image in like])
    mean, spread = known.mean(0), known.std(0) + 1e-3
    return [image._replace(features=(image.features - mean) / spread) for image in images]


def new_head(features: int, seed: int, units: int = 128) -> nn.Module:
    """Random weights; at first every window is most likely nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Sequential(nn.Linear(features, units), nn.ReLU(), nn.Linear(units, CLASSES))
    nn.init.constant_(head.get_parameter("2.bias"), -3.0)
    return head
