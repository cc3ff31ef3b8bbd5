"""What the processes of the tests do. Shards are lists of (scores, boxes, targets), one per rank."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stepgrad.errors import StepgradError
from stepgrad.losses.distributed import DistributedMAPLoss, average_gradients
from stepgrad.losses.large_batch import large_batch
from tests.detector.training.windows import CLASSES, Windows, made_windows, small_model
from tests.patience import PATIENCE
from tests.scenes import random_batch

Shard = tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]


@dataclass(frozen=True)
class Case:
    """A batch, where it is cut into shards (by image), and the settings of the loss."""

    images: int = 6
    cuts: tuple[int, ...] = (4,)
    K: int = 3
    dtype: torch.dtype = torch.float32
    kind: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    gradients: bool = True
    seed: int = 0

    def shards(self) -> list[Shard]:
        if self.images == 0:
            return [([], [], []) for _ in range(len(self.cuts) + 1)]
        rng = np.random.default_rng([self.seed, 71])
        batch = random_batch(rng, windows=12 * self.images, images=self.images, K=self.K, objects=24, **self.kind)
        scores, boxes, targets = batch.tensors(self.dtype)
        edges = [0, *self.cuts, self.images]
        return [(scores[a:b], boxes[a:b], targets[a:b]) for a, b in itertools.pairwise(edges)]

    def cut(self, cuts: tuple[int, ...]) -> Case:
        """Cut elsewhere."""
        return replace(self, cuts=tuple(min(c, self.images) for c in cuts))

    def joined(self) -> Shard:
        scores, boxes, targets = zip(*self.shards(), strict=True)
        return [*itertools.chain(*scores)], [*itertools.chain(*boxes)], [*itertools.chain(*targets)]


CASES = {
    "plain": Case(),
    "ties, difficult and crowd objects, COCO": Case(
        kind={"ties": True, "difficult": 0.3, "crowd": 0.2}, options={"protocol": "coco"}
    ),
    "boxes per class": Case(kind={"per_class_boxes": True}),
    "double": Case(dtype=torch.float64, options={"estimator": "sde", "balance": "none"}),
    "half": Case(dtype=torch.float16),
    "bfloat16": Case(dtype=torch.bfloat16, options={"through_nms": "paper"}),
    "one class": Case(K=1),
    "L4 and clip": Case(options={"l4": 1e-3, "clip": 0.05, "balance": "class+scale"}),
    "absent classes left out": Case(K=7, options={"absent_classes": "skip"}),
    "first rank empty": Case(cuts=(0,)),
    "last rank empty": Case(cuts=(6,)),
    "one image in all": Case(images=1, cuts=(0,)),
    "nobody has images": Case(images=0, cuts=(0,)),
    "without gradients": Case(gradients=False),
    "no NMS": Case(options={"nms_threshold": None, "log": False}),
}


def one_case(rank: int, case: Case, **options: Any) -> dict[str, Any]:
    """Loss, gradients, metrics and traffic of one process."""
    scores, boxes, targets = case.shards()[rank]
    leaves = [s.clone().requires_grad_(case.gradients) for s in scores]
    loss_fn = DistributedMAPLoss(case.K, gradients="summed", timeout=PATIENCE, **case.options, **options)
    loss = loss_fn(leaves, boxes, targets)
    if case.gradients:
        loss.backward()
    return {
        "loss": loss.detach(),
        "gradients": [s.grad for s in leaves],
        "metrics": loss_fn.metrics,
        "traffic": loss_fn.traffic,
        "windows": sum(len(s) for s in scores),
    }


@dataclass(frozen=True)
class Pair:
    """Jobs of two processes."""

    rank: int
    group: Any

    def loss(self, timeout: float = PATIENCE, **options: Any) -> DistributedMAPLoss:
        return DistributedMAPLoss(CLASSES, timeout=timeout, group=self.group, **options)

    def train(self, way: str, cut: int, steps: int = 20) -> tuple[list[float], dict[str, Tensor]]:
        """Steps on shards cut at an image: "plain", in a "ddp" wrapper, or in "chunks" with dropout."""
        windows = made_windows(7, dtype=torch.float64)
        own = windows[:cut] if self.rank == 0 else windows[cut:]
        model = small_model(0.4 if way.startswith("chunks") else 0.0).double()
        wrapped = DistributedDataParallel(model, process_group=self.group) if "ddp" in way else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loss_fn, losses = self.loss(l4=1e-4), []
        for step in range(steps):
            optimizer.zero_grad()
            losses.append(take_step(way, wrapped, own, loss_fn, first_image=cut * self.rank, step=step))
            if "ddp" not in way:
                average_gradients(model.parameters(), group=self.group)
            optimizer.step()
        return losses, model.state_dict()

    def disagree(self) -> dict[str, tuple[str, str]]:
        """The error each process gets when one was given something wrong; then a good call."""
        scores, boxes, targets = Case().shards()[self.rank]
        bad = [scores[0].clone(), *scores[1:]]
        bad[0][0, 0] = torch.nan
        second = self.rank == 1
        trials = {
            "nan on rank 1": (self.loss(), bad if second else scores),
            "dtypes": (self.loss(), [s.double() for s in scores] if second else scores),
            "settings": (self.loss(eps=0.01 * (self.rank + 1)), scores),
            "fine again": (self.loss(), scores),
        }
        return {name: error_of(loss_fn, given, boxes, targets) for name, (loss_fn, given) in trials.items()}

    def partial_gradients(self) -> list[Tensor | None]:
        """Parameter 0 has gradients on both ranks, 1 on rank 1 only, 2 nowhere; 3 is of another dtype."""
        parameters = [nn.Parameter(torch.zeros(2, dtype=d)) for d in (*[torch.float32] * 3, torch.float64)]
        parameters[0].grad = torch.tensor([1.0, 2.0]) * (self.rank + 1)
        parameters[3].grad = torch.ones(2, dtype=torch.float64)
        if self.rank == 1:
            parameters[1].grad = torch.tensor([4.0, 8.0])
        average_gradients(parameters, group=self.group)
        return [p.grad for p in parameters]

    def late(self, afterwards: Any) -> tuple[str, str]:
        """The error of rank 0, which waits two seconds; rank 1 comes, to a meeting of another group, when it is over."""
        found = error_of(self.loss(timeout=2), *Case().shards()[0]) if self.rank == 0 else ("", "")
        dist.barrier(group=afterwards)
        return found

    def killed(self) -> tuple[str, str]:
        """The error of rank 0 when rank 1 is killed in the middle of a step."""
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return error_of(self.loss(), *Case().shards()[0])


WAYS = [("plain", 5), ("plain", 7), ("ddp", 5), ("ddp", 7), ("chunks", 5), ("chunks", 7), ("chunks ddp", 4)]


def all_jobs(rank: int) -> Iterator[dict[str, Any]]:
    """Everything in one start of three processes, which is what takes long; the pairs are the first two of them."""
    two, three, last = dist.new_group([0, 1]), (2, 2), dist.new_group([0, 1])
    yield {"three": {name: one_case(rank, case.cut(three)) for name, case in CASES.items()}}
    if rank < 2:
        pair = Pair(rank, two)
        yield {"two": {name: one_case(rank, case, group=two) for name, case in CASES.items()}}
        yield {"training": {f"{way} {cut}": pair.train(way, cut) for way, cut in WAYS}}
        yield {"errors": pair.disagree(), "partial gradients": pair.partial_gradients()}
        yield {"late": pair.late(last)}  # after this the two are out of step
        yield {"killed": Pair(rank, last).killed()}


def take_step(way: str, model: nn.Module, own: Windows, loss_fn: Any, first_image: int, step: int) -> float:
    if way.startswith("chunks"):
        chunks = [list(range(i, min(i + 2, len(own.features)))) for i in range(0, len(own.features), 2)]
        loss = large_batch(
            lambda chunk: [seeded(model, own.features[i], 1000 * step + first_image + i) for i in chunk],
            chunks,
            lambda scores: loss_fn(scores, own.boxes, own.targets),
            model=model,
        )
        return loss.item()
    if not own.features:  # DDP waits for a backward pass on every process: an image without windows gives it one
        own = made_windows(1, dtype=torch.float64).cut(0, 0).without_objects()
    joined = model(torch.cat(own.features))
    loss = loss_fn(list(joined.split([len(f) for f in own.features])), own.boxes, own.targets)
    loss.backward()
    return float(loss)


def seeded(model: nn.Module, features: Tensor, seed: int) -> Tensor:
    """Dropout that depends on the image and the step, not on the process."""
    torch.manual_seed(seed)
    scores: Tensor = model(features)
    return scores


def error_of(loss_fn: DistributedMAPLoss, *arguments: Any) -> tuple[str, str]:
    try:
        loss_fn(*arguments)
    except StepgradError as error:
        return type(error).__name__, str(error)
    return "", ""
