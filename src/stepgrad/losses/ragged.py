"""Detection losses of lists that differ from class to class: every class ranks its own candidates.

`MAPLoss` takes a rectangle of scores: every window is a detection of every class. The last stage of a detector is more choosy: of
a hundred thousand anchors a class sees the few hundred best. Here a candidate is one (window, class) pair. Pairs that are not
candidates do not exist: no value, no gradient, no part in the balance of a class.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.engine.balance import Sums
from stepgrad.engine.classes import RankedClass, class_result, prepare
from stepgrad.errors import InputError, NonFiniteError
from stepgrad.losses.objective import Measured, Objective, report_sums
from stepgrad.metric.batch import Batch, OverlapPairs, Target, make_batch, new_rows
from stepgrad.metric.boxes import CONVERT, CORNERS, MEASURABLE, check_box_format, inside_out, sizes_of, unmeasurable
from stepgrad.overlaps.keypoints import Keypoints
from stepgrad.overlaps.own import checked_table
from stepgrad.plain_tensors import refuse_unreadable
from stepgrad.threads import run_threads

ABSENT = RankedClass(value=0.0, P=0, kept=0, gradient=None)


@dataclass(frozen=True)
class ScoredPairs:
    """M scored (window, class) pairs of a batch; equal scores rank in this order, image by image."""

    scores: Tensor  # (M,), the loss's gradient goes here
    boxes: Tensor  # (M, 4) x1, y1, x2, y2
    images: Tensor  # (M,) int64
    classes: Tensor  # (M,) int64, columns as the targets' labels count them
    overlaps: Sequence[Tensor] | None = None
    """Per image a table (candidates of the image in their order, objects of the image), in [0, 1]; None: IoU of boxes."""
    neighbours: Sequence[Tensor] | None = None
    """Per image (E, 2) pairs of candidates, numbered as they come in the image, that suppress each other; None: by boxes."""


class LossOfPairs(typing.Protocol):
    """A loss that also takes candidates: `DetectionLoss`, `MAPLoss` and their distributed twins."""

    def of_pairs(self, candidates: ScoredPairs, targets: Sequence[Target]) -> Tensor:
        """The loss of candidates."""


def ragged_map_loss(loss_fn: LossOfPairs, candidates: ScoredPairs, targets: Sequence[Target]) -> Tensor:
    """The loss of candidates, as `loss_fn` defines it; its `metrics` are those of this call, and `candidates`, their number.

    `loss_fn` is a `MAPLoss` or any other `DetectionLoss`. With their distributed twins and several processes, it is the loss
    of all processes' candidates joined.
    Classes without objects in the batch have AP 0 and no gradient whatever is found, so they are not ranked (but for a cost,
    which they can have); `kept` counts the others' windows.

    >>> from stepgrad.losses.detection import MAPLoss
    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> one_class = torch.zeros(3, dtype=torch.long)
    >>> pairs = ScoredPairs(torch.tensor([0.2, 0.1, 0.9], requires_grad=True), boxes, one_class, one_class)
    >>> loss_fn = MAPLoss(num_classes=1)
    >>> ragged_map_loss(loss_fn, pairs, [{"boxes": boxes[:1], "labels": torch.tensor([0])}]).backward()
    >>> loss_fn.metrics["map"], pairs.scores.grad.sign().tolist()
    (0.5, [-1.0, -1.0, 1.0])
    """
    return loss_fn.of_pairs(candidates, targets)


@dataclass(frozen=True)
class ClassLists:
    """ScoredPairs on the CPU, sorted by class and image, and the objects."""

    order: NDArray[np.int64]  # (M,) candidate at each sorted place
    scores: NDArray[np.floating]  # (M,) sorted, like the next three
    boxes: NDArray[np.float64]
    images: NDArray[np.int64]
    classes: NDArray[np.int64]
    objects: Batch  # of no windows
    pairs: OverlapPairs | None = None  # overlaps of sorted places with objects; None: those of the boxes
    near: NDArray[np.int64] | None = None  # (E, 2) sorted places that suppress each other; None: by the boxes

    @staticmethod
    def sort(
        scores: NDArray[np.floating],
        boxes: NDArray[np.float64],
        images: NDArray[np.int64],
        classes: NDArray[np.int64],
        objects: Batch,
        pairs: OverlapPairs | None = None,
        near: NDArray[np.int64] | None = None,
    ) -> ClassLists:
        """Sort candidates by class and image; they stay in their order within an image. `pairs` and `near` have rows as they
        came."""
        order = np.lexsort((images, classes))
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        if pairs is not None:
            pairs = pairs._replace(window=places[pairs.window])
        near = None if near is None else places[near]
        return ClassLists(order, scores[order], boxes[order], images[order], classes[order], objects, pairs, near)

    def span(self, c: int) -> slice:
        """The sorted places of a class."""
        return slice(*np.searchsorted(self.classes, [c, c + 1]))

    def joined(self) -> Batch:
        """All candidates, whatever their class, as the windows of a batch of one column."""
        rows = np.argsort(self.images, kind="stable")
        offsets = np.searchsorted(self.images[rows], np.arange(self.objects.images + 1)).astype(np.int64)
        return replace(self.objects, offsets=offsets, scores=self.scores[rows, None], boxes=self.boxes[rows])

    def class_batch(self, c: int) -> Batch:
        """The candidates and objects of one class as a batch of one column."""
        span, objects = self.span(c), self.objects
        of_class = objects.object_labels == c
        places = np.arange(len(self.scores))
        inside = np.where((places >= span.start) & (places < span.stop), places - span.start, -1)
        pairs = None if self.pairs is None else self.pairs.of(inside, new_rows(of_class))
        return Batch(
            offsets=np.searchsorted(self.images[span], np.arange(objects.images + 1)).astype(np.int64),
            scores=self.scores[span, None],
            boxes=self.boxes[span],
            object_boxes=objects.object_boxes[of_class],
            object_labels=np.zeros(int(of_class.sum()), dtype=np.int64),
            object_images=objects.object_images[of_class],
            difficult=objects.difficult[of_class],
            crowd=objects.crowd[of_class],
            annotated_areas=objects.object_areas[of_class],
            unlabelled=None if objects.unlabelled is None else objects.unlabelled[of_class],
            pairs=pairs,
            near=both_of(self.near, inside),
        )


def both_of(near: NDArray[np.int64] | None, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The neighbours of which neither is left out; each window is given by its new row, -1 for those left out.

    >>> both_of(np.array([[0, 1], [1, 2]]), np.array([-1, 0, 1])).tolist()
    [[0, 1]]
    """
    if near is None:
        return None
    found: NDArray[np.int64] = rows[near]
    return found[(found >= 0).all(axis=1)]


