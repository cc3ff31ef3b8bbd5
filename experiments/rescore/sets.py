"""Detections and objects of the sets that rescoring is tried on, as an evaluator takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import batched_nms

from experiments.masks.windows import load as load_windows
from experiments.rescore.detections import load
from stepgrad.data import VOC_CLASSES
from stepgrad.data.own_files import OwnFiles
from stepgrad.data.voc_xml import read_annotation
from stepgrad.overlaps.masks import coco_masks

MASKS_PER_IMAGE, MASK_CONFIDENCE = 60, 0.003
IGNORED = -1
VISDRONE_LABELS = (0, 0, 1, 2, IGNORED, 3, IGNORED, IGNORED, 4, 5)
"""Persons, bicycles, cars, trucks, buses, motorcycles; COCO has no vans and no tricycles."""


@dataclass(frozen=True)
class Part:
    """Images of a set: detections, objects, and features of the detections."""

    detections: list[dict[str, Any]]
    targets: list[dict[str, Any]]
    features: list[Tensor]


def voc_boxes(cache: Path, data: Path, model: str, split: str, count: int) -> Part:
    """VOC's images, in the order in which the detections were made."""
    found = list(load(cache / "voc" / model, split).items())[:count]
    return _part([kept for _, kept in found], [voc_target(data, image_id) for image_id, _ in found])


def voc_target(data: Path, image_id: str) -> dict[str, Any]:
    """The objects of one image, in continuous boxes."""
    annotation = read_annotation(data / "Annotations" / f"{image_id}.xml", OwnFiles(data))
    assert annotation is not None  # a missing one was reported
    target = annotation.objects({name: label for label, name in enumerate(VOC_CLASSES)}).target(image_id)
    return {name: target[name] for name in ("boxes", "labels", "difficult", "iscrowd")}  # type: ignore[literal-required]


def visdrone(cache: Path, data: Path, split: str, count: int) -> Part:
    """VisDrone's images with the classes that COCO has; vans excuse cars, and ignored regions whatever lies in them."""
    found = list(load(cache / "visdrone" / "yolov8n", split).items())[:count]
    regions = json.loads((data / "ignored_regions.json").read_text(encoding="utf-8"))
    targets = [_visdrone_target(data, split, name, regions.get(f"{split}/{name}", [])) for name, _ in found]
    return _part([kept for _, kept in found], targets)


def _visdrone_target(data: Path, split: str, name: str, regions: list[list[float]]) -> dict[str, Any]:
    from PIL import Image

    with Image.open(data / "images" / split / f"{name}.jpg") as picture:
        width, height = picture.size
    lines = (data / "labels" / split / f"{name}.txt").read_text(encoding="utf-8").split("\n")
    rows = np.array([[float(word) for word in line.split()] for line in lines if line.strip()]).reshape(-1, 5)
    centre, size = rows[:, 1:3] * [width, height], rows[:, 3:] * [width, height]
    boxes, kinds = np.concatenate([centre - size / 2, centre + size / 2], axis=1), rows[:, 0].astype(int)
    labels = np.array(VISDRONE_LABELS)[kinds]
    van = kinds == VISDRONE_LABELS.index(IGNORED)
    labels = np.where(van, 2, labels)
    kept = labels != IGNORED
    crowd = np.repeat(np.array(regions, dtype=np.float64).reshape(-1, 4), 6, axis=0)
    return {
        "boxes": torch.from_numpy(np.concatenate([boxes[kept], crowd])),
        "labels": torch.from_numpy(np.concatenate([labels[kept], np.tile(np.arange(6), len(regions))])),
        "difficult": torch.from_numpy(np.concatenate([van[kept], np.zeros(len(crowd), dtype=bool)])),
        "iscrowd": torch.from_numpy(
            np.concatenate([np.zeros(kept.sum(), dtype=bool), np.ones(len(crowd), dtype=bool)])
        ),
    }


def _part(found: list[dict[str, Tensor]], targets: list[dict[str, Any]]) -> Part:
    detections = [
        {
            "boxes": kept["boxes"],
            "scores": kept["scores"],
            "labels": kept["labels"],
            "class_scores": kept["class_logits"].float().sigmoid(),
        }
        for kept in found
    ]
    return Part(detections, targets, [kept["features"][:, :24].float() for kept in found])


def voc_masks(cache: Path, split: str, count: int) -> Part:
    """Windows of YOLO11n-seg after NMS, in prototype pixels of the letterboxed image; void counts as background."""
    parts = [_masks_of(image) for image in load_windows(cache / "masks", split, with_masks=True)[:count]]
    return Part([p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts])


def _masks_of(image: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Any], Tensor]:
    chance = image["logits"].float().sigmoid()
    window, label = (chance > MASK_CONFIDENCE).nonzero().unbind(1)
    score = chance[window, label]
    kept = batched_nms(image["boxes"].float()[window], score, label, 0.7)[:MASKS_PER_IMAGE]
    window = window[kept]
    masks, objects = (_unpacked(image[name]) for name in ("masks", "object_masks"))
    runs = coco_masks(masks[window]) if len(window) else []
    detections = {
        "boxes": image["boxes"][window].float() / 4,
        "scores": score[kept],
        "labels": label[kept],
        "masks": runs,
        "class_scores": chance[window],
    }
    target = {
        "boxes": image["object_boxes"].float() / 4,
        "labels": image["object_labels"],
        "difficult": image["object_difficult"],
        "masks": coco_masks(objects) if len(objects) else [],
    }
    return detections, target, image["statistics"][window, :6].float()


def _unpacked(masks: Tensor) -> Tensor:
    return torch.from_numpy(np.unpackbits(masks.numpy(), axis=-1)).bool()


@dataclass(frozen=True)
class RescoredSet:
    """A set with its detector."""

    says: str
    classes: int
    task: str
    load: Callable[[Path, Path, str, int], Part]
    """Cache, data, split, number of images."""
    train: int
    test: int


SETS = {
    "voc-yolov8n": RescoredSet(
        "VOC boxes, YOLOv8n", 20, "boxes", lambda c, d, s, n: voc_boxes(c, d, "yolov8n", s, n), 4000, 1000
    ),
    "voc-yolo11n": RescoredSet(
        "VOC boxes, YOLO11n", 20, "boxes", lambda c, d, s, n: voc_boxes(c, d, "yolo11n", s, n), 4000, 1000
    ),
    "voc-masks": RescoredSet("VOC masks, YOLO11n-seg", 20, "masks", lambda c, d, s, n: voc_masks(c, s, n), 800, 600),
    "visdrone": RescoredSet("VisDrone boxes, YOLOv8n", 6, "boxes", lambda c, d, s, n: visdrone(c, d, s, n), 900, 300),
}
