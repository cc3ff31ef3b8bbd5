"""MAPLoss, and other DetectionLosses, of lists that differ from class to class: every class ranks its own candidates.

`MAPLoss` takes a rectangle of scores: every window is a detection of every class. A detector's last stage is more
choosy: of a hundred thousand anchors a class sees the few hundred best.
Here a candidate is one (window, class) pair. Pairs that are not candidates do not exist: no value, no gradient, no part
in the balance of a class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import InputError, NonFiniteError
from stepgrad.kernels.balance import Sums
from stepgrad.kernels.jit import explain_wait
from stepgrad.losses.collectives import is_alone
from stepgrad.losses.detection_loss import DetectionLoss
from stepgrad.losses.distributed import DistributedMAPLoss
from stepgrad.losses.objective import MAPObjective, Measured, report_sums
from stepgrad.metric.arrange import Arrangement
from stepgrad.metric.batch import Batch, Target, make_batch
from stepgrad.metric.boxes import CONVERT, CORNERS, check_box_format, inside_out
from stepgrad.metric.cut import with_cut
from stepgrad.parallel import run_threads
from stepgrad.plain_tensors import refuse_unreadable
from stepgrad.steps.map_steps import ClassGradient, class_gradient

ABSENT = ClassGradient(value=0.0, P=0, kept=0, gradient=None)


@dataclass(frozen=True)
class ScoredPairs:
    """M scored (window, class) pairs of a batch; equal scores rank in this order, image by image."""

    scores: Tensor  # (M,), the loss's gradient goes here
    boxes: Tensor  # (M, 4) x1, y1, x2, y2
    images: Tensor  # (M,) int64
    classes: Tensor  # (M,) int64, columns as the targets' labels count them


def ragged_map_loss(
    loss_fn: DetectionLoss | DistributedMAPLoss, candidates: ScoredPairs, targets: Sequence[Target]
) -> Tensor:
    """The loss of candidates, as `loss_fn` defines it; its `metrics` are those of this call, and `candidates`, their number.

    `loss_fn` is a `MAPLoss` or any other `DetectionLoss`. With their distributed twins and several processes, it is the loss
    of all processes' candidates joined.
    Classes without objects in the batch have AP 0 and no gradient whatever is found, so they are not ranked (but for a cost,
    which they can have); `kept` counts the others' windows.

    >>> from stepgrad.losses.map_loss import MAPLoss
    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> one_class = torch.zeros(3, dtype=torch.long)
    >>> pairs = ScoredPairs(torch.tensor([0.2, 0.1, 0.9], requires_grad=True), boxes, one_class, one_class)
    >>> loss_fn = MAPLoss(num_classes=1)
    >>> ragged_map_loss(loss_fn, pairs, [{"boxes": boxes[:1], "labels": torch.tensor([0])}]).backward()
    >>> loss_fn.metrics["map"], pairs.scores.grad.sign().tolist()
    (0.5, [-1.0, -1.0, 1.0])
    """
    if isinstance(loss_fn, DistributedMAPLoss):
        if not is_alone(loss_fn.group):
            from stepgrad.losses.ragged_ranks import joined_map_loss  # which is made of the parts of this file

            return joined_map_loss(loss_fn, candidates, targets)
        loss_fn = loss_fn.alone
    needed = torch.is_grad_enabled() and candidates.scores.requires_grad
    objective = loss_fn.objective
    lists = make_lists(objective, candidates, targets)
    with explain_wait():
        measured = _measure(objective, lists, needed)
    loss_fn.metrics = measured.metrics
    return objective.as_loss(measured, candidates.scores, lists.scores)


@dataclass(frozen=True)
class ClassLists:
    """ScoredPairs on the CPU, sorted by class and image, and the objects."""

    order: NDArray[np.int64]  # (M,) candidate at each sorted place
    scores: NDArray[np.floating]  # (M,) sorted, like the next three
    boxes: NDArray[np.float64]
    images: NDArray[np.int64]
    classes: NDArray[np.int64]
    objects: Batch  # of no windows

    def span(self, c: int) -> slice:
        """The sorted places of a class."""
        return slice(*np.searchsorted(self.classes, [c, c + 1]))


def make_lists(objective: MAPObjective, candidates: ScoredPairs, targets: Sequence[Target]) -> ClassLists:
    """The candidates and objects, checked."""
    num_classes, areas = objective.num_classes, objective.metric.area is not None
    refuse_unreadable(candidates.scores, candidates.boxes)
    check_box_format(candidates.boxes, "Expected the candidates' boxes")
    scores = candidates.scores.detach()
    exact = torch.float64 if scores.dtype == torch.float64 else torch.float32
    parts = scores.to("cpu", exact), candidates.boxes.detach().to("cpu", torch.float64)
    images, classes = torch.stack([candidates.images, candidates.classes]).cpu().numpy()
    _check(parts[0].numpy(), parts[1].numpy(), images, classes)
    none = torch.zeros(0, num_classes), torch.zeros(0, 4)
    objects = make_batch([none[0]] * len(targets), [none[1]] * len(targets), targets, num_classes, areas)
    order = np.lexsort((images, classes))  # stable: candidates stay in their order within an image
    return ClassLists(order, parts[0].numpy()[order], parts[1].numpy()[order], images[order], classes[order], objects)


def _check(
    scores: NDArray[np.floating], boxes: NDArray[np.float64], images: NDArray[np.int64], classes: NDArray[np.int64]
) -> None:
    for name, values in (("scores", scores[:, None]), ("boxes", boxes)):
        wrong = ~np.isfinite(values).all(axis=1)
        if wrong.any():
            first = int(np.argmax(wrong))
            raise NonFiniteError(
                f"image {images[first]}: expected finite {name} but a candidate of class {classes[first]} has "
                f"{values[first].tolist()}; look for a diverged model, or lower the learning rate."
            )
    wrong = inside_out(boxes)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InputError(
            f"image {images[first]}: expected boxes as {CORNERS} but a candidate of class {classes[first]} has "
            f"{boxes[first].tolist()}; {CONVERT}."
        )


def _measure(objective: MAPObjective, lists: ClassLists, needed: bool) -> Measured:
    ranked = rank_present(objective, lists, needed, range(objective.num_classes))
    classes = [ranked.get(c, ABSENT) for c in range(objective.num_classes)]
    value, slopes, metrics = objective.of_classes(classes)
    gradient, total = finished_gradient(objective, lists, ranked, slopes)
    metrics |= {"candidates": len(gradient), **report_sums(total, len(gradient))}
    return Measured(value, torch.from_numpy(gradient), metrics)


def rank_present(objective: MAPObjective, lists: ClassLists, needed: bool, among: range) -> dict[int, ClassGradient]:
    """The metric and, if `needed`, its pseudogradient, of those classes among some that have objects, or can do without."""
    protocol, metric = objective.protocol, objective.metric
    method = objective.method if needed else None
    with_objects = set(lists.objects.object_labels.tolist())
    present = [c for c in among if c in with_objects or not metric.needs_objects]

    def rank(c: int) -> ClassGradient:
        batch = with_cut(_class_batch(lists, c, lists.span(c)), protocol, metric.threshold)
        arrangement = Arrangement(batch, protocol, objective.nms_threshold, 1, None, metric=metric)
        return class_gradient(arrangement, 0, method)

    return dict(zip(present, run_threads(rank, present, torch.get_num_threads()), strict=True))


def finished_gradient(
    objective: MAPObjective, lists: ClassLists, ranked: Mapping[int, ClassGradient], slopes: Sequence[float]
) -> tuple[NDArray[np.float64], Sums]:
    """(M,) gradient of the loss in the candidates, in the order in which they came; `slopes` as `of_classes` gives them."""
    gradient, total = np.zeros(len(lists.scores)), Sums(0, 0.0, 0.0)
    for c, of_class in ranked.items():
        span = lists.span(c)
        finished, sums = objective.join([of_class], lists.scores[span, None], [slopes[c]], 1)
        gradient[lists.order[span]] = finished[0]
        total = Sums(total.nonzero + sums.nonzero, total.positive + sums.positive, total.negative + sums.negative)
    return gradient, total


def _class_batch(lists: ClassLists, c: int, span: slice) -> Batch:
    """The candidates and objects of one class as a batch of one column."""
    objects = lists.objects
    of_class = objects.object_labels == c
    return Batch(
        offsets=np.searchsorted(lists.images[span], np.arange(objects.images + 1)).astype(np.int64),
        scores=lists.scores[span, None],
        boxes=lists.boxes[span, None],
        object_boxes=objects.object_boxes[of_class],
        object_labels=np.zeros(int(of_class.sum()), dtype=np.int64),
        object_images=objects.object_images[of_class],
        difficult=objects.difficult[of_class],
        crowd=objects.crowd[of_class],
        annotated_areas=objects.object_areas[of_class],
    )