def make_lists(objective: Objective, candidates: ScoredPairs, targets: Sequence[Target]) -> ClassLists:
    """The candidates and objects, checked."""
    num_classes, areas = objective.num_classes, objective.metric.area is not None
    refuse_unreadable(candidates.scores, candidates.boxes)
    check_box_format(candidates.boxes, "Expected the candidates' boxes")
    scores = candidates.scores.detach()
    exact = torch.float64 if scores.dtype == torch.float64 else torch.float32
    plain_scores = scores.to("cpu", exact).numpy()
    boxes = candidates.boxes.detach().to("cpu", torch.float64).numpy()
    images, classes = torch.stack([candidates.images, candidates.classes]).cpu().numpy()
    _check(plain_scores, boxes, images, classes)
    none = torch.zeros(0, num_classes), torch.zeros(0, 4)
    objects = make_batch([none[0]] * len(targets), [none[1]] * len(targets), targets, num_classes, areas)
    if isinstance(objective.overlap, Keypoints):
        objects = replace(objects, unlabelled=_without_keypoints(objective.overlap, targets))
    pairs, near = _given_pairs(candidates, images, objects), _given_near(candidates, images, objects.images)
    return ClassLists.sort(plain_scores, boxes, images, classes, objects, pairs, near)


def _given_pairs(candidates: ScoredPairs, images: NDArray[np.int64], objects: Batch) -> OverlapPairs | None:
    """Overlaps of the candidates, in the order in which they came; None: those of the boxes."""
    if candidates.overlaps is None:
        return None
    if len(candidates.overlaps) != objects.images:
        raise InputError(f"Expected overlaps of {objects.images} images but got {len(candidates.overlaps)}.")
    parts = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))]
    for i, given in enumerate(candidates.overlaps):
        rows, targets = np.flatnonzero(images == i), np.flatnonzero(objects.object_images == i)
        table = checked_table(given, (len(rows), len(targets)), f"image {i}: overlaps")
        row, column = np.nonzero(table)
        parts.append((rows[row], targets[column], table[row, column]))
    return OverlapPairs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _given_near(candidates: ScoredPairs, images: NDArray[np.int64], count: int) -> NDArray[np.int64] | None:
    """(E, 2) candidates that suppress each other, in the order in which they came; None: by the boxes."""
    if candidates.neighbours is None:
        return None
    if len(candidates.neighbours) != count:
        raise InputError(f"Expected neighbours of {count} images but got {len(candidates.neighbours)}.")
    parts = [np.zeros((0, 2), dtype=np.int64)]
    for i, given in enumerate(candidates.neighbours):
        rows, near = np.flatnonzero(images == i), given.detach().cpu().numpy().reshape(-1, 2)
        if near.size and not 0 <= near.min() <= near.max() < len(rows):
            raise InputError(f"image {i}: expected neighbours among {len(rows)} candidates but got {near.max()}.")
        parts.append(rows[near])
    return np.concatenate(parts)


