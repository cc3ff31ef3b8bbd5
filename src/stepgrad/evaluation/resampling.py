"""Metrics of resampled images: how much a number would differ on other images like these.

Images are the unit, since detections of one image depend on each other. Frames of one clip do as well, so images can be drawn in
groups. A resample draws as many units as there are, with repetition, and re-weights what has been judged.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.engine.jit import explain_wait
from stepgrad.engine.lanes import LANES
from stepgrad.engine.matching import FALSE_POSITIVE, IGNORED, TRUE_POSITIVE
from stepgrad.engine.resample import Contenders, Worth, drawn_objects, resampled_values
from stepgrad.errors import InputError, whole_number
from stepgrad.metric.list_metric import LEVELS, ListMetric
from stepgrad.metric.over_classes import OverClasses
from stepgrad.metric.protocol import Protocol
from stepgrad.threads import run_threads

Floats = NDArray[np.float64]
_MOST_LEVELS = 128  # a metric with more recall levels counts every true positive alike
_BLOCK = 4_000_000  # weights that are drawn at a time


@dataclass(frozen=True)
class Resamples:
    """Which units of images each resample holds, and how often."""

    unit: NDArray[np.int32]  # (images,) the unit of each image
    units: int
    resamples: int
    seed: int

    @classmethod
    def of(cls, images: int, resamples: int, seed: int, groups: Sequence[Hashable] | None = None) -> Resamples:
        """So many resamples of images, or of groups of them: `groups` names the group of each image."""
        whole_number("resamples", resamples, least=1)
        if groups is None:
            return cls(np.arange(images, dtype=np.int32), images, resamples, seed)
        if len(groups) != images:
            raise InputError(f"Expected a group for each of {images} images but got {len(groups)}.")
        number: dict[Hashable, int] = {}
        unit = np.array([number.setdefault(group, len(number)) for group in groups], dtype=np.int32)
        return cls(unit, len(number), resamples, seed)

    @cached_property
    def weights(self) -> NDArray[np.uint8]:
        """(R, units) how often each unit was drawn."""
        rng = np.random.default_rng(self.seed)
        weights = np.zeros((self.resamples, self.units), dtype=np.uint8)
        if self.units == 0:
            return weights
        rows = max(1, _BLOCK // self.units)
        for first in range(0, self.resamples, rows):
            block = weights[first : first + rows]
            drawn = rng.integers(self.units, size=block.shape) + self.units * np.arange(len(block))[:, None]
            counts = np.bincount(drawn.reshape(-1), minlength=block.size).reshape(block.shape)
            block[:] = np.minimum(counts, 255)  # of hundreds of units none is drawn as often
        return weights


@dataclass(frozen=True)
class JudgedList:
    """The ranked detections of one class with their verdicts, and the images of its objects."""

    images: NDArray[np.int32]  # (M,) of the detections, by decreasing score
    verdicts: NDArray[np.int8]  # (t, M)
    object_images: NDArray[np.int32]  # (P,) of the objects to find
    scores: Floats  # (M,)


class Drawn(NamedTuple):
    """How often each unit was drawn, in some resamples."""

    weights: NDArray[np.uint8]  # (R, units)
    blocks: NDArray[np.uint8]  # (ceil(R / LANES), units, LANES) the same, those of a unit side by side; then zeros

    @classmethod
    def of(cls, weights: NDArray[np.uint8]) -> Drawn:
        """Rows of weights (R, units), and the blocks that kernels take."""
        resamples, units = weights.shape
        padded = np.zeros((-(-resamples // LANES), LANES, units), dtype=np.uint8)
        padded.reshape(-1)[: weights.size] = weights.reshape(-1)
        return cls(weights, np.ascontiguousarray(padded.transpose(0, 2, 1)))

    def objects(self, units: NDArray[np.int32]) -> NDArray[np.int64]:
        """(R,) how many objects each resample holds; `units` has the unit of each."""
        return drawn_objects(self.blocks, units)[: len(self.weights)]


@dataclass(frozen=True)
class Samples:
    """A metric in each resample."""

    values: Floats  # (R,)
    by_class: Floats  # (R, K); nan where the class has no objects


def resample(
    lists: Sequence[JudgedList],
    metric: ListMetric,
    protocol: Protocol,
    weights: NDArray[np.uint8],
    draws: Resamples,
    over: OverClasses,
) -> Samples:
    """The metric of all classes, and the one value that they make, for rows of weights (R, units)."""
    drawn = Drawn.of(weights)
    objects = np.zeros((len(weights), len(lists)), dtype=np.int64)
    values = np.zeros(objects.shape)
    with explain_wait():
        for c, judged in enumerate(lists):
            objects[:, c] = drawn.objects(draws.unit[judged.object_images])
        worth = None if written_out(metric, protocol) else worth_of(metric, protocol, objects, len(draws.unit))

        def of_class(c: int) -> None:
            own = None if worth is None else worth._replace(row=worth.row[:, c])
            values[:, c] = class_values(lists[c], metric, protocol, drawn, draws.unit, objects[:, c], own)

        run_threads(of_class, range(len(lists)), torch.get_num_threads())
    return Samples(joined(values, objects, metric, over), np.where(objects > 0, values, np.nan))


def joined(values: Floats, objects: NDArray[np.int64], metric: ListMetric, over: OverClasses) -> Floats:
    """(R,) one value of the classes' (R, K), as in `OverClasses.join`, for all resamples at once."""
    counted = over.counted(metric, objects > 0)
    if over.classes == "worst":
        bad = np.where(counted, values, np.inf if metric.higher_is_better else -np.inf)
        worst = bad.min(axis=1, initial=np.inf) if metric.higher_is_better else bad.max(axis=1, initial=-np.inf)
        return np.where(counted.any(axis=1), worst, 0.0)
    weights = counted * (np.ones(values.shape[1]) if over.class_weights is None else np.asarray(over.class_weights))
    total = weights.sum(axis=1)
    return np.divide((weights * values).sum(axis=1), total, out=np.zeros(len(values)), where=total > 0)


