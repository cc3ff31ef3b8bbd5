"""The same detections under several protocols, and why the numbers differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.judge import (
    VERDICT_RULES,
    VERDICTS,
    ClassJudgement,
    Counting,
    describe_rule,
    differing,
    judge,
    switched,
)
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.arithmetic import single_overlaps
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import per_cent

if TYPE_CHECKING:
    from stepgrad.data.base import ImageId


@dataclass(frozen=True)
class Step:
    """One rule switched on the way from one protocol to the other."""

    rule: str
    before: str
    after: str
    map: float
    """mAP once this rule and those before it are switched."""


@dataclass(frozen=True)
class FirstDifference:
    """The highest-scored detection of a class that two protocols judge differently."""

    class_name: str
    image_id: ImageId
    score: float
    box: tuple[float, float, float, float]
    threshold: float
    overlaps: tuple[float, float]
    """With its best object, as each protocol counts it; 0 where the image has no object of the class."""
    verdicts: tuple[str, str]
    rules: tuple[str, ...]
    """The rules responsible: each of them alone changes the verdict, or they do so only together."""
    together: bool = False
    objects: tuple[tuple[float, float, float, float], ...] = ()
    """The objects of its class and image, for drawing."""

    @property
    def because(self) -> str:
        return (" and " if self.together else " or ").join(self.rules)

    def cells(self) -> list[str]:
        """Box, threshold, then overlap and verdict of each protocol, as words."""
        box = " ".join(f"{value:.6g}" for value in self.box)
        overlaps = [_overlap(value, self.threshold) for value in self.overlaps]
        return [box, f"{self.threshold:g}", overlaps[0], self.verdicts[0], overlaps[1], self.verdicts[1]]


@dataclass(frozen=True)
class Pair:
    """Two protocols on the same detections: their mAP, and the rules and detections they differ in."""

    names: tuple[str, str]
    maps: tuple[float, float]
    steps: tuple[Step, ...]
    first: tuple[FirstDifference, ...]
    """At most one per class, by decreasing score."""

    def parts(self) -> dict[str, float]:
        """Points of mAP that each rule changes, in the order of the steps: they add up to the difference.

        The part of a rule is the effect of switching it after those before it, so each part is the difference of two mAPs
        that can be computed by themselves. If rules act on the same detections, another order would give other parts; the
        mean over all orders would take a number of evaluations that doubles with each rule.
        """
        maps = [self.maps[0], *(step.map for step in self.steps)]
        return {step.rule: 100.0 * (now - was) for step, was, now in zip(self.steps, maps, maps[1:], strict=False)}

    def split(self) -> str:
        """The parts in words, rounded so that they still add up, largest first; rules that change nothing are left out."""
        maps = [self.maps[0], *(step.map for step in self.steps)]
        hundredths = [round(1e4 * value) for value in maps]
        parts = [(now - was, step.rule) for step, was, now in zip(self.steps, hundredths, hundredths[1:], strict=False)]
        words = [f"{part / 100:+.2f} {rule}" for part, rule in sorted(parts, key=lambda p: -abs(p[0])) if part]
        total = f"{(hundredths[-1] - hundredths[0]) / 100:+.2f} points"
        return f"{total}: {', '.join(words)}" if words else total

    def tables(self) -> tuple[tuple[list[str], list[list[str]]], tuple[list[str], list[list[str]]]]:
        """Rules with their effect, and first differences: headings and rows of both."""
        a, b = self.names
        maps = [self.maps[0], *(step.map for step in self.steps)]
        steps = [
            [step.rule, step.before, step.after, _fine(now), per_cent(now - was, 2, sign=True)]
            for step, was, now in zip(self.steps, maps, maps[1:], strict=False)
        ]
        first = [[d.class_name, str(d.image_id), f"{d.score:.6g}", *d.cells(), d.because] for d in self.first]
        return (["rule", a, b, "mAP", "change"], steps), (
            ["class", "image", "score", "box", "threshold", "IoU", a, "IoU", b, "rule"],
            first,
        )

    def __str__(self) -> str:
        (rules, steps), (heads, first) = self.tables()
        title = f"{self.names[0]} {_fine(self.maps[0])}, {self.names[1]} {_fine(self.maps[1])}"
        if not steps:
            return f"{title}: the same rules"
        differences = plain_table(heads, first) if first else "no detection is judged differently"
        return f"{title}, {self.split()}\n{plain_table(rules, steps)}\n{differences}"


@dataclass(frozen=True)
class Comparison:
    """Several protocols on the same detections; `print` shows everything."""

    results: tuple[EvaluationResult, ...]
    pairs: tuple[Pair, ...]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """AP of each class under each protocol, and the means."""
        rows = [
            [name.name, *(_fine(result.classes[c].ap) for result in self.results)]
            for c, name in enumerate(self.results[0].classes)
        ]
        return (
            ["AP", *(result.protocol.name for result in self.results)],
            [*rows, ["mean", *(_fine(result.map) for result in self.results)]],
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for json."""
        return {
            "results": [result.to_dict() for result in self.results],
            "pairs": [
                {
                    "protocols": list(pair.names),
                    "points": pair.parts(),
                    "steps": [vars(step) for step in pair.steps],
                    "first_differences": [vars(difference) for difference in pair.first],
                }
                for pair in self.pairs
            ],
        }

    def __str__(self) -> str:
        return "\n\n".join([plain_table(*self.table()), *(str(pair) for pair in self.pairs)])


