"""What callers may write for a protocol, an NMS threshold or a metric, checked and resolved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from math import inf
from typing import Any

from stepgrad.errors import ConfigError, real_number, suggest
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import (
    AP,
    F1,
    Cost,
    LogAverageMissRate,
    OwnMetric,
    PrecisionAtRecall,
    RecallAtPrecision,
)
from stepgrad.metric.protocol import PROTOCOLS, Protocol, get_protocol

_KINDS: dict[str, type[Any]] = {
    "ap": AP,
    "precision": PrecisionAtRecall,
    "recall": RecallAtPrecision,
    "f1": F1,
    "cost": Cost,
    "miss_rate": LogAverageMissRate,
}
EXAMPLES = (
    "ap",
    "ap@max_recall=0.5",
    "ap@area=small",
    "f1",
    "f1@threshold=0.5",
    "recall@precision=0.95",
    "precision@recall=0.9",
    "cost@threshold=0.5,false_alarm=1,miss=10",
    "miss_rate",
)


def resolve_protocol(
    protocol: str | Protocol,
    match_threshold: float | Sequence[float] | None,
    absent_classes: str | None,
    adapt: Callable[[Protocol], Protocol] = lambda protocol: protocol,
) -> Protocol:
    """A protocol with the caller's threshold(s) and treatment of absent classes instead of its own.

    `adapt` makes it fit an overlap other than that of boxes.
    """
    resolved = get_protocol(protocol)
    _refuse_limits(resolved)
    resolved = adapt(resolved)
    if match_threshold is not None:
        resolved = replace(resolved, match_thresholds=_thresholds(match_threshold))
    if absent_classes is not None:
        resolved = replace(resolved, absent_classes=absent_classes)  # type: ignore[arg-type]  # checked on creation
    return resolved


def _refuse_limits(protocol: Protocol) -> None:
    """Raise ConfigError for rules of final detections: windows have scores of any scale, and each class is on its own."""
    if not protocol.for_final_detections:
        return
    limit = f"max_detections {protocol.max_detections} over all classes of an image" if protocol.joins_classes else ""
    least = "" if protocol.min_score is None else f"min_score {protocol.min_score:g}"
    tail = 'tail "line"' if protocol.tail == "line" else ""
    federated = "federated" if protocol.federated else ""
    rules = ", ".join(filter(None, [limit, least, tail, federated]))
    near = f"{protocol.name.split('-')[0]}-unlimited"
    instead = f'protocol="{near}", the same without limits, or ' if near in PROTOCOLS else ""
    raise ConfigError(
        f"protocol {protocol.name!r} judges final detections: {rules} cannot be applied "
        f'to windows with raw scores. Use {instead}protocol="coco"; `sg.Evaluator` takes {protocol.name!r}.'
    )


def _thresholds(threshold: float | Sequence[float]) -> tuple[float, ...]:
    """One number or several as a tuple of floats."""
    several: tuple[object, ...] = (threshold,)
    if not isinstance(threshold, (int, float, str)):
        with suppress(TypeError):  # a number in an array or a tensor has no entries
            several = tuple(threshold)
    return tuple(real_number("match_threshold", t, "None, a number or several") for t in several)


def check_nms_threshold(nms_threshold: float | None, nearness: str = "overlap") -> float | None:
    """The threshold as a plain float, or None (no NMS); raises ConfigError unless it is in [0, 1], or a distance >= 0."""
    if nms_threshold is None:
        return None
    most, bounds = (1.0, "in [0, 1]") if nearness == "overlap" else (inf, "a distance of at least 0")
    threshold = real_number("nms_threshold", nms_threshold, f"None or {bounds}")
    if not 0.0 <= threshold <= most:
        raise ConfigError(f"Expected nms_threshold to be None or {bounds} but got {nms_threshold!r}.")
    return threshold


def get_metric(metric: str | ListMetric | Callable[..., Any]) -> ListMetric:
    """A metric as it is, by its name and numbers, or from a function of a class's ranked list.

    >>> get_metric("recall@precision=0.95")
    RecallAtPrecision(precision=0.95)
    >>> get_metric(get_metric("f1").name)
    F1(threshold=None)
    """
    if isinstance(metric, ListMetric):
        return metric
    if isinstance(metric, str):
        return _named(metric)
    if isinstance(metric, type):
        raise ConfigError(f"Expected a metric but got the class {metric.__name__}; call it: {metric.__name__}(...).")
    if callable(metric):
        return OwnMetric(metric)
    raise ConfigError(f"Expected a metric, its name or a function of (hits, objects) but got {type(metric).__name__}.")


def _named(text: str) -> ListMetric:
    word, _, rest = text.strip().partition("@")
    if word not in _KINDS:
        known = list(EXAMPLES)
        raise ConfigError(
            f"Expected a metric such as {', '.join(known)} but got {text!r}.{suggest(word, list(_KINDS))}"
        )
    kind = _KINDS[word]
    given = dict(_setting(part, text) for part in rest.split(",")) if rest else {}
    names = [f.name for f in fields(kind)]
    for name in given:
        if name not in names:
            raise ConfigError(
                f"{text!r}: expected {word}@ with numbers for {names} but got {name!r}.{suggest(name, names)}"
            )
    try:
        made: ListMetric = kind(**given)
    except TypeError as error:
        raise ConfigError(f"{text!r}: expected a number for {names}, such as {_example(word)}.") from error
    return made


def _setting(part: str, text: str) -> tuple[str, float | str]:
    name, _, number = part.partition("=")
    if name.strip() == "area":
        return "area", number.strip()
    try:
        return name.strip(), float(number)
    except ValueError as error:
        raise ConfigError(f"{text!r}: expected name=number after @ but got {part!r}.") from error


def _example(word: str) -> str:
    return next(example for example in EXAMPLES if example.startswith(word + "@"))
