"""Regions of images that nobody judges: their way from the data through augmentation, and out of the stock classification loss.

A region travels as a label, so mosaic, flips and scaling move it as they move objects. Its class is a number that no class has:
K for a region of every class, K + 1 + c for one of class c alone. The trainer takes these labels out of a batch before the stock
loss or validation sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.data.images import read_facts
from stepgrad.data.own_files import OwnFiles
from stepgrad.data.regions import EVERY_CLASS, REGIONS_FILE, Regions, no_regions, read_regions
from stepgrad.data.yolo_images import region_key
from stepgrad.errors import ConfigError, suggest
from stepgrad.metric.batch import Target
from stepgrad.models.left_out import hidden_pairs
from stepgrad.models.yolo.heads import HeadOutput

EVERY_ROW = "stepgrad_rows"  # of a batch of validation: its labels, regions among them
_PER_OBJECT = ("cls", "bboxes", "batch_idx", "keypoints")  # entries of a batch with a row for each object


@dataclass(frozen=True)
class Ignored:
    """What the data of a run says of regions, for K classes."""

    classes: int
    labels: Sequence[int]  # classes whose boxes are regions of every class: `ignore:` of data.yaml
    regions: Regions  # of ignored_regions.json
    unlabelled: Mapping[str, Sequence[int]]  # by the beginning of an image's name, classes that nobody looked for

    @property
    def any(self) -> bool:
        """Whether there is a region anywhere."""
        return bool(self.labels or self.regions or self.unlabelled)

    def put_into(self, dataset: Any) -> int:
        """Add the regions of each image to the labels of a dataset of ultralytics; returns how many there are."""
        return sum(self._put_into(label) for label in dataset.labels)

    def _put_into(self, label: dict[str, Any]) -> int:
        marked = np.isin(label["cls"], list(self.labels))
        label["cls"] = np.where(marked, self.classes, label["cls"]).astype(np.float32)
        boxes, classes = self._of_image(Path(label["im_file"]))
        if len(boxes):
            _append(label, boxes, classes)
        return int(marked.sum()) + len(boxes)

    def _of_image(self, file: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(R, 4) centre and size in shares of the image, cut at its edges, and (R,) their classes."""
        name = region_key(file)
        own = self.regions.get(name, no_regions())
        corners = own.boxes
        if len(corners):
            corners = np.clip(corners / np.tile(read_facts(file).upright_size, 2), 0.0, 1.0)
        shown = (corners[:, 2:] > corners[:, :2]).all(axis=1)
        corners, labels = corners[shown], own.labels[shown]
        boxes = np.concatenate([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], axis=1)
        absent = sorted({c for start, labels in self.unlabelled.items() if _begins(name, start) for c in labels})
        whole = np.tile([0.5, 0.5, 1.0, 1.0], (len(absent), 1))
        marks = [self.classes if label == EVERY_CLASS else self.classes + 1 + label for label in labels.tolist()]
        classes = marks + [self.classes + 1 + c for c in absent]
        return np.concatenate([boxes, whole]).astype(np.float32), np.array(classes, dtype=np.float32)

    def columns(self, label: int) -> list[int]:
        """The classes of a region, by the number that it travels with."""
        return list(range(self.classes)) if label == self.classes else [label - self.classes - 1]

    def as_target(self, boxes: Tensor, labels: Tensor) -> Target:
        """Objects and regions of an image as the evaluator and the loss read them: a region is a crowd of each of its classes.

        >>> box = torch.tensor([[0.0, 0.0, 9.0, 9.0]])
        >>> target = Ignored(2, [], {}, {}).as_target(torch.cat([box, box]), torch.tensor([1, 2]))
        >>> target["labels"].tolist(), target["iscrowd"].tolist()
        ([1, 0, 1], [False, True, True])
        """
        columns = [[label] if label < self.classes else self.columns(label) for label in labels.tolist()]
        repeats = torch.tensor([len(c) for c in columns], dtype=torch.long, device=boxes.device)
        return {
            "boxes": boxes.repeat_interleave(repeats, dim=0),
            "labels": torch.tensor([c for several in columns for c in several], dtype=torch.long, device=boxes.device),
            "iscrowd": (labels.to(boxes.device) >= self.classes).repeat_interleave(repeats),
        }


