"""What a fine-tuning ends with: numbers of every way that was tried, and the head that is kept."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

START = "start"
STOCK = "more of the usual loss"
MAP = "mAP"
CROSS_FITTED = "mAP on fresh scores"


@dataclass(frozen=True)
class Trained:
    """One way to spend the budget, for each seed."""

    name: str
    rate: float | None
    """The best of those tried, on held-out images; None for the start."""
    val: tuple[float, ...]
    """mAP on held-out images, by seed."""
    test: Mapping[str, tuple[float, ...]]
    """mAP on test images by protocol and seed; empty where there are none."""
    seconds: float
    """Of training, mean over seeds."""

    @property
    def val_mean(self) -> float:
        return statistics.fmean(self.val)


@dataclass(frozen=True)
class FineTuned:
    """The end of `finetune`."""

    head: nn.Module
    """The head that is kept, in eval mode; the one that was handed in is as it was."""
    chosen: str
    """Which way it was trained."""
    ways: dict[str, Trained]
    protocol: str
    report: Path | None = None

    def gain(self, way: str, over: str) -> tuple[float, float]:
        """By how much one way is better on held-out images than another: mean and spread over seeds."""
        return mean_and_spread(differences(self.ways[way].val, self.ways[over].val))

    @property
    def sentence(self) -> str:
        """What happened, on held-out images."""
        best = max(
            (name for name in self.ways if name not in (START, STOCK)), key=lambda name: self.ways[name].val_mean
        )
        gain, spread = (100 * value for value in self.gain(best, STOCK))
        with_spread = f" (spread over seeds {spread:.1f})" if len(self.ways[best].val) > 1 else ""
        return (
            f"Training for mAP ended {abs(gain):.1f} points of {self.protocol} {'above' if gain >= 0 else 'below'} as much "
            f"more of the usual loss{with_spread} on held-out images. Kept: {self.chosen}."
        )

    def __str__(self) -> str:
        lines = [f"{'training':<26}{'rate':>8}{f'held-out {self.protocol}':>20}"]
        names = [name for way in self.ways.values() for name in way.test]
        tests = list(dict.fromkeys(names))
        lines[0] += "".join(f"{f'test {name}':>18}" for name in tests)
        for way in self.ways.values():
            rate = "-" if way.rate is None else f"{way.rate:g}"
            line = f"{way.name:<26}{rate:>8}{in_points(way.val):>20}"
            lines.append(line + "".join(f"{in_points(way.test[name]):>18}" for name in tests))
        return "\n".join([*lines, self.sentence])


def choose(ways: Mapping[str, Trained]) -> str:
    """The best way on held-out images. mAP has to beat the other two by more than the spread of its gain over seeds.

    >>> def way(name, *val):
    ...     return Trained(name, None, val, {}, 0.0)
    >>> choose({START: way(START, 0.5, 0.5), STOCK: way(STOCK, 0.51, 0.52), MAP: way(MAP, 0.52, 0.6)})
    'more of the usual loss'
    >>> choose({START: way(START, 0.5, 0.5), STOCK: way(STOCK, 0.51, 0.52), MAP: way(MAP, 0.56, 0.58)})
    'mAP'
    """
    best = START
    for name, way in ways.items():
        gain, spread = mean_and_spread(differences(way.val, ways[best].val))
        if gain > (0.0 if name == STOCK else spread) and name != START:
            best = name
    return best


def differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Seed by seed; a start has one value for all seeds."""
    longest = max(len(a), len(b))
    a, b = ([*v] * longest if len(v) == 1 else v for v in (a, b))
    return [x - y for x, y in zip(a, b, strict=True)]


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; 0 for a single value.

    >>> mean_and_spread([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def in_points(values: Sequence[float]) -> str:
    """
    >>> in_points([0.5, 0.52]), in_points([0.5])
    ('51.0 (1.4)', '50.0')
    """
    mean, spread = mean_and_spread(values)
    return f"{100 * mean:.1f}" + (f" ({100 * spread:.1f})" if len(values) > 1 else "")
