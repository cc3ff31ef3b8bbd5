"""Windows, scores and objects for the benchmarks: random, but as crowded as selective search on real photos."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torchvision.ops import box_iou, nms

WIDTH, HEIGHT = 500.0, 375.0  # a VOC photo
SMALLEST = 20.0  # shortest side selective search is asked for
DENSE_CENTRES = 33

Target = dict[str, Tensor]


@dataclass(frozen=True)
class Scene:
    """One batch in the shape MAPLoss takes it: lists with one entry per image."""

    scores: list[Tensor]  # (N, K) each
    boxes: list[Tensor]  # (N, 4) each
    targets: list[Target]

    @property
    def windows(self) -> int:
        return sum(len(b) for b in self.boxes)


@dataclass(frozen=True)
class Crowding:
    """How windows of one image lie: what makes NMS and the step search easy or hard. Means over images."""

    images: int
    windows: float
    neighbours: float  # windows per window with IoU > 0.3
    near_copies: float  # with IoU > 0.7
    kept: float  # share that NMS at 0.3 keeps under random scores
    foreground: float  # share with IoU >= 0.5 to some object


def clustered_scene(images: int = 8, windows: int = 2000, classes: int = 20, seed: int = 0) -> Scene:
    """Several objects per image, windows in clusters around objects and background regions, every class present."""
    return _scene(_image, images, windows, classes, seed)


def _scene(
    make: Callable[..., tuple[Tensor, Tensor, Target]], images: int, windows: int, classes: int, seed: int
) -> Scene:
    generator = torch.Generator().manual_seed(seed)
    objects = torch.randint(3, 7, (images,), generator=generator)
    total = int(objects.sum())
    labels = torch.cat([torch.randperm(classes, generator=generator) for _ in range(-(-total // classes))])[:total]
    parts = [make(windows, image_labels, classes, generator) for image_labels in labels.split(objects.tolist())]
    return Scene([p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts])


def _image(windows: int, labels: Tensor, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Target]:
    """Regions first (objects, then background), then windows that are jittered copies of regions."""
    regions = windows // 17
    sides = torch.exp(torch.randn(regions, 2, generator=generator) * 0.7 + torch.tensor([4.3, 4.2]))
    sides[: len(labels)] = 70 + 160 * torch.rand(len(labels), 2, generator=generator)
    centres = torch.rand(regions, 2, generator=generator) * torch.tensor([WIDTH, HEIGHT])
    objects = _boxes(centres[: len(labels)], sides[: len(labels)])

    popularity = torch.rand(regions, generator=generator) + 0.1
    popularity[: len(labels)] = 1.0
    region = torch.multinomial(popularity, windows, replacement=True, generator=generator)
    jitter = 0.03 + 0.5 * torch.rand(windows, 1, generator=generator) ** 2  # some hug their region, some stray
    moved = centres[region] + sides[region] * jitter * torch.randn(windows, 2, generator=generator)
    sized = sides[region] * torch.exp(jitter * 1.2 * torch.randn(windows, 2, generator=generator))
    boxes = _boxes(moved, sized)
    target = {"boxes": objects, "labels": labels}
    return _scores(boxes, region, regions, target, classes, generator), boxes, target


def dense_scene(images: int = 8, windows: int = 2000, classes: int = 20, seed: int = 0) -> Scene:
    """Few places per image and many windows at each: twice as many neighbours as selective search makes."""
    return _scene(_dense_image, images, windows, classes, seed)


def _dense_image(
    windows: int, labels: Tensor, classes: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Target]:
    centres = torch.rand(DENSE_CENTRES, 2, generator=generator) * torch.tensor([WIDTH, HEIGHT])
    sides = (
        torch.exp(torch.randn(DENSE_CENTRES, 2, generator=generator) * 0.3) * 74
    )  # so that a window has about 70 neighbours
    region = torch.randint(DENSE_CENTRES, (windows,), generator=generator)
    moved = centres[region] + 15 * torch.randn(windows, 2, generator=generator)
    boxes = _boxes(moved, sides[region] * torch.exp(0.3 * torch.randn(windows, 2, generator=generator)))
    target = {"boxes": _boxes(centres[: len(labels)], sides[: len(labels)]), "labels": labels}
    return _scores(boxes, region, DENSE_CENTRES, target, classes, generator), boxes, target


def real_scene(data: Path, images: int = 8, seed: int = 0) -> Scene:
    """Selective-search windows and objects of VOC photos; the scores are made, those of a half-trained detector."""
    from stepgrad.detector.training.inputs import open_data

    voc = data / "VOC2012-320"
    photos = open_data(str(voc), "train", str(voc / "selective_search_fast.npz"), images)
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for i in range(images):
        boxes, target = photos.facts(i)
        region = torch.arange(len(boxes)) // 17
        known = {"boxes": target["boxes"].float(), "labels": target["labels"]}
        scores = _scores(boxes.float(), region, int(region.max()) + 1, known, 20, generator)
        parts.append((scores, boxes.float(), known))
    return Scene([p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts])


def _boxes(centres: Tensor, sides: Tensor) -> Tensor:
    """xyxy inside the photo, no side below the smallest."""
    limits = torch.tensor([WIDTH, HEIGHT])
    low = (centres - sides / 2).clamp(min=torch.zeros(2), max=limits - SMALLEST)
    high = torch.minimum(torch.maximum(centres + sides / 2, low + SMALLEST), limits)
    return torch.cat([low, high], dim=1).round()


def _scores(
    boxes: Tensor, region: Tensor, regions: int, target: Target, classes: int, generator: torch.Generator
) -> Tensor:
    """A half-trained detector: overlap with the class's objects, plus errors that neighbours share, plus noise."""
    quality = torch.zeros(len(boxes), classes)
    overlap = box_iou(boxes, target["boxes"])
    for column, label in enumerate(target["labels"].tolist()):
        quality[:, label] = torch.maximum(quality[:, label], overlap[:, column])
    shared = torch.randn(regions, classes, generator=generator)[region]
    return 3 * quality + shared + 0.5 * torch.randn(len(boxes), classes, generator=generator) - 3