def read_ignored(data: Mapping[str, Any]) -> Ignored:
    """What a data.yaml says, as ultralytics has read it, and the file of regions beside it."""
    given = data["names"]
    names = {name: label for label, name in (given if isinstance(given, Mapping) else dict(enumerate(given))).items()}
    unlabelled = data.get("unlabelled") or {}
    if not isinstance(unlabelled, Mapping):
        raise ConfigError(
            "Expected `unlabelled:` of data.yaml to name classes by folder, as in `train/set_a: [person]`, but got "
            f"{unlabelled!r}."
        )
    place = Path(data["yaml_file"]).parent if data.get("yaml_file") else None
    return Ignored(
        classes=len(names),
        labels=_numbers("ignore", data.get("ignore"), names),
        regions={}
        if place is None
        else read_regions(place / REGIONS_FILE, OwnFiles(place), sorted(names, key=names.__getitem__)),
        unlabelled={str(start): _numbers("unlabelled", given, names) for start, given in unlabelled.items()},
    )


def _numbers(key: str, given: Any, names: Mapping[str, int]) -> list[int]:
    listed = [given] if isinstance(given, str) else list(given or [])
    for name in listed:
        if name not in names:
            raise ConfigError(
                f"Expected `{key}:` of data.yaml to name its classes, {list(names)}, but got {name!r}."
                f"{suggest(str(name), list(names))}"
            )
    return [names[name] for name in listed]


def _begins(name: str, start: str) -> bool:
    """Whether an image has this name or lies in this folder."""
    return name == start or name.startswith(start.rstrip("/") + "/")


def _append(label: dict[str, Any], boxes: NDArray[np.float32], classes: NDArray[np.float32]) -> None:
    label["cls"] = np.concatenate([label["cls"], classes[:, None]])
    label["bboxes"] = np.concatenate([label["bboxes"].reshape(-1, 4), boxes])
    if len(label.get("segments", ())):  # outlines, by which augmentation moves boxes where there are any
        label["segments"] = [*label["segments"], *(_outline(*box) for box in boxes)]
    if label.get("keypoints") is not None:
        points = label["keypoints"]
        label["keypoints"] = np.concatenate([points, np.zeros((len(boxes), *points.shape[1:]), dtype=points.dtype)])


def _outline(x: float, y: float, w: float, h: float) -> NDArray[np.float32]:
    signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    return (np.array([x, y]) + signs * np.array([w, h]) / 2).astype(np.float32)


def without_regions(batch: Mapping[str, Any], classes: int) -> dict[str, Any]:
    """The batch as if there were no regions."""
    objects = batch["cls"].view(-1) < classes
    return {key: value[objects] if key in _PER_OBJECT else value for key, value in batch.items()}


def hidden_windows(head: HeadOutput, targets: Sequence[Target]) -> Tensor:
    """(B, A, K) whether half of an anchor's window or more lies in one region of the class."""
    K = head.logits.shape[1]
    found = [
        hidden_pairs(boxes, target["boxes"][target["iscrowd"]], target["labels"][target["iscrowd"]], K)
        for boxes, target in zip(head.boxes, targets, strict=True)
    ]
    return torch.stack(found)


class MaskedBCE:
    """Cross-entropy of windows and classes, 0 for hidden ones that belong to no object."""

    def __init__(self, stock: Any, hidden: Tensor) -> None:
        self.stock = stock
        self.hidden = hidden

    def __call__(self, logits: Tensor, aims: Tensor) -> Tensor:
        loss: Tensor = self.stock(logits, aims)
        return loss.masked_fill(self.hidden & (aims <= 0), 0.0)


@contextmanager
def masked(losses: Mapping[str, Any], hidden: Mapping[str, Tensor]) -> Iterator[None]:
    """Meanwhile the stock losses of these heads do not see the windows hidden there."""
    stock = {name: losses[name].bce for name in hidden}
    for name, windows in hidden.items():
        losses[name].bce = MaskedBCE(stock[name], windows)
    try:
        yield
    finally:
        for name, bce in stock.items():
            losses[name].bce = bce
