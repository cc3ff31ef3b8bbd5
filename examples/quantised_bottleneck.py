"""Pass gradients through a quantised bottleneck: an autoencoder whose code is a few integers from -3 to 3.

python examples/quantised_bottleneck.py
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import stepgrad as sg


def make_data(n: int, generator: torch.Generator) -> Tensor:
    """Points on a bent surface of two dimensions in a space of twelve."""
    hidden = torch.randn(n, 2, generator=generator)
    mix = torch.randn(6, 12, generator=torch.Generator().manual_seed(1))
    bent = torch.cat([hidden, hidden.sin(), hidden**2 - 1], dim=1)
    return bent @ mix / 2.5


def autoencoder(estimator: str) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4),
        sg.layers.UniformQuantizer(step=1.0, low=-3.0, high=3.0, estimator=estimator, min_step=0.5),  # 4 x 2.8 bits pass
        nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 12),
    )  # fmt: skip


def train(model: nn.Sequential, data: Tensor, parameters: list[nn.Parameter], steps: int) -> None:
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(data), data).backward()
        optimizer.step()


def main(steps: int = 300, seed: int = 0, estimator: str = "mee") -> dict[str, float]:
    """Mean squared error on fresh data with the encoder left as it was, and with the whole model trained."""
    generator = torch.Generator().manual_seed(seed)
    data, fresh = make_data(512, generator), make_data(2048, generator)
    result = {}
    for name in ("decoder alone", "through the quantiser"):
        torch.manual_seed(seed)
        model = autoencoder(estimator)
        train(model, data, list((model[4:] if name == "decoder alone" else model).parameters()), steps)
        with torch.no_grad():
            result[name] = float(nn.functional.mse_loss(model(fresh), fresh))
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    for name, error in main(parser.parse_args().steps).items():
        print(f"mean squared error, trained {name}: {error:.3f}")