def disjoint_scene(count: int, positives: int, images: int, seed: int = 0) -> Scene:
    """One class, windows that never overlap; `positives` of them cover one object each."""
    generator = torch.Generator().manual_seed(seed)
    per_image, objects = count // images, positives // images
    side = int(per_image**0.5) + 1
    cell = torch.arange(per_image)
    corner = torch.stack([cell % side, cell // side], dim=1).float() * 2
    boxes = torch.cat([corner, corner + 1], dim=1)
    parts = [_disjoint_image(boxes, objects, generator) for _ in range(images)]
    return Scene([p[0] for p in parts], [boxes] * images, [p[1] for p in parts])


def _disjoint_image(boxes: Tensor, objects: int, generator: torch.Generator) -> tuple[Tensor, Target]:
    covered = torch.randperm(len(boxes), generator=generator)[:objects]
    scores = torch.randn(len(boxes), 1, generator=generator)
    scores[covered] += 1.5
    return scores, {"boxes": boxes[covered], "labels": torch.zeros(objects, dtype=torch.int64)}


def relevance(scene: Scene) -> Tensor:
    """(all windows, K) True where IoU with an object of the class is >= 0.5: labels for losses without NMS."""
    rows = []
    for scores, boxes, target in zip(scene.scores, scene.boxes, scene.targets, strict=True):
        hit = box_iou(boxes, target["boxes"]) >= 0.5
        image = torch.zeros_like(scores, dtype=torch.bool)
        for column, label in enumerate(target["labels"].tolist()):
            image[:, label] |= hit[:, column]
        rows.append(image)
    return torch.cat(rows)


def crowding(boxes: Sequence[Tensor], objects: Sequence[Tensor], seed: int = 0) -> Crowding:
    """The statistics by which a scene is compared with real windows."""
    generator = torch.Generator().manual_seed(seed)
    rows = [_crowding_of_image(b, o, generator) for b, o in zip(boxes, objects, strict=True)]
    windows, neighbours, near, kept, foreground = torch.tensor(rows).mean(0).tolist()
    return Crowding(len(rows), windows, neighbours, near, kept, foreground)


def _crowding_of_image(boxes: Tensor, objects: Tensor, generator: torch.Generator) -> list[float]:
    count = len(boxes)
    overlap = box_iou(boxes, boxes)
    kept = len(nms(boxes, torch.rand(count, generator=generator), 0.3)) / count
    hit = (box_iou(boxes, objects) >= 0.5).any(dim=1).float().mean().item() if len(objects) else 0.0
    return [
        float(count),
        (overlap > 0.3).sum().item() / count - 1,
        (overlap > 0.7).sum().item() / count - 1,
        kept,
        hit,
    ]
