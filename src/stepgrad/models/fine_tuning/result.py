"""What a fine-tuning ends with: numbers of every way that was tried, and the head that is kept."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from stepgrad.evaluation.paired import compare
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.number_text import in_points, mean_and_spread

START = "start"
STOCK = "more of the usual loss"
MAP = "mAP"
CROSS_FITTED = "mAP on fresh scores"
_ONE_ERROR = 0.6827  # the level of an interval of one standard error to each side
_SHOWN = 10  # classes in a line of text


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
    """Seconds of training, mean over seeds."""
    judged: EvaluationResult | None = field(default=None, repr=False)
    """What the first seed's head finds on the images it is judged on; None if not known."""
    heads: Sequence[nn.Module] = field(default=(), repr=False)
    """The trained heads, by seed."""

    @property
    def val_mean(self) -> float:
        return statistics.fmean(self.val)


@dataclass(frozen=True)
class FineTuned:
    """The result of `finetune`."""

    head: nn.Module
    """The head that is kept, in eval mode; the one that was passed in is unchanged."""
    chosen: str
    """The name of the way it was trained."""
    ways: dict[str, Trained]
    protocol: str
    report: Path | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """By class, the probability from which F1 is best on held-out images, at the protocol's first IoU: the sigmoid of the
    head's output, or with background the softmax. Classes of which no object was found have none."""

    def gain(self, way: str, over: str) -> tuple[float, float]:
        """The gain of one way over another on held-out images: mean and spread over seeds."""
        return mean_and_spread(differences(self.ways[way].val, self.ways[over].val))

    @property
    def sentence(self) -> str:
        """The result on held-out images in words: for the way that is kept, or else for the best way that trained for mAP."""
        for_map = [name for name in self.ways if name not in (START, STOCK)]
        best = self.chosen if self.chosen in for_map else max(for_map, key=lambda name: self.ways[name].val_mean)
        gain, spread = (100 * value for value in self.gain(best, STOCK))
        doubts = [f"over seeds {spread:.1f}"] if len(self.ways[best].val) > 1 else []
        noise = 100 * noise_of_gain(self.ways[best], self.ways[STOCK])
        doubts += [f"over held-out images {noise:.1f}"] if noise else []
        with_spread = f" (spread {', '.join(doubts)})" if doubts else ""
        return (
            f"On held-out images, training for mAP ended {abs(gain):.1f} points of {self.protocol} "
            f"{'above' if gain >= 0 else 'below'} the same amount of the usual loss{with_spread}. Kept: {self.chosen}."
        )

    def __str__(self) -> str:
        return f"{self.summary}\n{thresholds_text(self.thresholds, self.protocol)}"

    @property
    def summary(self) -> str:
        """The table of all ways, and the result in words."""
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
    """The way to keep: more of the usual loss if that gains, else the start, unless mAP is surely better than that.

    Surely: it gains more than its gain varies over seeds, and more than it varies with the images that happen to be held
    out. Of several ways that do, the one that is furthest beyond that.

    >>> def way(name, *val):
    ...     return Trained(name, None, val, {}, 0.0)
    >>> choose({START: way(START, 0.5), STOCK: way(STOCK, 0.51, 0.52), MAP: way(MAP, 0.52, 0.6)})
    'more of the usual loss'
    >>> choose({START: way(START, 0.5), STOCK: way(STOCK, 0.51, 0.52), MAP: way(MAP, 0.56, 0.58)})
    'mAP'
    """
    base = ways[STOCK if ways[STOCK].val_mean > ways[START].val_mean else START]
    beyond = {name: _beyond_doubt(way, base) for name, way in ways.items() if name not in (START, STOCK)}
    best = max(beyond, key=lambda name: beyond[name])
    return best if beyond[best] > 0 else base.name


def _beyond_doubt(way: Trained, base: Trained) -> float:
    """How much of a gain is left when what may be luck is taken off."""
    gain, spread = mean_and_spread(differences(way.val, base.val))
    return gain - max(spread, noise_of_gain(way, base))


def noise_of_gain(way: Trained, base: Trained) -> float:
    """Standard error of the gain of one way over another, as far as it comes from the images that happen to be held out: both are
    judged on the same resampled images. 0 where they were not judged, or on a single image.

    Seeds cannot show this noise: all of them are judged on the same images.
    """
    if way.judged is None or base.judged is None:
        return 0.0
    return compare(base.judged, way.judged, level=_ONE_ERROR).interval.half_width


def differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Seed by seed; a start has one value for all seeds."""
    longest = max(len(a), len(b))
    a, b = ([*v] * longest if len(v) == 1 else v for v in (a, b))
    return [x - y for x, y in zip(a, b, strict=True)]


def thresholds_text(thresholds: Mapping[str, float], protocol: str) -> str:
    """From which score on a detection of a class is worth showing.

    mAP trains the order of scores and not their size, so a threshold that suited the head before may show far too much
    after.

    >>> thresholds_text({"cat": 0.3141, "dog": 0.9}, "coco")
    'Scores of best F1 on held-out images, at the first IoU of coco: cat from 0.314, dog from 0.900.'
    >>> thresholds_text({}, "coco")
    'No class has a score of best F1: no object was found on held-out images.'
    """
    if not thresholds:
        return "No class has a score of best F1: no object was found on held-out images."
    shown = [f"{name} from {value:.3f}" for name, value in list(thresholds.items())[:_SHOWN]]
    more = f" ({len(thresholds) - len(shown)} more in `thresholds`)" if len(thresholds) > len(shown) else ""
    return f"Scores of best F1 on held-out images, at the first IoU of {protocol}: {', '.join(shown)}{more}."
