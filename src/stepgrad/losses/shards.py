"""A process's part of a joined batch: what it sends of it, and what is made of all parts.

Class c belongs to process c mod world. Both kinds of parts, windows scored for every class and (window, class) pairs, offer the
same five things: `for_classes` is what goes to the process of some classes, `join` puts together what came from all, `rank` and
`gradients` work on that, and `put` writes what comes back to its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.engine.balance import Sums
from stepgrad.engine.classes import RankedClass
from stepgrad.losses.objective import Objective
from stepgrad.losses.ragged import ABSENT, ClassLists, both_of, finished_gradient, rank_present
from stepgrad.metric.batch import Batch, OverlapPairs, new_rows
from stepgrad.processes import Arrays


@dataclass(frozen=True)
class Shard:
    """This process's windows, each scored for every class."""

    batch: Batch
    scores: Tensor  # (N, K), with its graph

    @property
    def values(self) -> NDArray[np.floating]:
        return self.batch.scores

    @property
    def images(self) -> int:
        return self.batch.images

    @property
    def geometry(self) -> tuple[bool, bool]:
        """Whether overlaps, and whether neighbours, stand in place of boxes."""
        return self.batch.pairs is not None, self.batch.near is not None

    def to_dtype(self, dtype: torch.dtype | None) -> Shard:
        """The same with scores of the agreed dtype; changes nothing unless this process has none."""
        return self if dtype is None else Shard(self.batch, self.scores.to(dtype))

    def for_classes(self, classes: range) -> Arrays:
        """What the process that ranks these classes needs of this one."""
        batch = self.batch
        chosen = slice(classes.start, None, classes.step)
        boxes = (batch.boxes[:, chosen] if batch.boxes_by_class else batch.boxes) if len(classes) else batch.boxes[:0]
        exact_in_single = np.array_equal(boxes.astype(np.float32), boxes)
        return {
            "counts": np.diff(batch.offsets),
            "scores": batch.scores[:, chosen],
            "boxes": boxes.astype(np.float32) if exact_in_single else boxes,
            **({} if batch.near is None else {"near": batch.near}),
            **_objects_of(batch, classes),
            **_pairs_of(batch.pairs, np.arange(len(batch.scores)), among(batch.object_labels, classes)),
        }

    def join(self, taken: Sequence[Arrays], images: Sequence[int], classes: range) -> JoinedShards:
        """The windows of all processes, scored for this process's classes."""
        boxes = [part["boxes"].astype(np.float64) for part in taken]
        if any(b.ndim == 3 for b in boxes):
            boxes = [np.broadcast_to(b if b.ndim == 3 else b[:, None], (len(b), len(classes), 4)) for b in boxes]
        counts = [len(part["scores"]) for part in taken]
        batch = Batch(
            offsets=np.cumsum([0, *np.concatenate([part["counts"] for part in taken])], dtype=np.int64),
            scores=np.concatenate([part["scores"] for part in taken]),
            boxes=np.concatenate(boxes),
            **_joined_objects(taken, images, lambda labels: (labels - classes.start) // classes.step),
            pairs=_joined_pairs(taken, counts),
            near=None if self.batch.near is None else _counted_through([part["near"] for part in taken], counts),
        )
        return JoinedShards(batch, np.cumsum([0, *(len(part["scores"]) for part in taken)]))

    def put(self, gradient: NDArray[np.float64], sent: NDArray[np.floating], classes: range) -> None:
        """Write the gradient in the scores of some classes, as it came back, to its place."""
        gradient[:, classes.start :: classes.step] = sent


@dataclass(frozen=True)
class JoinedShards:
    batch: Batch
    ends: NDArray[np.int64]  # (world + 1,) windows of each process

    def rank(self, objective: Objective, needed: bool, classes: range) -> list[RankedClass]:
        return objective.rank(self.batch, needed) if len(classes) else []

    def gradients(
        self, objective: Objective, classes: Sequence[RankedClass], slopes: Sequence[float], own: range
    ) -> tuple[list[NDArray[np.float64]], Sums]:
        """For each process the gradient in its windows' scores, and what all of them amount to."""
        own_slopes = [slopes[c] for c in own]
        gradient, sums = objective.join(classes, self.batch.scores, own_slopes, torch.get_num_threads())
        return np.split(gradient.T, self.ends[1:-1]), sums


@dataclass(frozen=True)
class Pairs:
    """This process's candidates."""

    lists: ClassLists
    scores: Tensor  # (M,), with its graph

    @property
    def values(self) -> NDArray[np.floating]:
        return self.lists.scores

    @property
    def images(self) -> int:
        return self.lists.objects.images

    @property
    def geometry(self) -> tuple[bool, bool]:
        return self.lists.pairs is not None, self.lists.near is not None

    def to_dtype(self, dtype: torch.dtype | None) -> Pairs:
        return self if dtype is None else Pairs(self.lists, self.scores.to(dtype))

    def for_classes(self, classes: range) -> Arrays:
        lists, chosen = self.lists, among(self.lists.classes, classes)
        near = both_of(lists.near, new_rows(chosen))
        return {
            **({} if near is None else {"near": near}),
            "scores": lists.scores[chosen],
            "boxes": lists.boxes[chosen],
            "images": lists.images[chosen],
            "classes": lists.classes[chosen],
            **_objects_of(lists.objects, classes),
            **_pairs_of(lists.pairs, new_rows(chosen), among(lists.objects.object_labels, classes)),
        }

    def join(self, taken: Sequence[Arrays], images: Sequence[int], classes: range) -> JoinedPairs:
        first = np.cumsum([0, *images])
        like = self.lists.objects
        objects = Batch(
            offsets=np.zeros(first[-1] + 1, dtype=np.int64),
            scores=like.scores[:0],
            boxes=np.zeros((0, 4)),
            **_joined_objects(taken, images, lambda labels: labels),
        )
        columns = {name: np.concatenate([part[name] for part in taken]) for name in ("scores", "boxes", "classes")}
        shifted = np.concatenate([part["images"] + start for part, start in zip(taken, first, strict=False)])
        counts = [len(part["scores"]) for part in taken]
        near = None if self.lists.near is None else _counted_through([part["near"] for part in taken], counts)
        pairs = _joined_pairs(taken, counts)
        lists = ClassLists.sort(**columns, images=shifted, objects=objects, pairs=pairs, near=near)
        return JoinedPairs(lists, np.cumsum([0, *(len(part["scores"]) for part in taken)]))

    def put(self, gradient: NDArray[np.float64], sent: NDArray[np.floating], classes: range) -> None:
        gradient[self.lists.order[among(self.lists.classes, classes)]] = sent


@dataclass(frozen=True)
class JoinedPairs:
    lists: ClassLists
    ends: NDArray[np.int64]  # (world + 1,) candidates of each process

    def rank(self, objective: Objective, needed: bool, classes: range) -> list[RankedClass]:
        ranked = rank_present(objective, self.lists, needed, classes)
        return [ranked.get(c, ABSENT) for c in classes]

    def gradients(
        self, objective: Objective, classes: Sequence[RankedClass], slopes: Sequence[float], own: range
    ) -> tuple[list[NDArray[np.float64]], Sums]:
        ranked = {c: result for c, result in zip(own, classes, strict=True) if result is not ABSENT}
        gradient, sums = finished_gradient(objective, self.lists, ranked, slopes)
        return np.split(gradient, self.ends[1:-1]), sums


def among(labels: NDArray[np.int64], classes: range) -> NDArray[np.bool_]:
    """Which labels are among the classes of a process."""
    return labels % classes.step == classes.start if len(classes) else np.zeros(len(labels), dtype=np.bool_)


def _pairs_of(
    pairs: OverlapPairs | None, windows: NDArray[np.int64], objects: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """The overlaps of some windows, by their new rows, with some objects, to be sent; nothing where boxes tell them."""
    if pairs is None:
        return {}
    sent = pairs.of(windows, new_rows(objects))
    return {"pair_window": sent.window, "pair_object": sent.object, "pair_overlap": sent.overlap}


def _joined_pairs(taken: Sequence[Arrays], windows: Sequence[int]) -> OverlapPairs | None:
    """The overlaps that all processes sent, windows and objects counted through."""
    if "pair_overlap" not in taken[0]:
        return None
    objects = [len(part["object_labels"]) for part in taken]
    return OverlapPairs(
        _counted_through([part["pair_window"] for part in taken], windows),
        _counted_through([part["pair_object"] for part in taken], objects),
        np.concatenate([part["pair_overlap"] for part in taken]),
    )


def _counted_through(rows: Sequence[NDArray[Any]], counts: Sequence[int]) -> NDArray[np.int64]:
    """Rows of each process as rows of all of them."""
    first = np.cumsum([0, *counts])
    return np.concatenate([part + start for part, start in zip(rows, first, strict=False)]).astype(np.int64)


def _objects_of(batch: Batch, classes: range) -> dict[str, NDArray[Any]]:
    """The objects of some classes, to be sent."""
    chosen = among(batch.object_labels, classes)
    return {
        "object_boxes": batch.object_boxes[chosen],
        "object_labels": batch.object_labels[chosen].astype(np.int32),
        "object_images": batch.object_images[chosen],
        "difficult": batch.difficult[chosen],
        "crowd": batch.crowd[chosen],
        "annotated_areas": batch.object_areas[chosen],
        **({} if batch.unlabelled is None else {"unlabelled": batch.unlabelled[chosen]}),
    }


def _joined_objects(
    taken: Sequence[Arrays], images: Sequence[int], column: Callable[[NDArray[np.int64]], NDArray[np.int64]]
) -> dict[str, Any]:
    """The objects that all processes sent, images counted through; `column` gives the column of a label."""
    first = np.cumsum([0, *images])
    names = ["object_boxes", "difficult", "crowd", "annotated_areas", *({"unlabelled"} & set(taken[0]))]
    joined: dict[str, Any] = {name: np.concatenate([part[name] for part in taken]) for name in names}
    joined["object_labels"] = column(np.concatenate([part["object_labels"] for part in taken]).astype(np.int64))
    shifted = [part["object_images"] + start for part, start in zip(taken, first, strict=False)]
    joined["object_images"] = np.concatenate(shifted).astype(np.int32)
    return joined
