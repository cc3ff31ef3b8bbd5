"""One mAP, or another metric, of lists that differ from class to class, over all processes of a job.

Class c belongs to process c mod world, as in `DistributedMAPLoss`. A process sends each other one the candidates and objects of
that one's classes, ranks its own classes over all images, and sends the gradients back. All numbers travel as float64, which
holds scores, boxes, images and classes exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import InputError
from stepgrad.kernels.balance import Sums
from stepgrad.kernels.jit import explain_wait
from stepgrad.losses.collectives import Channel, RankError
from stepgrad.losses.distributed import DistributedMAPLoss, gather_classes, tell_refusal
from stepgrad.losses.objective import Measured, report_sums
from stepgrad.losses.ragged import ABSENT, ClassLists, ScoredPairs, finished_gradient, make_lists, rank_present
from stepgrad.losses.shards import classes_of, raw
from stepgrad.metric.batch import Batch, Target
from stepgrad.steps.autograd import scale_gradient

Rows = NDArray[np.float64]
_PAIR, _OBJECT = 7, 9  # columns of a row: score, box, image, class; box, label, image, difficult, crowd, area
_ACCEPTED, _NEEDED, _SETTINGS, _WIDE, _IMAGES, _FIRST_COUNT = range(6)  # columns of an announcement


@dataclass(frozen=True)
class _Part:
    """This process's candidates and objects, and what every process announced."""

    lists: ClassLists
    images: list[int]  # of each process
    pairs: NDArray[np.int64]  # (world, world) that a process (row) sends to another
    objects: NDArray[np.int64]
    needed: bool


def joined_map_loss(loss_fn: DistributedMAPLoss, candidates: ScoredPairs, targets: Sequence[Target]) -> Tensor:
    """`ragged_map_loss` of the candidates of all processes, joined in the order of their ranks."""
    channel = Channel(loss_fn.group, loss_fn.timeout, loss_fn.traffic)
    part = _announce(channel, loss_fn, candidates, targets)
    measured, others_l4 = _measure(channel, loss_fn, part)
    loss_fn.alone.metrics = measured.metrics
    objective = loss_fn.objective
    loss = objective.as_loss(measured, candidates.scores, part.lists.scores)
    if objective.l4 is not None:
        loss = loss + objective.l4 * others_l4
    return scale_gradient(loss, float(channel.world)) if loss_fn.gradients == "averaged" else loss


def _announce(
    channel: Channel, loss_fn: DistributedMAPLoss, candidates: ScoredPairs, targets: Sequence[Target]
) -> _Part:
    """Check this process's part and tell the others its size; bad input on one process ends the call on all."""
    world = channel.world
    row = np.zeros(_FIRST_COUNT + 2 * world, dtype=np.int64)
    try:
        lists = make_lists(loss_fn.objective, candidates, targets)
    except Exception as error:  # whatever it is: the others must not be left waiting
        channel.gather(row, "announcing the candidates")
        tell_refusal(channel, str(error))
        raise
    needed = torch.is_grad_enabled() and candidates.scores.requires_grad
    sent = [np.bincount(labels % world, minlength=world) for labels in (lists.classes, lists.objects.object_labels)]
    wide = candidates.scores.dtype == torch.float64
    row[:] = [1, needed, loss_fn.settings_hash(), wide, len(targets), *sent[0], *sent[1]]
    rows = channel.gather(row, "announcing the candidates")
    if not rows[:, _ACCEPTED].all():
        raise RankError(tell_refusal(channel, ""))
    for column, what in ((_SETTINGS, "settings of the loss"), (_WIDE, "dtype of the scores")):
        if len(set(rows[:, column].tolist())) > 1:
            raise InputError(f"Expected the same {what} on every process but they differ.")
    counts = rows[:, _FIRST_COUNT:]
    return _Part(lists, rows[:, _IMAGES].tolist(), counts[:, :world], counts[:, world:], bool(rows[:, _NEEDED].any()))


