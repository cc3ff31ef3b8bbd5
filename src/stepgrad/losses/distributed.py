"""One metric over all processes of a job.

mAP ranks all windows of a batch in one list, so the mean of the processes' own mAPs is another objective. Class c belongs to
process c mod world. Every process sends each other one the scores, boxes and objects of that one's classes, once and
without a graph; each ranks its classes over all images and sends the gradients back; and each back-propagates its own windows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from stepgrad.engine.balance import Sums
from stepgrad.engine.classes import RankedClass
from stepgrad.engine.jit import explain_wait
from stepgrad.errors import ConfigError, InputError
from stepgrad.losses.detection import DetectionLoss, MAPLoss
from stepgrad.losses.objective import Measured, Objective, report_sums
from stepgrad.losses.ragged import ScoredPairs
from stepgrad.losses.shards import Pairs, Shard
from stepgrad.metric.batch import Target
from stepgrad.metric.forms import Windows
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.protocol import Protocol
from stepgrad.plain_tensors import outside_graphs
from stepgrad.processes import DEFAULT_TIMEOUT, Channel, RankError, Traffic, average_gradients, is_alone
from stepgrad.steps.autograd import scale_gradient

__all__ = ["DistributedDetectionLoss", "DistributedMAPLoss", "RankError", "Traffic", "average_gradients"]

_DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
_ACCEPTED, _NEEDED, _SETTINGS, _IMAGES, _SCORES, _DTYPE = range(6)  # columns of an announcement
_MESSAGE = 500  # bytes of a refusal that others get to see


class DistributedDetectionLoss(nn.Module):
    """`DetectionLoss` of the batches of all processes joined in the order of their ranks. Every process calls it each step.

    Value and `metrics` are those of the joined batch and the same everywhere; the gradient reaches this process's scores.
    Shards may differ in size; one may be empty (three empty lists). Score dtype and settings must agree. Without a process
    group, or alone in it, this is `DetectionLoss`.

    Args:
        metric, options: those of `DetectionLoss`.
        gradients: what happens to the parameters' gradients afterwards. "averaged" (DistributedDataParallel, Fabric,
            `average_gradients`): gradients are multiplied by the number of processes, so that the mean is
            the joined batch's gradient. "summed": they are not changed.
        timeout: seconds to wait for the other processes before giving up with a RankError.
        group: the processes; None: all.

    `traffic` counts what this process sent and received.

    >>> loss_fn = DistributedDetectionLoss(num_classes=1, metric="recall@precision=0.9")
    >>> _ = loss_fn([torch.tensor([[0.2]])], [torch.tensor([[0.0, 0.0, 1.0, 1.0]])], [{"boxes": [], "labels": []}])
    >>> loss_fn.metrics["value"], loss_fn.traffic.sent          # a single process here
    (0.0, 0)
    """

    def __init__(
        self,
        num_classes: int,
        metric: str | ListMetric | Callable[..., Any],
        protocol: str | Protocol = "voc12",
        *,
        gradients: str = "averaged",
        timeout: float = DEFAULT_TIMEOUT,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if gradients not in ("averaged", "summed"):
            raise ConfigError(f"Expected gradients to be 'averaged' or 'summed' but got {gradients!r}.")
        if not (math.isfinite(timeout) and timeout > 0):
            raise ConfigError(f"Expected timeout to be a number of seconds > 0 but got {timeout!r}.")
        if options.get("score_floor") is not None:
            raise ConfigError("Expected no score_floor: processes exchange all pairs. Use MAPLoss, or leave it out.")
        self.alone = self._on_one_process(num_classes, metric, protocol=protocol, **options)
        self.gradients = gradients
        self.timeout = timeout
        self.group = group
        self.traffic = Traffic()

    def _on_one_process(self, num_classes: int, metric: Any, **options: Any) -> DetectionLoss:
        """The loss that this is without other processes."""
        return DetectionLoss(num_classes, metric, **options)

    @property
    def objective(self) -> Objective:
        """The settings, as in `DetectionLoss`."""
        return self.alone.objective

    @property
    def num_classes(self) -> int:
        """Columns of the scores."""
        return self.objective.num_classes

    @property
    def metrics(self) -> dict[str, Any]:
        """Of the last call; see `DetectionLoss`."""
        return self.alone.metrics

    @outside_graphs
    def forward(
        self,
        scores: Windows,
        boxes: Windows | None = None,
        targets: Sequence[Target] | None = None,
        mask: Tensor | None = None,
        **more: Any,
    ) -> Tensor:
        """The loss of the joined batch; arguments as for `DetectionLoss`, of this process's images.

        Overlaps in place of boxes have to be given by every process, also by one without images.
        """
        if is_alone(self.group):
            loss: Tensor = self.alone(scores, boxes, targets, mask, **more)
            return loss
        return self._joined(lambda: Shard(*self.alone.read(scores, boxes, targets, mask, more)))

    def of_pairs(self, candidates: ScoredPairs, targets: Sequence[Target]) -> Tensor:
        """The loss of (window, class) pairs of all processes: see `ragged_map_loss`."""
        if is_alone(self.group):
            return self.alone.of_pairs(candidates, targets)
        return self._joined(lambda: Pairs(self.alone.read_pairs(candidates, targets), candidates.scores))

    def _joined(self, read: Callable[[], Shard | Pairs]) -> Tensor:
        """The loss of all processes' parts; `read` gives this process's, checked."""
        channel = Channel(self.group, self.timeout, self.traffic)
        part, rows = self._announce(channel, read)
        measured, others_l4 = self._measure(channel, part, rows)
        self.alone.metrics = measured.metrics
        loss = self.objective.as_loss(measured, part.scores, part.values)
        if self.objective.l4 is not None:
            loss = loss + self.objective.l4 * others_l4
        return scale_gradient(loss, float(channel.world)) if self.gradients == "averaged" else loss

    def _announce(self, channel: Channel, read: Callable[[], Shard | Pairs]) -> tuple[Shard | Pairs, NDArray[np.int64]]:
        """Check this process's part and tell the others of it; bad input on one process ends the call on all."""
        try:
            part = read()
            self.objective.check_l4(part.values, part.scores.dtype)
        except Exception as error:  # whatever it is: the others must not be left waiting
            channel.gather(np.zeros(6, dtype=np.int64), "announcing the batch")
            _tell_refusal(channel, str(error))
            raise
        needed = torch.is_grad_enabled() and part.scores.requires_grad and part.scores.numel() > 0
        facts = [
            1,
            needed,
            self._settings_hash(part.geometry),
            part.images,
            part.values.size,
            _DTYPES.index(part.scores.dtype),
        ]
        rows = channel.gather(np.array(facts, dtype=np.int64), "announcing the batch")
        if not rows[:, _ACCEPTED].all():
            raise RankError(_tell_refusal(channel, ""))
        return part.to_dtype(_agreed_dtype(rows)), rows

    def _settings_hash(self, geometry: tuple[bool, bool]) -> int:
        """A number that differs where settings do, or what is given in place of boxes, with near certainty."""
        digest = hashlib.sha256(repr((self.objective, self.gradients, geometry)).encode()).digest()
        return int.from_bytes(digest[:7], "big")

    def _measure(self, channel: Channel, part: Shard | Pairs, rows: NDArray[np.int64]) -> tuple[Measured, float]:
        """Loss, metrics, and the gradient in this process's scores; and the other processes' sum of scores^4."""
        objective, world, K = self.objective, channel.world, self.num_classes
        own_classes = range(channel.rank, K, world)
        needed = bool(rows[:, _NEEDED].any())
        what = "the scores sent to the processes that rank their classes"
        taken = channel.exchange([part.for_classes(range(r, K, world)) for r in range(world)], what)
        with explain_wait():
            joined = part.join(taken, rows[:, _IMAGES].tolist(), own_classes)
            classes = joined.rank(objective, needed, own_classes)
            everyones, l4_sums = _gather_classes(channel, classes, part.values, K)
            value, slopes, metrics = objective.of_classes(everyones)
            sums, own_gradient = np.zeros(3), np.zeros(part.values.shape, dtype=np.float64)
            if needed:
                gradients, own_sums = joined.gradients(objective, classes, slopes, own_classes)
                own_sums_row = np.array(own_sums, dtype=np.float64)
                sent_back = [{"sums": own_sums_row, "gradient": _narrow(g, part.scores.dtype)} for g in gradients]
                back = channel.exchange(sent_back, "the gradients sent back")
                sums = np.sum([sent["sums"] for sent in back], axis=0)
                for r, sent in enumerate(back):
                    part.put(own_gradient, sent["gradient"], range(r, K, world))
        total = int(rows[:, _SCORES].sum())
        report = report_sums(Sums(int(sums[0]), float(sums[1]), float(sums[2])), total)
        metrics |= report | ({"candidates": total} if isinstance(part, Pairs) else {})
        others = float(np.delete(l4_sums, channel.rank).sum())
        return Measured(value, torch.from_numpy(own_gradient), metrics), others

    def extra_repr(self) -> str:
        return f"gradients={self.gradients!r}"


