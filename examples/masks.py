"""Train a score for mask AP: of several masks of the same object, the one that fits best should come first.

python examples/masks.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stepgrad as sg
from stepgrad.data import ShapesDataset


def describe(image: Tensor, masks: Tensor) -> Tensor:
    """(N, 3) of each mask: how far the picture differs across its edge, how sharp it is there, and its size."""
    soft, grey = masks[:, None].float(), image.mean(0)[None, None]
    inside, outside = soft + F.max_pool2d(-soft, 5, 1, 2), F.max_pool2d(soft, 5, 1, 2) - soft  # bands of two pixels
    sharp = F.max_pool2d(grey, 3, 1, 1) + F.max_pool2d(-grey, 3, 1, 1)
    near, far = ((image * band).sum((2, 3)) / band.sum((2, 3)).clamp_min(1) for band in (inside, outside))
    rim = (sharp * inside).sum((1, 2, 3)) / inside.sum((1, 2, 3)).clamp_min(1)
    return torch.stack([(near - far).norm(dim=1), rim, soft.mean((1, 2, 3))], dim=1)


def windows_of(data: ShapesDataset, i: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Every object moved by some pixels, six times: what is seen of these masks, the masks, and the objects."""
    image, target = data[i]
    shifts = torch.randint(-6, 7, (6 * len(target["masks"]), 2), generator=torch.Generator().manual_seed(i)).tolist()
    masks = torch.stack(
        [torch.roll(m, s, (0, 1)) for m, s in zip(target["masks"].repeat(6, 1, 1), shifts, strict=True)]
    )
    return describe(image / 255, masks), masks, {"masks": target["masks"], "labels": 0 * target["labels"]}


def main(steps: int = 60, images: int = 40) -> dict[str, float]:
    """Mask AP of held-out images before and after."""
    torch.manual_seed(0)
    train, test = ([windows_of(ShapesDataset(s, task="masks"), i) for i in range(images)] for s in ("train", "val"))
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    loss_fn = sg.MAPLoss(1, "coco", nms_threshold=0.5, overlap=sg.overlaps.Masks(nms="own"))

    def loss_of(windows: list[tuple[Tensor, Tensor, dict[str, Tensor]]]) -> Tensor:
        seen, masks, targets = zip(*windows, strict=True)
        return loss_fn(model(torch.cat(seen)).split([len(s) for s in seen]), None, list(targets), masks=masks)

    loss_of(test)
    before = loss_fn.metrics["map"]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(train).backward()
        optimizer.step()
    loss_of(test)
    return {"before": before, "after": loss_fn.metrics["map"]}


if __name__ == "__main__":
    print({name: round(value, 3) for name, value in main().items()})
