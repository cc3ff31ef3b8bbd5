"""Under DistributedDataParallel every process has the same weight of mAP, measures the same mAP and keeps the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from stepgrad.models.keep_best import weights_of
from stepgrad.models.torchvision import keep_best, train_for_map
from tests.detector.training.ranks import run_ranks
from tests.models.tiny import tiny_batch, tiny_model

VAL = [tiny_batch("ssd", seed=seed) for seed in (11, 12)]


def job(rank: int) -> Iterator[dict[str, Any]]:
    model = DistributedDataParallel(train_for_map(tiny_model("ssd", score_thresh=0.0), match_threshold=0.2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    best = keep_best(model, VAL[rank : rank + 1], every=1)
    used = []
    for step in range(3):
        images, targets = tiny_batch("ssd", seed=10 * step + rank)
        if rank == 1 and step == 1:  # nothing to find here, but there
            targets = [{key: value[:0] for key, value in target.items()} for target in targets]
        optimizer.zero_grad()
        sum(model(images, targets).values()).backward()
        optimizer.step()
        used.append(model.module.map_loss_switch.weight)
        best.step()
    best.restore()
    yield {"used": used, "history": best.history, "weights": weights_of(model.module)}


def test_processes_train_alike_and_keep_the_same_weights(tmp_path: Path) -> None:
    first, second = run_ranks(job, 2, tmp_path)
    assert first["used"] == second["used"]
    assert len(set(first["used"])) == 3
    assert first["history"] == second["history"]
    assert all(torch.equal(first["weights"][name], value) for name, value in second["weights"].items())
