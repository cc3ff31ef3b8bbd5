"""Use MAPLoss with your own training loop and model: lists of scores, boxes and targets go in, a loss comes out.

python examples/own_training_loop.py
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

import stepgrad as sg


def make_image(generator: torch.Generator, windows: int = 60) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Stands for your data: features of windows (N, 16), the windows (N, 4), and the objects of an image."""
    corner = torch.rand(4, 2, generator=generator) * 70
    objects = torch.cat([corner, corner + 15 + 15 * torch.rand(4, 2, generator=generator)], dim=1)
    labels = torch.randint(3, (4,), generator=generator)
    shift = 4 * torch.randn(windows, 4, generator=generator).clamp(-1.5, 1.5)
    boxes = objects[torch.randint(4, (windows,), generator=generator)] + shift
    fit, nearest = box_iou(boxes, objects).max(dim=1)
    features = 0.5 * torch.randn(windows, 16, generator=generator)
    features[torch.arange(windows), labels[nearest]] += fit
    return features, boxes, {"boxes": objects, "labels": labels}


def main(steps: int = 60, seed: int = 0) -> dict[str, float]:
    """mAP on fresh images, before and after."""
    generator = torch.manual_seed(seed)
    train, fresh = ([make_image(generator) for _ in range(40)] for _ in range(2))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))  # a score for each window and class
    loss_fn = sg.MAPLoss(num_classes=3, nms_threshold=0.3, estimator="radius", radius=3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def judged() -> float:
        features, boxes, targets = (list(part) for part in zip(*fresh, strict=True))
        with torch.no_grad():
            return sg.mean_average_precision([model(f) for f in features], boxes, targets, nms_threshold=0.3).map

    result = {"before": judged()}
    for step in range(steps):
        features, boxes, targets = (list(part) for part in zip(*train[step % 5 :: 5], strict=True))
        loss = loss_fn([model(f) for f in features], boxes, targets)  # loss_fn.metrics["map"] is the batch's mAP
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return result | {"after": judged()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    for when, value in main(parser.parse_args().steps).items():
        print(f"mAP on fresh images {when} training: {value:.3f}")
