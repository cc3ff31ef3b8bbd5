"""One mAP over the batches of all processes: torchrun --nproc-per-node 2 examples/two_processes.py

mAP ranks all windows of a batch in one list, so the mean of two processes' mAPs is a different number with a different gradient.
DistributedMAPLoss joins the batches; the rest is DistributedDataParallel as always. It also runs with plain python.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import stepgrad as sg


def make_image(seed: int, windows: int = 40) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Stands for your data: features of windows (N, 8), the windows (N, 4), and the objects of an image."""
    generator = torch.Generator().manual_seed(seed)
    corner = 25.0 * torch.arange(3)[:, None] + 5 * torch.rand(3, 2, generator=generator)
    objects = torch.cat([corner, corner + 20], dim=1)
    away = 8 * torch.rand(windows, 1, generator=generator)
    boxes = objects[torch.randint(3, (windows,), generator=generator)] + away
    features = torch.randn(windows, 8, generator=generator)
    features[:, :1] -= away / 2
    return features, boxes, {"boxes": objects, "labels": torch.zeros(3, dtype=torch.long)}


def main(steps: int = 20) -> list[float]:
    """The mAP of the joined batch after each step, the same on every process."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")  # "nccl" on GPUs
    torch.manual_seed(0)  # the same first weights everywhere
    scorer = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    model = DistributedDataParallel(scorer) if world > 1 else scorer
    loss_fn = sg.DistributedMAPLoss(num_classes=1, nms_threshold=0.5, estimator="radius", radius=3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    features, boxes, targets = zip(*map(make_image, range(rank, 8, world)), strict=True)  # this process's share
    maps = []
    for _ in range(steps):
        scores = model(torch.cat(features)).split([len(b) for b in boxes])  # DDP wants one forward pass per step
        loss = loss_fn(scores, boxes, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        maps.append(loss_fn.metrics["map"])
    print(f"process {rank} of {world}: mAP of the joined batch {maps[0]:.6f} to {maps[-1]:.6f}", flush=True)
    if world > 1:
        dist.destroy_process_group()
    return maps


if __name__ == "__main__":
    main()