def _without_keypoints(overlap: Keypoints, targets: Sequence[Target]) -> NDArray[np.bool_]:
    """(G,) objects without labelled keypoints, which are not counted."""
    flags = [overlap.unlabelled(overlap.objects(t, f"image {i}: targets")) for i, t in enumerate(targets)]
    return np.concatenate([np.zeros(0, dtype=np.bool_), *flags])


def _check(
    scores: NDArray[np.floating], boxes: NDArray[np.float64], images: NDArray[np.int64], classes: NDArray[np.int64]
) -> None:
    """Raise, naming the candidate, unless all numbers are finite and all boxes have corners and areas."""
    for values, wrong, kind, expected, way_out in (
        (scores[:, None], ~np.isfinite(scores), NonFiniteError, "finite scores", _DIVERGED),
        (boxes, ~np.isfinite(boxes).all(axis=1), NonFiniteError, "finite boxes", _DIVERGED),
        (boxes, inside_out(boxes), InputError, f"boxes as {CORNERS}", f"; {CONVERT}."),
        (boxes, unmeasurable(sizes_of(boxes)), InputError, MEASURABLE, "; are these pixels?"),
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            raise kind(
                f"image {images[first]}: expected {expected} but a candidate of class {classes[first]} has "
                f"{values[first].tolist()}{way_out}"
            )


_DIVERGED = "; look for a diverged model, or lower the learning rate."


def measure_lists(objective: Objective, lists: ClassLists, needed: bool) -> Measured:
    """The loss of the candidates, its gradient in them if `needed`, and what to report."""
    ranked = rank_present(objective, lists, needed, range(objective.num_classes))
    classes = [ranked.get(c, ABSENT) for c in range(objective.num_classes)]
    value, slopes, metrics = objective.of_classes(classes)
    gradient, total = finished_gradient(objective, lists, ranked, slopes)
    metrics |= {"candidates": len(gradient), **report_sums(total, len(gradient))}
    return Measured(value, torch.from_numpy(gradient), metrics)


def rank_present(objective: Objective, lists: ClassLists, needed: bool, among: range) -> dict[int, RankedClass]:
    """The metric and, if `needed`, its slopes, of those classes among some that have objects, or can do without."""
    metric, method = objective.metric, objective.method if needed else None
    with_objects = set(lists.objects.object_labels.tolist())
    present = [c for c in among if c in with_objects or not metric.needs_objects]

    def rank(c: int) -> RankedClass:
        prepared = prepare(lists.class_batch(c), objective.protocol, objective.nms_threshold, 1, metric)
        return class_result(prepared, 0, method)

    return dict(zip(present, run_threads(rank, present, torch.get_num_threads()), strict=True))


def finished_gradient(
    objective: Objective, lists: ClassLists, ranked: Mapping[int, RankedClass], slopes: Sequence[float]
) -> tuple[NDArray[np.float64], Sums]:
    """(M,) gradient of the loss in the candidates, in the order in which they came; `slopes` as `of_classes` gives them."""
    gradient, total = np.zeros(len(lists.scores)), Sums(0, 0.0, 0.0)
    for c, of_class in ranked.items():
        span = lists.span(c)
        finished, sums = objective.join([of_class], lists.scores[span, None], [slopes[c]], 1)
        gradient[lists.order[span]] = finished[0]
        total = Sums(total.nonzero + sums.nonzero, total.positive + sums.positive, total.negative + sums.negative)
    return gradient, total
