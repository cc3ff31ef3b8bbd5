"""Train a score for temporal mAP: when does something happen in a signal? No boxes, no images.

python examples/segments.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import stepgrad as sg

LENGTH, WINDOWS = 200, 60


def signal(seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Features of windows (begin, end) of a noisy signal, the windows, and the two bursts hidden in it."""
    draw = torch.Generator().manual_seed(seed)
    begin = torch.randint(0, 70, (2,), generator=draw) + torch.tensor([5, 105])
    bursts = torch.stack([begin, begin + torch.randint(8, 30, (2,), generator=draw)], dim=1)
    time = torch.arange(LENGTH)
    loud = ((time >= bursts[:, :1]) & (time < bursts[:, 1:])).any(0)
    sound = torch.randn(LENGTH, generator=draw) * (0.6 + 0.7 * loud)
    start = torch.randint(0, LENGTH - 40, (WINDOWS,), generator=draw)
    windows = torch.stack([start, start + torch.randint(6, 40, (WINDOWS,), generator=draw)], dim=1)
    windows[:20] = bursts.repeat(10, 1) + torch.randint(-3, 4, (20, 2), generator=draw)  # as a proposer would find them
    energy = nn.functional.pad((sound**2).cumsum(0), (1, 0))  # of the signal up to each moment
    within = [(energy[w[1]] - energy[w[0]]) / (w[1] - w[0]) for w in windows.clamp(0, LENGTH)]
    edges = [energy[(w + d).clamp(0, LENGTH)].diff() for w in windows for d in torch.tensor([[-4, 0], [0, 4]])]
    loudness, grown = torch.stack(within), torch.cat(edges).reshape(-1, 2)
    features = torch.cat([loudness[:, None], grown, (windows[:, 1:] - windows[:, :1]) / 40], dim=1)
    return features, windows.double(), {"boxes": bursts.double(), "labels": torch.zeros(2, dtype=torch.long)}


def main(steps: int = 80) -> dict[str, float]:
    """Temporal mAP (ActivityNet's rules) of unseen signals before and after."""
    torch.manual_seed(0)
    train, test = ([signal(s) for s in seeds] for seeds in (range(64), range(1000, 1064)))
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    loss_fn = sg.MAPLoss(1, "activitynet", nms_threshold=0.4, overlap=sg.overlaps.Segments())

    def loss_of(signals: list[tuple[Tensor, Tensor, dict[str, Tensor]]]) -> Tensor:
        features, windows, targets = zip(*signals, strict=True)
        return loss_fn(model(torch.cat(features)).split(WINDOWS), list(windows), list(targets))

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
