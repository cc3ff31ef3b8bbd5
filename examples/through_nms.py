"""Train *through* NMS with your own loss: users see only the kept windows, so the loss rewards how well these fit.

python examples/through_nms.py
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

import stepgrad as sg


def make_image(generator: torch.Generator, windows: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Windows around three objects, noisy features (the first one shows the fit), and the fit."""
    centre = torch.tensor([[20.0, 20.0], [60.0, 20.0], [40.0, 60.0]])
    objects = torch.cat([centre - 8, centre + 8], dim=1)
    shift = torch.randn(windows, 4, generator=generator).clamp(-1.5, 1.5) * 3
    boxes = objects[torch.randint(3, (windows,), generator=generator)] + shift
    fit = box_iou(boxes, objects).max(dim=1).values
    noise = torch.randn(windows, 5, generator=generator)
    return boxes, torch.cat([fit[:, None] + 0.1 * noise[:, :1], noise[:, 1:]], dim=1), fit


def keep_mask(model: nn.Module, nms: sg.layers.NMSLayer, boxes: Tensor, features: Tensor) -> Tensor:
    scores = model(features).squeeze(1)
    return nms(scores - scores.mean(), boxes)  # NMS does not depend on the mean; this makes the pushes sum to zero


def fit_of_kept(model: nn.Module, nms: sg.layers.NMSLayer, images: list[tuple[Tensor, Tensor, Tensor]]) -> float:
    with torch.no_grad():
        kept = [fit[keep_mask(model, nms, boxes, features) > 0] for boxes, features, fit in images]
    return float(torch.cat(kept).mean())


def main(steps: int = 60, seed: int = 0) -> dict[str, float]:
    """Mean overlap of kept windows with objects on fresh images, before and after training."""
    generator = torch.Generator().manual_seed(seed)
    train, fresh = ([make_image(generator) for _ in range(20)] for _ in range(2))
    torch.manual_seed(seed)
    model, nms = nn.Linear(5, 1), sg.layers.NMSLayer(threshold=0.2, min_step=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    result = {"before": fit_of_kept(model, nms, fresh)}
    for _ in range(steps):
        optimizer.zero_grad()
        for boxes, features, fit in train:  # keep good windows, drop poor ones; any function of the mask would do
            (keep_mask(model, nms, boxes, features) * (0.5 - fit)).sum().backward()
        optimizer.step()
    return result | {"after": fit_of_kept(model, nms, fresh)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    for when, value in main(parser.parse_args().steps).items():
        print(f"mean overlap of kept windows with objects {when} training: {value:.3f}")