def compare(evidence: Evidence, protocols: Sequence[Protocol]) -> Comparison:
    """The result of every protocol and, for every two, what makes the difference."""
    countings = [Counting.of(protocol) for protocol in protocols]
    results = tuple(evaluate_under(evidence, counting) for counting in countings)
    maps = {result.protocol.name: result.map for result in results}
    return Comparison(results, tuple(_pair(evidence, a, b, maps) for a, b in combinations(countings, 2)))


def _pair(evidence: Evidence, a: Counting, b: Counting, maps: dict[str, float]) -> Pair:
    names = (a.protocol.name, b.protocol.name)
    steps, now = [], a
    for rule in differing(a, b):
        now = switched(now, b, [rule])
        steps.append(Step(rule, describe_rule(a, rule), describe_rule(b, rule), evaluate_under(evidence, now).map))
    first = _Differences(evidence, a, b).by_class()
    return Pair(names, (maps[names[0]], maps[names[1]]), tuple(steps), tuple(first))


class _Differences:
    """Finds the first difference of each class, judging under a variant only when it is asked for."""

    def __init__(self, evidence: Evidence, a: Counting, b: Counting) -> None:
        self.evidence = evidence
        self.a, self.b = _at_common_thresholds(a, b)
        self.rules = differing(self.a, self.b)
        self._judged: dict[Counting, list[ClassJudgement]] = {}

    def by_class(self) -> list[FirstDifference]:
        differences = [self._of_class(c) for c in range(self.evidence.num_classes)]
        return sorted((difference for difference in differences if difference), key=lambda d: -d.score)

    def judged(self, counting: Counting, c: int) -> ClassJudgement:
        if counting not in self._judged:
            self._judged[counting] = judge(self.evidence, counting)
        return self._judged[counting][c]

    def _of_class(self, c: int) -> FirstDifference | None:
        """The first place, over all thresholds, where the two ranked lists say something else."""
        a, b = self.judged(self.a, c), self.judged(self.b, c)
        places = [
            (int(np.argmax(x != y)), t)
            for t, (x, y) in enumerate(zip(a.verdicts, b.verdicts, strict=True))
            if (x != y).any()
        ]
        if not places:
            return None
        place, t = min(places)
        row = int(a.detections[place])
        before, after = _verdict(a, row, t), _verdict(b, row, t)
        if before == after:  # the detection keeps its verdict but not its place
            at = int(np.flatnonzero(b.detections == row)[0])
            verdicts = (f"{VERDICTS[before]}, place {place + 1}", f"{VERDICTS[after]}, place {at + 1}")
            return self._difference(c, row, t, verdicts, ("ties",), False)
        rules, together = self._responsible(c, row, t, before, after)
        return self._difference(c, row, t, (VERDICTS[before], VERDICTS[after]), rules, together)

    def _responsible(self, c: int, row: int, t: int, before: int, after: int) -> tuple[tuple[str, ...], bool]:
        """Rules that alone turn a's verdict into b's; else those without which b would not differ; else all."""
        rules = [rule for rule in self.rules if rule in VERDICT_RULES]
        alone = [r for r in rules if _verdict(self.judged(switched(self.a, self.b, [r]), c), row, t) == after]
        if alone:
            return tuple(alone), False
        needed = [r for r in rules if _verdict(self.judged(switched(self.b, self.a, [r]), c), row, t) == before]
        return tuple(needed or rules), True

    def _difference(
        self, c: int, row: int, t: int, verdicts: tuple[str, str], rules: tuple[str, ...], together: bool
    ) -> FirstDifference:
        detections = self.evidence.detections
        x1, y1, x2, y2 = detections.boxes[row].tolist()
        objects = self.evidence.objects
        near = objects.boxes[(objects.images == detections.images[row]) & (objects.labels == c)]
        return FirstDifference(
            class_name=self.evidence.class_names[c],
            image_id=self.evidence.image_ids[detections.images[row]],
            score=float(detections.scores[row]),
            box=(x1, y1, x2, y2),
            threshold=self.a.protocol.match_thresholds[t],
            overlaps=(self._best_overlap(self.a, row), self._best_overlap(self.b, row)),
            verdicts=verdicts,
            rules=rules,
            together=together,
            objects=tuple((a, b, c, d) for a, b, c, d in near.tolist()),
        )

    def _best_overlap(self, counting: Counting, row: int) -> float:
        """The largest overlap of a detection with an object of its class and image, as the protocol counts it."""
        protocol = counting.protocol
        seen = self.evidence.seen_with(protocol.pixel_offset)
        image, label = seen.detections.images[row], seen.detections.labels[row]
        near = np.flatnonzero((seen.objects.images == image) & (seen.objects.labels == label))
        coco = protocol.duplicates == "best_free"
        overlaps = seen.overlaps(np.array([row]), near, protocol.pixel_offset, crowds=coco)[0]
        if protocol.overlaps == "single":
            boxes = np.repeat(seen.detections.boxes[[row]], len(near), axis=0)
            overlaps = single_overlaps(boxes, seen.objects.boxes[near], protocol.pixel_offset)
        return float(overlaps.max(initial=0.0))


