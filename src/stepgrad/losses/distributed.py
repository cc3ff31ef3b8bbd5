"""One mAP over all processes of a job.

mAP ranks all windows of a batch in one list, so the mean of the processes' own mAPs is another objective. Here every
process sends its scores, once and without a graph, to the processes that work on their classes; each of these ranks its
classes over all images and sends the gradients back; and each process back-propagates its own windows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from stepgrad.errors import ConfigError, InputError
from stepgrad.kernels.balance import Sums
from stepgrad.kernels.jit import explain_wait
from stepgrad.losses.collectives import DEFAULT_TIMEOUT, Channel, RankError, Traffic, average_gradients, is_alone
from stepgrad.losses.detection_loss import DetectionLoss
from stepgrad.losses.map_loss import MAPLoss
from stepgrad.losses.objective import MAPObjective, Measured, report_sums
from stepgrad.losses.shards import Sizes, bytes_tensor, classes_of, pack, raw, sizes_of, tensor_bytes, unpack
from stepgrad.metric.batch import Batch, Target
from stepgrad.metric.forms import Windows
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.protocol import Protocol
from stepgrad.plain_tensors import keep_out_of_compiled_graphs, narrowed
from stepgrad.steps.autograd import scale_gradient
from stepgrad.steps.map_steps import ClassGradient

__all__ = ["DistributedDetectionLoss", "DistributedMAPLoss", "RankError", "Traffic", "average_gradients"]

_ACCEPTED, _NEEDED, _SETTINGS, _FIRST_SIZE = range(4)  # columns of an announcement
_MESSAGE = 500  # bytes of a refusal that others get to see


@dataclass(frozen=True)
class _Shard:
    """This process's part of the batch, and what every process announced."""

    batch: Batch
    flat: Tensor
    sizes: list[Sizes]
    needed: bool  # some process wants gradients