class DistributedMAPLoss(DistributedDetectionLoss):
    """`MAPLoss` of the batches of all processes; arguments as for it, and those of `DistributedDetectionLoss`.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> loss_fn = DistributedMAPLoss(num_classes=1)
    >>> loss = loss_fn([torch.tensor([[0.2], [0.9]])], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> loss_fn.metrics["map"]
    0.5
    """

    def __init__(self, num_classes: int, protocol: str | Protocol = "voc12", **options: Any) -> None:
        super().__init__(num_classes, AVERAGE_PRECISION, protocol, **options)

    def _on_one_process(self, num_classes: int, metric: Any, **options: Any) -> MAPLoss:
        return MAPLoss(num_classes, **options)


def _narrow(gradient: NDArray[np.float64], dtype: torch.dtype) -> NDArray[np.floating]:
    """The gradient as it travels: in the scores' own precision, if NumPy has it."""
    if dtype != torch.float32:
        return gradient
    bound = np.finfo(np.float32).max
    return np.clip(gradient, -bound, bound).astype(np.float32)


def _agreed_dtype(rows: NDArray[np.int64]) -> torch.dtype | None:
    """The dtype of the scores, if there are any. Raises, on every process alike, if the parts cannot be joined."""
    if len(set(rows[:, _SETTINGS].tolist())) > 1:
        raise InputError("Expected the same settings of the distributed loss on every process but they differ.")
    by_rank = {rank: _DTYPES[row[_DTYPE]] for rank, row in enumerate(rows) if row[_SCORES]}
    if len(set(by_rank.values())) > 1:
        listed = ", ".join(f"rank {rank}: {dtype}" for rank, dtype in by_rank.items())
        raise InputError(
            f"Expected scores of one dtype on all processes but got {listed}; convert them before the loss."
        )
    return next(iter(by_rank.values()), None)


