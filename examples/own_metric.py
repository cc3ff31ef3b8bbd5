"""Write your own metric and train for it: F1 at a threshold, on a rare class, compared with cross-entropy.

python examples/own_metric.py
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import stepgrad as sg


def make_data(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points in the plane; one in eight belongs to the rare class, which overlaps the other."""
    rare = torch.rand(n, generator=generator) < 0.125
    return torch.randn(n, 2, generator=generator) + 1.2 * rare[:, None], rare


def f1_of(truth: Tensor, scores: Tensor) -> Tensor:
    """F1 of 'score above zero', for one list of scores (n,) or many (B, n). This is all that stepgrad needs."""
    said = scores > 0
    return 2.0 * (said & truth).sum(-1) / (said.sum(-1) + truth.sum()).clamp(min=1)


def fit(loss: str, points: Tensor, truth: Tensor, model: nn.Module, steps: int) -> None:
    # F1 can only jump where a score crosses zero, so with this candidate the search is exact
    f1 = sg.step_function(lambda s: f1_of(truth, s), vectorized=True, candidates=0.0, min_step=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(steps):
        scores = model(points).squeeze(1)
        optimizer.zero_grad()
        (-f1(scores) if loss == "f1" else cross_entropy(scores, truth.float())).backward()
        optimizer.step()


def main(steps: int = 100, seed: int = 0) -> dict[str, float]:
    """F1 on fresh data, after cross-entropy and then as many further steps of either objective."""
    generator = torch.Generator().manual_seed(seed)
    points, truth = make_data(400, generator)
    fresh, fresh_truth = make_data(20_000, generator)
    result = {}
    for name in ("cross-entropy", "f1"):
        model = nn.Linear(2, 1)
        nn.utils.vector_to_parameters(torch.zeros(3), model.parameters())
        fit("cross-entropy", points, truth, model, steps)
        fit(name, points, truth, model, steps)
        result[name] = float(f1_of(fresh_truth, model(fresh).squeeze(1).detach()))
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    for name, value in main(parser.parse_args().steps).items():
        print(f"F1 of fresh data, trained for {name}: {value:.3f}")
