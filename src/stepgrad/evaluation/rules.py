"""The rules two protocols may differ in, and switching them one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stepgrad.evaluation.judge import Counting

RULES: dict[str, tuple[str, ...]] = {
    "pixel offset": ("pixel_offset",),
    "equality": ("equality",),
    "duplicate rule": ("duplicates",),
    "difficult": ("difficult",),
    "max detections": ("max_detections",),
    "ties": (),  # not a field of the protocol: the order in which equal scores are taken
    "match thresholds": ("match_thresholds",),
    "recall levels": ("recall_levels", "recall_grid"),
    "absent classes": ("absent_classes",),
}
"""Name of each rule, and the fields of `Protocol` it lives in."""

VERDICT_RULES = ("pixel offset", "equality", "duplicate rule", "difficult", "max detections", "match thresholds")
"""Those that can change what is said about a detection. Ties change its place; the others only the sum."""


def differing(a: Counting, b: Counting) -> list[str]:
    """The rules in which two protocols differ.

    >>> from stepgrad.metric.protocol import VOC07_DEVKIT, VOC07_PYTHON
    >>> differing(Counting.of(VOC07_DEVKIT), Counting.of(VOC07_PYTHON))
    ['equality', 'recall levels']
    """
    return [rule for rule in RULES if setting(a, rule) != setting(b, rule)]


def setting(counting: Counting, rule: str) -> object:
    """The setting of one rule in a protocol."""
    if rule == "ties":
        return counting.ties
    return tuple(getattr(counting.protocol, name) for name in RULES[rule])


def switched(a: Counting, b: Counting, rules: Iterable[str]) -> Counting:
    """`a`, but with `b`'s settings of these rules."""
    rules = list(rules)
    names = [name for rule in rules for name in RULES[rule]]
    protocol = replace(a.protocol, **{name: getattr(b.protocol, name) for name in names})
    return Counting(protocol, b.ties if "ties" in rules else a.ties)


def describe_rule(counting: Counting, rule: str) -> str:
    """One rule in words.

    >>> from stepgrad.metric.protocol import COCO
    >>> describe_rule(Counting.of(COCO), "duplicate rule")
    'takes the best object still free'
    """
    p = counting.protocol
    words = {
        "pixel offset": f"adds {p.pixel_offset:g} to widths and heights",
        "equality": "IoU >= threshold" if p.equality else "IoU > threshold",
        "duplicate rule": "takes the best object" if p.duplicates == "best" else "takes the best object still free",
        "difficult": "difficult objects ignored" if p.difficult == "ignore" else "difficult objects count",
        "max detections": "every detection" if p.max_detections is None else f"at most {p.max_detections} per image",
        "ties": "equal scores in the order given" if counting.ties == "file" else "equal scores image by image",
        "match thresholds": _thresholds(p.match_thresholds),
        "recall levels": "area" if p.recall_levels is None else f"{p.recall_levels} levels ({p.recall_grid})",
        "absent classes": "count as 0" if p.absent_classes == "zero" else "left out",
    }
    return words[rule]


def _thresholds(values: tuple[float, ...]) -> str:
    if len(values) < 4:
        return ", ".join(f"{t:g}" for t in values)
    return f"{values[0]:g} to {values[-1]:g}, {len(values)} of them"