class DistributedMAPLoss(nn.Module):
    """`MAPLoss` of the batches of all processes joined in the order of their ranks. Every process calls it each step.

    Value and `metrics` are those of the joined batch and the same everywhere; the gradient reaches this process's scores.
    Shards may differ in size; one may be empty (three empty lists). Score dtype and settings must agree. Without a
    process group, or alone in it, this is `MAPLoss`.

    Args:
        options: those of `MAPLoss`.
        gradients: what happens to the parameters' gradients afterwards. "averaged" (DistributedDataParallel, Fabric,
            `average_gradients`): gradients are multiplied by the number of processes, so that the mean is
            the joined batch's gradient. "summed": they are not changed.
        timeout: seconds to wait for the other processes before giving up with a RankError.
        group: the processes; None: all.

    `traffic` counts what this process sent and received.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> loss_fn = DistributedMAPLoss(num_classes=1)
    >>> loss = loss_fn([torch.tensor([[0.2], [0.9]])], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> loss_fn.metrics["map"], loss_fn.traffic.sent          # a single process here
    (0.5, 0)
    """

    kind: ClassVar[type[DetectionLoss]] = MAPLoss  # what it is on one process

    def __init__(
        self,
        num_classes: int,
        protocol: str | Protocol = "voc12",
        *,
        gradients: str = "averaged",
        timeout: float = DEFAULT_TIMEOUT,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        keep_out_of_compiled_graphs(type(self))
        if gradients not in ("averaged", "summed"):
            raise ConfigError(f"Expected gradients to be 'averaged' or 'summed' but got {gradients!r}.")
        if not (math.isfinite(timeout) and timeout > 0):
            raise ConfigError(f"Expected timeout to be a number of seconds > 0 but got {timeout!r}.")
        if options.get("score_floor") is not None:
            raise ConfigError("Expected no score_floor: processes exchange all pairs. Use MAPLoss, or leave it out.")
        self.alone = self.kind(num_classes, protocol=protocol, **options)
        self.gradients = gradients
        self.timeout = timeout
        self.group = group
        self.traffic = Traffic()

    @property
    def objective(self) -> MAPObjective:
        """The settings, as in `MAPLoss`."""
        return self.alone.objective

    @property
    def num_classes(self) -> int:
        """Columns of the scores."""
        return self.objective.num_classes

    @property
    def metrics(self) -> dict[str, Any]:
        """Of the last call; see `MAPLoss`."""
        return self.alone.metrics

    def forward(
        self, scores: Windows, boxes: Windows, targets: Sequence[Target] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The loss of the joined batch; arguments as for `MAPLoss`, of this process's images."""
        if is_alone(self.group):
            loss: Tensor = self.alone(scores, boxes, targets, mask)
            return loss
        channel = Channel(self.group, self.timeout, self.traffic)
        shard = self._announce(channel, lambda: self._checked(scores, boxes, targets, mask))
        measured, others_l4 = self._measure(channel, shard)
        self.alone.metrics = measured.metrics
        loss = self.objective.as_loss(measured, shard.flat, shard.batch.scores)
        if self.objective.l4 is not None:
            loss = loss + self.objective.l4 * others_l4
        return scale_gradient(loss, float(channel.world)) if self.gradients == "averaged" else loss

    def _announce(self, channel: Channel, read: Callable[[], tuple[Batch, Tensor]]) -> _Shard:
        """Check this process's part and tell the others its size; bad input on one process ends the call on all."""
        row = np.zeros(_FIRST_SIZE + 4 + channel.world, dtype=np.int64)
        try:
            batch, flat = read()
        except Exception as error:  # whatever it is: the others must not be left waiting
            channel.gather(row, "announcing the batch")
            tell_refusal(channel, str(error))
            raise
        needed = torch.is_grad_enabled() and flat.requires_grad and len(flat) > 0
        row[:] = [1, needed, self.settings_hash(), *sizes_of(batch, flat.dtype, channel.world).row()]
        rows = channel.gather(row, "announcing the batch")
        if not rows[:, _ACCEPTED].all():
            raise RankError(tell_refusal(channel, ""))
        sizes = [Sizes.read(r[_FIRST_SIZE:].tolist()) for r in rows]
        dtype = _check_agreement(rows, sizes)
        joined = flat if dtype is None else flat.to(dtype)  # changes nothing unless this process has no windows
        return _Shard(batch, joined, sizes, bool(rows[:, _NEEDED].any()))

    def _checked(
        self, scores: Windows, boxes: Windows, targets: Sequence[Target] | None, mask: Tensor | None
    ) -> tuple[Batch, Tensor]:
        batch, flat = self.alone.read(scores, boxes, targets, mask)
        self.objective.check_l4(batch.scores, flat.dtype)
        return batch, flat

    def settings_hash(self) -> int:
        """A number that differs where settings do, with near certainty."""
        digest = hashlib.sha256(repr((self.objective, self.gradients)).encode()).digest()
        return int.from_bytes(digest[:7], "big")

    def _measure(self, channel: Channel, shard: _Shard) -> tuple[Measured, float]:
        """Loss, metrics, and the gradient in this process's scores; and the other processes' sum of scores^4."""
        objective, K = self.objective, self.objective.num_classes
        own_classes = classes_of(channel.rank, channel.world, K)
        parts = channel.exchange(
            pack(shard.batch, shard.sizes[channel.rank], channel.world),
            [sizes.nbytes(channel.rank, len(own_classes)) for sizes in shard.sizes],
            "sending the scores to the processes that rank their classes",
        )
        batch = unpack(parts, shard.sizes, channel.rank, len(own_classes)) if len(own_classes) else None
        with explain_wait():
            classes = [] if batch is None else objective.rank(batch, shard.needed)  # of all images
            everyones, l4_sums = gather_classes(channel, classes, shard.batch.scores, K)
            value, slopes, metrics = objective.of_classes(everyones)
            own_gradient, sums = torch.zeros(shard.flat.shape, dtype=shard.flat.dtype), Sums(0, 0.0, 0.0)
            if shard.needed:
                scores = np.zeros((0, 0)) if batch is None else batch.scores
                own_slopes = [slopes[c] for c in own_classes]
                gradient, sums = objective.join(classes, scores, own_slopes, torch.get_num_threads())
                own_gradient, sums = _return_gradients(channel, gradient, sums, shard, K)
        total = K * sum(sizes.windows for sizes in shard.sizes)
        others = float(np.delete(l4_sums, channel.rank).sum())
        return Measured(value, own_gradient, metrics | report_sums(sums, total)), others

    def extra_repr(self) -> str:
        return f"gradients={self.gradients!r}"


class DistributedDetectionLoss(DistributedMAPLoss):
    """`DetectionLoss` of the batches of all processes; arguments as for it, and those of `DistributedMAPLoss`.

    >>> loss_fn = DistributedDetectionLoss(num_classes=1, metric="recall@precision=0.9")
    >>> _ = loss_fn([torch.tensor([[0.2]])], [torch.tensor([[0.0, 0.0, 1.0, 1.0]])], [{"boxes": [], "labels": []}])
    >>> loss_fn.metrics["value"]
    0.0
    """

    kind = DetectionLoss

    def __init__(
        self,
        num_classes: int,
        metric: str | ListMetric | Callable[..., Any],
        protocol: str | Protocol = "voc12",
        **options: Any,
    ) -> None:
        super().__init__(num_classes, protocol, metric=metric, **options)


def _check_agreement(rows: NDArray[np.int64], sizes: Sequence[Sizes]) -> torch.dtype | None:
    """The dtype of the scores, if there are any. Raises, on every process alike, if the parts cannot be joined."""
    if len(set(rows[:, _SETTINGS].tolist())) > 1:
        raise InputError("Expected the same settings of the distributed loss on every process but they differ.")
    by_rank = {rank: s.dtype for rank, s in enumerate(sizes) if s.windows}
    if len(set(by_rank.values())) > 1:
        listed = ", ".join(f"rank {rank}: {dtype}" for rank, dtype in by_rank.items())
        raise InputError(
            f"Expected scores of one dtype on all processes but got {listed}; convert them before the loss."
        )
    return next(iter(by_rank.values()), None)


def tell_refusal(channel: Channel, message: str) -> str:
    """Exchange the reasons for which processes refused their part; returns them as one message."""
    padded = np.zeros(_MESSAGE, dtype=np.uint8)
    text = np.frombuffer(message.encode()[:_MESSAGE], dtype=np.uint8)
    padded[: len(text)] = text
    rows = channel.gather(padded, "passing on an error")
    reasons = {rank: bytes(row).rstrip(b"\0").decode(errors="ignore") for rank, row in enumerate(rows)}
    return "Another process refused its part of the batch. " + " ".join(
        f"rank {r}: {t}" for r, t in reasons.items() if t
    )


def gather_classes(
    channel: Channel, classes: Sequence[ClassGradient], scores: NDArray[np.floating], K: int
) -> tuple[list[ClassGradient], NDArray[np.float64]]:
    """AP, objects and kept windows of every class, and each process's sum of scores^4."""
    most = -(-K // channel.world)
    row = np.zeros((most + 1, 3))
    for i, ranked in enumerate(classes):
        row[i] = ranked.value, ranked.P, ranked.kept
    row[most, 0] = (scores.astype(np.float64) ** 4).sum()
    rows = channel.gather(row.reshape(-1), "exchanging the classes' values").reshape(channel.world, most + 1, 3)
    by_class = [rows[c % channel.world, c // channel.world] for c in range(K)]
    return [ClassGradient(float(value), int(P), int(kept), None) for value, P, kept in by_class], rows[:, most, 0]


def _return_gradients(
    channel: Channel, gradient: NDArray[np.float64], sums: Sums, shard: _Shard, K: int
) -> tuple[Tensor, Sums]:
    """Send the gradients in this process's classes to where the windows are; returns those in this process's windows."""
    ranks, mine = range(channel.world), shard.sizes[channel.rank]
    dtype = shard.flat.dtype
    ends = np.cumsum([0, *(s.windows for s in shard.sizes)])
    head = raw(np.array(sums, dtype=np.float64))
    narrow = narrowed(torch.from_numpy(gradient.T), dtype)
    parts = [np.concatenate([head, tensor_bytes(narrow[ends[r] : ends[r + 1]])]) for r in ranks]
    columns = [len(classes_of(r, channel.world, K)) for r in ranks]
    sizes = [len(head) + mine.windows * count * dtype.itemsize for count in columns]
    taken = channel.exchange(parts, sizes, "sending the gradients back")
    own_gradient = torch.zeros(mine.windows, K, dtype=dtype)
    for r in ranks:
        own_gradient[:, r :: channel.world] = bytes_tensor(taken[r][len(head) :], dtype, (mine.windows, columns[r]))
    rows = [part[: len(head)].copy().view(np.float64) for part in taken]
    nonzero, positive, negative = np.sum(rows, axis=0).tolist()
    return own_gradient, Sums(int(nonzero), positive, negative)