def class_values(
    judged: JudgedList,
    metric: ListMetric,
    protocol: Protocol,
    drawn: Drawn,
    unit: NDArray[np.int32],
    P: NDArray[np.int64],
    worth: Worth | None = None,
) -> Floats:
    """(R,) the metric of one class, the mean over the match thresholds; `worth` is `worth_of(P)` if it is known."""
    passing = (
        np.ones(len(judged.scores), dtype=np.bool_) if metric.threshold is None else judged.scores >= metric.threshold
    )
    units, verdicts = unit[judged.images[passing]], judged.verdicts[:, passing]
    if written_out(metric, protocol):
        return written_values(units, verdicts, metric, protocol, drawn.weights, P, len(unit))
    worth = worth or worth_of(metric, protocol, P, len(unit))
    spare = (0, drawn.blocks.shape[0] * LANES - len(P))  # resamples that fill the last block
    worth = worth._replace(row=np.pad(worth.row, spare))
    values = resampled_values(contenders(units, verdicts), drawn.blocks, np.pad(P, spare), worth)
    means: Floats = values[: len(P)].mean(axis=1)
    return means


def written_out(metric: ListMetric, protocol: Protocol) -> bool:
    """Whether every resampled list has to be written out, which is slow."""
    return not metric.is_compiled or protocol.tail == "line"


def contenders(units: NDArray[np.int32], verdicts: NDArray[np.int8]) -> Contenders:
    """A list with its plain false positives taken together."""
    plain = (verdicts == FALSE_POSITIVE).all(axis=0)
    ignored = (verdicts == IGNORED).all(axis=0)
    rows = np.flatnonzero(~plain & ~ignored)
    before = np.concatenate([[0], np.cumsum(plain)])
    threshold, special = np.nonzero(verdicts[:, rows] != FALSE_POSITIVE)
    return Contenders(
        unit=units[rows],
        plain_unit=units[plain],
        plain_ptr=np.append(before[rows], before[-1]),
        special=special.astype(np.int32),
        is_true=verdicts[threshold, rows[special]] == TRUE_POSITIVE,
        special_ptr=np.searchsorted(threshold, np.arange(len(verdicts) + 1)),
    )


def worth_of(metric: ListMetric, protocol: Protocol, P: NDArray[np.int64], images: int) -> Worth:
    """How lists with these numbers of objects are valued; `row` has the shape of P."""
    code = metric.code(int(P.flat[0]) if P.size else 0, images)
    distinct, row = np.unique(P, return_inverse=True)
    rows = (
        [_levels(metric, protocol, int(p)) for p in distinct] if code.kind == LEVELS else [_NO_LEVELS] * len(distinct)
    )
    most = max((len(needed) for needed, *_ in rows), default=0)
    table = np.full((len(rows), most), np.iinfo(np.int64).max)
    weight = np.zeros((len(rows), most))
    for i, (needed, count, *_) in enumerate(rows):
        table[i, : len(needed)] = needed
        weight[i, : len(needed)] = count
    slope, cap, norm = (np.array([entry[c] for entry in rows], dtype=np.float64) for c in (2, 3, 4))
    return Worth(
        code.kind,
        code.first,
        code.second,
        row.reshape(P.shape).astype(np.int64),
        table,
        weight,
        slope,
        cap,
        norm,
        code.allowed,
    )


_NO_LEVELS: tuple[NDArray[np.int64], NDArray[np.int64], float, float, float]
_NO_LEVELS = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0.0, 0.0, 1.0


def _levels(
    metric: ListMetric, protocol: Protocol, P: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], float, float, float]:
    """Recall levels of P objects, as true positives needed and what each counts; or slope and cap; and the norm."""
    if P == 0:
        return _NO_LEVELS
    counts, norm = metric.levels(P, protocol)
    needed = np.flatnonzero(counts)
    if len(needed) <= _MOST_LEVELS:
        return needed, counts[needed], 0.0, 0.0, float(norm)
    # The area: every true positive counts alike, up to the last, which may count less.
    return needed[:0], needed[:0], float(counts[needed[0]]), float(counts.sum()), float(norm)


def written_values(
    units: NDArray[np.int32],
    verdicts: NDArray[np.int8],
    metric: ListMetric,
    protocol: Protocol,
    weights: NDArray[np.uint8],
    P: NDArray[np.int64],
    images: int,
) -> Floats:
    """The same by writing every list out: for functions of the user's, of which nothing but the value is known."""
    values = np.zeros(len(weights))
    for r, drawn in enumerate(weights):
        if P[r] == 0 and metric.needs_objects:
            continue
        lists = [np.repeat(row[row != IGNORED] == TRUE_POSITIVE, drawn[units[row != IGNORED]]) for row in verdicts]
        values[r] = np.mean([metric.of_list(hits, int(P[r]), images, protocol) for hits in lists])
    return values