def _tell_refusal(channel: Channel, message: str) -> str:
    """Exchange the reasons for which processes refused their part; returns them as one message."""
    padded = np.zeros(_MESSAGE, dtype=np.uint8)
    text = np.frombuffer(message.encode()[:_MESSAGE], dtype=np.uint8)
    padded[: len(text)] = text
    rows = channel.gather(padded, "passing on an error")
    reasons = {rank: bytes(row).rstrip(b"\0").decode(errors="ignore") for rank, row in enumerate(rows)}
    return "Another process refused its part of the batch. " + " ".join(
        f"rank {r}: {t}" for r, t in reasons.items() if t
    )


def _gather_classes(
    channel: Channel, classes: Sequence[RankedClass], scores: NDArray[np.floating], K: int
) -> tuple[list[RankedClass], NDArray[np.float64]]:
    """Value, objects and kept windows of every class, and each process's sum of scores^4."""
    most = -(-K // channel.world)
    row = np.zeros((most + 1, 3))
    for i, ranked in enumerate(classes):
        row[i] = ranked.value, ranked.P, ranked.kept
    row[most, 0] = (scores.astype(np.float64) ** 4).sum()
    rows = channel.gather(row.reshape(-1), "exchanging the classes' values").reshape(channel.world, most + 1, 3)
    by_class = [rows[c % channel.world, c // channel.world] for c in range(K)]
    return [RankedClass(float(value), int(P), int(kept), None) for value, P, kept in by_class], rows[:, most, 0]
