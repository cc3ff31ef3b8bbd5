"""Random rows and the layers to try on them, each with its plain twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import stepgrad as sg
from stepgrad.reference.nms import neighbour_sets
from tests.oracles import steps_layers as plain
from tests.oracles.steps import Estimate, F, Vector
from tests.scenes import clustered_boxes

Generator = np.random.Generator


class Case(NamedTuple):
    """A layer ready to be called on x, its plain twin, and where that can step in each coordinate."""

    layer: Callable[[torch.Tensor], torch.Tensor]
    twin: F
    breakpoints: list[Vector]

    def of_array(self, x: Any) -> Vector:
        return self.twin(x.tolist())


def random_row(rng: Generator, n: int) -> Vector:
    """Multiples of 1/8, with ties in about half of the rows: sums and differences of them are exact."""
    if rng.random() < 0.5:
        return (rng.integers(-3, 4, size=n) / 2.0).tolist()
    return (rng.choice(np.arange(-40, 41), size=n, replace=False) / 8.0).tolist()


def random_estimate(rng: Generator) -> Estimate:
    return Estimate(
        str(rng.choice(["mee", "sde", "radius"])),
        float(rng.choice([0.0, 0.25, 2.0])),
        float(rng.choice([0.25, 1.0, 3.0])),
    )


def options(how: Estimate) -> dict[str, Any]:
    return {"estimator": how.name, "min_step": how.min_step, "radius": how.radius}


def _nms(rng: Generator, x: Vector, how: Estimate) -> Case:
    boxes = clustered_boxes(rng, rng.integers(6, 14, size=(2, 2)), len(x), jitter=3)
    limit = float(rng.choice([0.1, 0.3, 0.5]))
    layer = sg.layers.NMSLayer(limit, **options(how))
    twin = plain.keep_mask(neighbour_sets(boxes, limit))
    return Case(lambda t: layer(t, torch.tensor(boxes)), twin, plain.at_others(x))


def _quantizer(rng: Generator, x: Vector, how: Estimate) -> Case:
    step = float(rng.choice([0.25, 0.5, 2.0]))
    low, high = (-np.inf, np.inf) if rng.random() < 0.5 else (-2.0, 2.0)
    places = (np.arange(-60, 60) + 0.5) * step
    real = places[(places > low) & (places < high)].tolist()
    return Case(
        sg.layers.UniformQuantizer(step, low, high, **options(how)), plain.quantizer(step, low, high), [real] * len(x)
    )


def _top_k(rng: Generator, x: Vector, how: Estimate) -> Case:
    k = int(rng.integers(1, len(x) + 2))
    return Case(sg.layers.TopKMask(k, **options(how)), plain.top_k(k), plain.at_others(x))


def _simple(layer: type[nn.Module], twin: F, places: Callable[[Vector], list[Vector]], **extra: Any) -> Any:
    return lambda rng, x, how: Case(layer(**extra, **options(how)), twin, places(x))


def _levels(x: Vector) -> Vector:
    return [float([0.0, 3.0, 3.0, -1.0][(v >= -1.0) + (v >= 0.5) + (v >= 1.0)]) for v in x]


_INTEGERS = (np.arange(-12, 12) + 0.5).tolist()
_STAIRS = {"locations": [-1.0, 0.5, 1.0], "levels": [0.0, 3.0, 3.0, -1.0]}
MAKERS: dict[str, Callable[[Generator, Vector, Estimate], Case]] = {
    "Sign": _simple(sg.layers.Sign, plain.sign, plain.at_places([0.0])),
    "Threshold": _simple(sg.layers.Threshold, plain.threshold(0.5), plain.at_places([0.5]), at=0.5),
    "Staircase": _simple(sg.layers.Staircase, _levels, plain.at_places(_STAIRS["locations"]), **_STAIRS),
    "Round": _simple(sg.layers.Round, plain.quantizer(1.0, -np.inf, np.inf), plain.at_places(_INTEGERS)),
    "UniformQuantizer": _quantizer,
    "ArgmaxOneHot": _simple(sg.layers.ArgmaxOneHot, plain.top_k(1), plain.at_others),
    "TopKMask": _top_k,
    "Ranks": _simple(sg.layers.Ranks, plain.ranks, plain.at_others),
    "Ranks ascending": _simple(sg.layers.Ranks, plain.ascending_ranks, plain.at_others, descending=False),
    "NMSLayer": _nms,
}


def random_case(name: str, rng: Generator) -> tuple[Case, Vector, Estimate]:
    x, how = random_row(rng, int(rng.integers(1, 9))), random_estimate(rng)
    return MAKERS[name](rng, x, how), x, how


def jacobian(layer: Callable[[torch.Tensor], torch.Tensor], x: Vector) -> torch.Tensor:
    """(m, n), one backward pass per output."""
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    out = layer(leaf)
    return torch.stack([torch.autograd.grad(v, leaf, retain_graph=True)[0] for v in out])
