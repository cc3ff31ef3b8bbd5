"""Images as a rescorer learns from them: what the network sees, and what is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.metric.boxes import areas_of, overlap_table, sizes_of
from stepgrad.metric.protocol import Protocol
from stepgrad.models.rescore.network import Rows
from stepgrad.overlaps.base import Boxes, Overlap, shapes_in


@dataclass(frozen=True, eq=False)
class ScoredImage:
    """The detections of one image with its objects. M detections, G objects."""

    rows: Rows
    boxes: Tensor  # (M, 4)
    table: Tensor  # (M, G) overlap with every object, in float64
    target: Mapping[str, Any]
    found: Tensor  # (M, G) whether the object counts and is of the detection's class
    shapes: Mapping[str, Any]
    """Masks, keypoints and so on of the detections, by the name under which an evaluator takes them; nothing for boxes."""

    @property
    def fits(self) -> Tensor:
        """(M,) largest overlap with an object of the class that counts."""
        return highest(self.table * self.found)

    @property
    def excused(self) -> Tensor:
        """(M,) whether an object that does not count fits better, and well enough for the detection not to count either."""
        same = self.rows.labels[:, None] == torch.as_tensor(self.target["labels"])[None]
        other = highest(self.table * (same & ~self.found))
        return (other >= 0.5) & (other > self.fits)


def highest(table: Tensor) -> Tensor:
    """(M,) largest value of each row, 0 for rows without."""
    return table.amax(dim=1) if table.shape[1] else table.new_zeros(len(table))


def image_of(rows: Rows, detections: Mapping[str, Any], target: Mapping[str, Any], overlap: Overlap) -> ScoredImage:
    """One image; detections and target are dicts as `Evaluator.update` takes them."""
    labels = torch.as_tensor(target["labels"]).long().reshape(-1)
    crowd = _flags(target, "iscrowd", len(labels))
    counts = ~(crowd | _flags(target, "difficult", len(labels)))
    where = f"image {target.get('image_id', '')}".strip()
    windows, objects = overlap.windows(shapes_in(detections, overlap.key, where), where), overlap.objects(target, where)
    unlabelled = overlap.unlabelled(objects)
    if unlabelled is not None:
        counts &= ~torch.from_numpy(unlabelled)
    values = table_of(windows, objects, crowd.numpy(), overlap)
    around = torch.from_numpy(overlap.boxes(windows)).reshape(-1, 4)
    wanted = {
        "boxes": target["boxes"] if "boxes" in target else torch.from_numpy(overlap.boxes(objects)),
        "labels": labels,
        "difficult": _flags(target, "difficult", len(labels)),
        "iscrowd": crowd,
        **_shapes_in(target, overlap),
        **{name: target[name] for name in ("area", "areas") if name in target},
    }
    table = torch.from_numpy(values)
    found = (rows.labels[:, None] == labels[None]) & counts[None]
    return ScoredImage(rows, around, table, wanted, found, _shapes_in(detections, overlap))


def _shapes_in(given: Mapping[str, Any], overlap: Overlap) -> dict[str, Any]:
    return {} if overlap.key == "boxes" else {overlap.key: given[overlap.key]}


def table_of(windows: Any, objects: Any, crowd: NDArray[np.bool_], overlap: Overlap) -> NDArray[np.float64]:
    """(M, G) overlap of the windows and the objects of an image."""
    if type(overlap) is Boxes:
        areas = [areas_of(sizes_of(boxes), 0.0) for boxes in (windows, objects)]
        return overlap_table(windows, areas[0], objects, areas[1], crowd)
    M, G = overlap.count(windows), overlap.count(objects)
    rows, columns = np.repeat(np.arange(M), G), np.tile(np.arange(G), M)
    return overlap.of_pairs(windows, rows, objects, columns, crowd[columns]).reshape(M, G)


def _flags(target: Mapping[str, Any], name: str, count: int) -> Tensor:
    return torch.as_tensor(target[name]).bool().reshape(-1) if name in target else torch.zeros(count, dtype=torch.bool)


def best_of_objects(image: ScoredImage, least: float = 0.5) -> Tensor:
    """(M,) overlap with the object that a detection fits best of all, 0 for the others (Pato et al. 2020)."""
    table = image.table * image.found
    if not table.numel():
        return table.new_zeros(len(table))
    mine = highest(table * (table == table.amax(dim=0, keepdim=True)))
    return mine * (mine >= least)


def share_of_hits(image: ScoredImage, protocol: Protocol) -> Tensor:
    """(M,) share of the protocol's thresholds at which the detection finds an object, in the order of the detector's scores."""
    hits = torch.zeros(len(image.rows.own), dtype=torch.float64)
    table = (image.table * image.found).numpy()
    if not table.size:
        return hits
    thresholds = np.array(protocol.match_thresholds)
    free = np.ones((len(thresholds), table.shape[1]), dtype=np.bool_)
    order = image.rows.own.argsort(descending=True, stable=True)
    for i in order[highest(torch.from_numpy(table))[order] >= thresholds.min()].tolist():
        open_to = np.where(free, table[i], 0.0)  # (T, G)
        best = open_to.argmax(axis=1)
        hit = np.flatnonzero(open_to[np.arange(len(thresholds)), best] >= thresholds)
        free[hit, best[hit]] = False
        hits[i] = len(hit) / len(thresholds)
    return hits


def in_turn(images: Sequence[ScoredImage], count: int, seed: int) -> Any:
    """Endless draws of some images; each comes once before any comes again."""
    generator = torch.Generator().manual_seed(seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < count:
            waiting += torch.randperm(len(images), generator=generator).tolist()
        drawn, waiting = waiting[:count], waiting[count:]
        yield [images[i] for i in drawn]
