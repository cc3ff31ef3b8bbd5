"""The loss of a run: one mAP over all processes and, if asked for, over windows of earlier minibatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepgrad.losses.distributed import DistributedMAPLoss
from stepgrad.losses.score_memory import ScoreMemory
from stepgrad.metric.batch import Target

PREFIX = "score_memory/"


class RememberingMAPLoss(DistributedMAPLoss):
    """`DistributedMAPLoss` that ranks what `memory` holds along with each minibatch; every process has its own memory."""

    def __init__(self, memory: ScoreMemory, num_classes: int, **options: Any) -> None:
        super().__init__(num_classes, **options)
        self.memory = memory

    def forward(
        self, scores: Sequence[Tensor], boxes: Sequence[Tensor], targets: Sequence[Target] | None = None
    ) -> Tensor:
        if targets is None or self.memory.size_images == 0 or not torch.is_grad_enabled():
            return super().forward(scores, boxes, targets)
        return self.memory(super().forward, scores, boxes, targets)

    def memory_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold of the memory."""
        state = self.memory.state_dict()
        return {
            f"{PREFIX}unnamed": torch.tensor(state["unnamed"]),
            **{f"{PREFIX}{name}": value for name, value in state["tensors"].items()},
        }

    def restore_memory(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with the memory of a checkpoint; the images of a run have no names but their order."""
        own = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
        unnamed = int(own.pop("unnamed", torch.tensor(0)))
        count = len({name.split(".", 1)[0] for name in own})
        names = [f"\0{i}" for i in range(unnamed - count, unnamed)]
        self.memory.load_state_dict({"unnamed": unnamed, "names": names, "tensors": own})