def _measure(channel: Channel, loss_fn: DistributedMAPLoss, part: _Part) -> tuple[Measured, float]:
    """Loss, metrics and the gradient in this process's candidates; and the other processes' sum of scores^4."""
    objective, me = loss_fn.objective, channel.rank
    sizes = 8 * (_PAIR * part.pairs[:, me] + _OBJECT * part.objects[:, me])
    owners = part.lists.classes % channel.world
    taken = channel.exchange(
        [_pack(part.lists, r, channel.world) for r in range(channel.world)],
        sizes.tolist(),
        "sending the candidates to the processes that rank their classes",
    )
    mine = _join(taken, part, me)
    with explain_wait():
        own_classes = classes_of(me, channel.world, objective.num_classes)
        ranked = rank_present(objective, mine, part.needed, own_classes)
        own = [ranked.get(c, ABSENT) for c in own_classes]
        everyones, l4_sums = gather_classes(channel, own, part.lists.scores, objective.num_classes)
        value, slopes, metrics = objective.of_classes(everyones)
        gradient, sums = finished_gradient(objective, mine, ranked, slopes)
    back, total = _return(channel, gradient, sums, part)
    own_gradient = np.zeros(len(owners))
    for r, values in enumerate(back):
        own_gradient[part.lists.order[owners == r]] = values
    count = int(part.pairs.sum())
    metrics |= {"candidates": count, **report_sums(total, count)}
    return Measured(value, torch.from_numpy(own_gradient), metrics), float(np.delete(l4_sums, me).sum())


def _pack(lists: ClassLists, rank: int, world: int) -> NDArray[np.uint8]:
    """The candidates and objects of a process's classes; candidates in sorted order."""
    chosen = lists.classes % world == rank
    pairs = np.column_stack([lists.scores, lists.boxes, lists.images, lists.classes]).astype(np.float64)[chosen]
    objects = lists.objects
    flags: list[NDArray[Any]] = [objects.object_labels, objects.object_images, objects.difficult, objects.crowd]
    columns = [objects.object_boxes, *flags, objects.object_areas]
    rows = np.column_stack(columns).astype(np.float64)[objects.object_labels % world == rank]
    return np.concatenate([raw(pairs), raw(rows)])


def _join(taken: Sequence[NDArray[np.uint8]], part: _Part, me: int) -> ClassLists:
    """What all processes sent, images counted through; `order` is the place among what was sent."""
    pairs, objects, first = [], [], 0
    for r, sent in enumerate(taken):
        numbers = sent.copy().view(np.float64)
        end = _PAIR * int(part.pairs[r, me])
        pair, object_ = numbers[:end].reshape(-1, _PAIR), numbers[end:].reshape(-1, _OBJECT)
        pair[:, 5] += first
        object_[:, 5] += first
        pairs.append(pair)
        objects.append(object_)
        first += part.images[r]
    return _lists_of(np.concatenate(pairs), np.concatenate(objects), first, part.lists)


def _lists_of(pairs: Rows, objects: Rows, images: int, like: ClassLists) -> ClassLists:
    image, column = pairs[:, 5].astype(np.int64), pairs[:, 6].astype(np.int64)
    order = np.lexsort((image, column))
    return ClassLists(
        order=order,
        scores=pairs[order, 0].astype(like.scores.dtype),
        boxes=pairs[order, 1:5],
        images=image[order],
        classes=column[order],
        objects=Batch(
            offsets=np.zeros(images + 1, dtype=np.int64),
            scores=np.zeros((0, like.objects.num_classes), dtype=like.scores.dtype),
            boxes=np.zeros((0, 4)),
            object_boxes=np.ascontiguousarray(objects[:, :4]),
            object_labels=objects[:, 4].astype(like.objects.object_labels.dtype),
            object_images=objects[:, 5].astype(like.objects.object_images.dtype),
            difficult=objects[:, 6] > 0,
            crowd=objects[:, 7] > 0,
            annotated_areas=objects[:, 8].copy(),
        ),
    )


def _return(channel: Channel, gradient: Rows, sums: Sums, part: _Part) -> tuple[list[Rows], Sums]:
    """Send gradients to where the candidates are; returns, by the process that ranked them, those of this one's."""
    head = raw(np.array(sums, dtype=np.float64))
    ends = np.cumsum([0, *part.pairs[:, channel.rank]])
    parts = [np.concatenate([head, raw(gradient[ends[r] : ends[r + 1]])]) for r in range(channel.world)]
    sizes = [len(head) + 8 * int(count) for count in part.pairs[channel.rank]]
    taken = [sent.copy().view(np.float64) for sent in channel.exchange(parts, sizes, "sending the gradients back")]
    nonzero, positive, negative = np.sum([values[:3] for values in taken], axis=0).tolist()
    return [values[3:] for values in taken], Sums(int(nonzero), positive, negative)
