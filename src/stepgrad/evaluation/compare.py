"""The same detections under several protocols, and why the numbers differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.counted import counted_overlaps
from stepgrad.evaluation.edges import seen_by
from stepgrad.evaluation.judge import VERDICTS, ClassJudgement, judge
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.evaluation.rules import VERDICT_RULES, concerns, describe_rule, differing, switched
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.protocol import Protocol
from stepgrad.names import ImageId
from stepgrad.number_text import per_cent

_FIRST = 3  # differences that are shown unless those of all classes are asked for


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
    thresholds: tuple[float, float]
    """On IoU, the same for both protocols up to single precision."""
    overlaps: tuple[float, float]
    """With its best object, as each protocol counts it; 0 where the image has no object of the class."""
    verdicts: tuple[str, str]
    rules: tuple[str, ...]
    """The rules responsible: each of them alone changes the verdict, or they do so only together."""
    together: bool = False
    objects: tuple[tuple[float, float, float, float], ...] = ()
    """The objects of its class and image, for drawing ..."""
    rows: tuple[int, ...] = ()
    """... and the rows of the detection and of these objects in the evidence."""
    likeness: tuple[str, str] = ("IoU", "IoU")
    """What each protocol compared it by."""

    @property
    def threshold(self) -> float:
        """The one of the first protocol."""
        return self.thresholds[0]

    @property
    def because(self) -> str:
        return (" and " if self.together else " or ").join(self.rules)

    def cells(self) -> list[str]:
        """Box, threshold, then overlap and verdict of each protocol, as words."""
        box = " ".join(f"{value:.6g}" for value in self.box)
        overlaps = [_overlap(*pair) for pair in zip(self.overlaps, self.thresholds, strict=True)]
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

    def _hundredths(self) -> list[int]:
        """mAP before the first step and after each, in hundredths of a point.

        All that is printed comes from these: so parts add up to the difference, and no two lines disagree.
        """
        return [round(1e4 * value) for value in (self.maps[0], *(step.map for step in self.steps))]

    def _shown_parts(self) -> list[tuple[int, Step]]:
        """What each step changes, in hundredths of a point."""
        maps = self._hundredths()
        return [(now - was, step) for step, was, now in zip(self.steps, maps, maps[1:], strict=False)]

    def split(self) -> str:
        """The parts in words, rounded so that they still add up, largest first; rules that change nothing are left out."""
        parts = sorted(self._shown_parts(), key=lambda part: -abs(part[0]))
        words = [f"{part / 100:+.2f} {step.rule}" for part, step in parts if part]
        total = f"{sum(part for part, _ in parts) / 100:+.2f} points"
        return f"{total}: {', '.join(words)}" if words else total

    def line(self) -> str:
        """Both numbers, and what makes the difference."""
        numbers = ", ".join(f"{name} {_fine(value)}" for name, value in zip(self.names, self.maps, strict=True))
        return f"{numbers}, {self.split()}" if self.steps else f"{numbers}: the same rules"

    def tables(self) -> tuple[tuple[list[str], list[list[str]]], tuple[list[str], list[list[str]]]]:
        """Rules that change mAP with their effect, and first differences: headings and rows of both."""
        a, b = self.names
        steps = [
            [step.rule, step.before, step.after, _fine(step.map), f"{part / 100:+.2f}"]
            for part, step in self._shown_parts()
            if part
        ]
        first = [[d.class_name, str(d.image_id), f"{d.score:.6g}", *d.cells(), d.because] for d in self.first]
        words = self.first[0].likeness if self.first else ("IoU", "IoU")
        return (["rule", a, b, "mAP", "change"], steps), (
            ["class", "image", "score", "box", "threshold", words[0], a, words[1], b, "rule"],
            first,
        )

    def details(self, classes: bool = False) -> str:
        """The rules that matter, and the first detections judged differently: of every class, or only the very first."""
        (rules, steps), (heads, first) = self.tables()
        shown = first if classes else first[:_FIRST]
        idle = [step.rule for part, step in self._shown_parts() if part == 0]
        lines = [
            plain_table(rules, steps) if steps else "",
            f"{len(idle)} {'rule changes' if len(idle) == 1 else 'rules change'} nothing: {', '.join(idle)}"
            if idle
            else "",
            plain_table(heads, shown) if shown else "no detection is judged differently",
            f"and of {len(first) - len(shown)} more classes (all with --classes)" if len(shown) < len(first) else "",
        ]
        return "\n".join(line for line in lines if line)

    def __str__(self) -> str:
        return f"{self.line()}\n{self.details()}" if self.steps else self.line()


@dataclass(frozen=True)
class Comparison:
    """Several protocols on the same detections; `print` shows why they differ, `text(classes=True)` each class too."""

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

    def text(self, classes: bool = False) -> str:
        """A line for every two protocols, then the rules that matter; with `classes`, AP and differences of each class."""
        different = [pair for pair in self.pairs if pair.steps]
        details = [f"from {' to '.join(pair.names)}\n{pair.details(classes)}" for pair in different]
        tables = [plain_table(*self.table())] if classes else []
        tables += [self._intervals_line()] if self.results[0].found_intervals else []
        return "\n\n".join(["\n".join(pair.line() for pair in self.pairs), *details, *tables])

    def _intervals_line(self) -> str:
        found = {result.protocol.name: result.found_intervals["ap"] for result in self.results}
        level = f"{100 * next(iter(found.values())).value.level:g}%"
        said = ", ".join(f"{name} {sure.value.text()}" for name, sure in found.items())
        return f"{level} intervals of each mAP over images like these: {said}"

    def __str__(self) -> str:
        return self.text()


def compare(evidence: Evidence, protocols: Sequence[Protocol]) -> Comparison:
    """The result of every protocol and, for every two, what makes the difference."""
    results = tuple(evaluate_under(evidence, protocol) for protocol in protocols)
    maps = {result.protocol.name: result.map for result in results}
    return Comparison(results, tuple(_pair(evidence, a, b, maps) for a, b in combinations(protocols, 2)))


def _pair(evidence: Evidence, a: Protocol, b: Protocol, maps: dict[str, float]) -> Pair:
    names = (a.name, b.name)
    steps, now = [], a
    for rule in (rule for rule in differing(a, b) if concerns(rule, _shapes(evidence))):
        now = switched(now, b, [rule])
        steps.append(Step(rule, describe_rule(a, rule), describe_rule(b, rule), evaluate_under(evidence, now).map))
    first = _Differences(evidence, a, b).by_class()
    return Pair(names, (maps[names[0]], maps[names[1]]), tuple(steps), tuple(first))


def _shapes(evidence: Evidence) -> str:
    """What is compared: boxes, masks, keypoints, or oriented boxes."""
    if not evidence.has_shapes:
        return "boxes"
    return "oriented" if evidence.overlap.key == "boxes" else evidence.overlap.key


class _Differences:
    """Finds the first difference of each class, judging under a variant only when it is asked for."""

    def __init__(self, evidence: Evidence, a: Protocol, b: Protocol) -> None:
        self.evidence = evidence
        self.a, self.b = _at_common_thresholds(a, b)
        self.rules = [rule for rule in differing(self.a, self.b) if concerns(rule, _shapes(evidence))]
        self._judged: dict[Protocol, list[ClassJudgement]] = {}

    @cached_property
    def _seen(self) -> list[Evidence]:
        """The evidence as each of the two sees it."""
        return [seen_by(self.evidence, protocol) for protocol in (self.a, self.b)]

    def by_class(self) -> list[FirstDifference]:
        differences = [self._of_class(c) for c in range(self.evidence.num_classes)]
        return sorted((difference for difference in differences if difference), key=lambda d: -d.score)

    def judged(self, protocol: Protocol, c: int) -> ClassJudgement:
        if protocol not in self._judged:
            self._judged[protocol] = judge(self.evidence, protocol)
        return self._judged[protocol][c]

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
        near = np.flatnonzero((objects.images == detections.images[row]) & (objects.labels == c))
        return FirstDifference(
            class_name=self.evidence.class_names[c],
            image_id=self.evidence.image_ids[detections.images[row]],
            score=float(detections.scores[row]),
            box=(x1, y1, x2, y2),
            thresholds=(self.a.match_thresholds[t], self.b.match_thresholds[t]),
            overlaps=(self._best_overlap(0, row), self._best_overlap(1, row)),
            verdicts=verdicts,
            rules=rules,
            together=together,
            objects=tuple((a, b, c, d) for a, b, c, d in objects.boxes[near].tolist()),
            rows=(row, *near.tolist()),
            likeness=(self._seen[0].overlap.word, self._seen[1].overlap.word),
        )

    def _best_overlap(self, side: int, row: int) -> float:
        """The largest overlap of a detection with an object of its class and image, as that protocol counts it."""
        seen, protocol = self._seen[side], (self.a, self.b)[side]
        image, label = seen.detections.images[row], seen.detections.labels[row]
        near = np.flatnonzero((seen.objects.images == image) & (seen.objects.labels == label))
        crowds = seen.objects.crowd & (protocol.duplicates == "best_free")
        return float(counted_overlaps(seen, np.array([row]), near, protocol, crowds).max(initial=0.0))


def _verdict(judged: ClassJudgement, row: int, t: int) -> int:
    place: NDArray[np.int64] = np.flatnonzero(judged.detections == row)
    return int(judged.verdicts[t, place[0]])


def _at_common_thresholds(a: Protocol, b: Protocol) -> tuple[Protocol, Protocol]:
    """Verdicts can be compared at thresholds that both use, up to single precision; where there is none, at the first."""
    first, second = a.match_thresholds, b.match_thresholds
    pairs = [(x, y) for x in first for y in second if math.isclose(x, y, abs_tol=1e-6)] or [(first[0], second[0])]
    own, other = zip(*pairs, strict=True)
    return replace(a, match_thresholds=own), replace(b, match_thresholds=other)


def _fine(value: float) -> str:
    """In per cent like every mAP, with one decimal more: rules are often worth less than a tenth."""
    return per_cent(value, 2)


def _overlap(value: float, threshold: float) -> str:
    """Four decimals, up to seven where an overlap is near the threshold, and words where these do not show its side.

    >>> _overlap(0.50341, 0.5), _overlap(0.5, 0.5), _overlap(0.4999999, 0.5), _overlap(0.6, 0.6000000238418579)
    ('0.5034', '0.5000', '0.4999999', 'just below 0.60000002')
    """
    for decimals in range(4, 8):
        text = f"{value:.{decimals}f}"
        if value == threshold or text != f"{threshold:.{decimals}f}":
            return text
    return f"just {'above' if value > threshold else 'below'} {threshold:.8g}"