def _verdict(judged: ClassJudgement, row: int, t: int) -> int:
    place: NDArray[np.int64] = np.flatnonzero(judged.detections == row)
    return int(judged.verdicts[t, place[0]])


def _at_common_thresholds(a: Counting, b: Counting) -> tuple[Counting, Counting]:
    """Verdicts can be compared at thresholds that both use, up to single precision; where there is none, at the first."""
    first, second = a.protocol.match_thresholds, b.protocol.match_thresholds
    pairs = [(x, y) for x in first for y in second if math.isclose(x, y, abs_tol=1e-6)] or [(first[0], second[0])]
    own, other = zip(*pairs, strict=True)
    return (
        replace(a, protocol=replace(a.protocol, match_thresholds=own)),
        replace(b, protocol=replace(b.protocol, match_thresholds=other)),
    )


def _fine(value: float) -> str:
    """In per cent like every mAP, with one decimal more: rules are often worth less than a tenth."""
    return per_cent(value, 2)


def _overlap(value: float, threshold: float) -> str:
    """Four decimals, or as many as it takes to see on which side of the threshold an overlap lies.

    >>> _overlap(0.50341, 0.5), _overlap(0.5, 0.5), _overlap(0.4999999, 0.5)
    ('0.5034', '0.5000', '0.4999999')
    """
    for decimals in range(4, 17):
        text = f"{value:.{decimals}f}"
        if value == threshold or float(text) != threshold:
            return text
    return repr(value)
