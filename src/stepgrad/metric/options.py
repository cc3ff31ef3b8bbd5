"""Metrics by name, as a command line or a config gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from stepgrad.errors import ConfigError, suggest
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
