"""The numbers of a report, as report.json has them: where each one is, and how it reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from stepgrad.number_text import per_cent

Numbers = Mapping[str, Any]


def plain(value: Any) -> Any:
    """The value as JSON can hold it: names as text, None for NaN."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (np.integer, np.floating)):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int)) else str(value)


def escape_key(name: str) -> str:
    """One step of a JSON Pointer (RFC 6901).

    >>> escape_key("a/b")
    'a~1b'
    """
    return name.replace("~", "~0").replace("/", "~1")


def look_up(numbers: Any, key: str) -> Any:
    """The value that a JSON Pointer points at; None where there is nothing.

    >>> look_up({"maps": [0.5]}, "/maps/0")
    0.5
    """
    for step in key.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        numbers = numbers[int(name)] if isinstance(numbers, list) else numbers.get(name)
    return numbers


def number_markup(numbers: Numbers, key: str, kind: str = "points") -> Markup:
    """The number at that key: rounded to read, exact in `value`, and its key for whoever wants to check it."""
    value = look_up(numbers, key)
    if value is None:
        return Markup('<span data-key="{}">–</span>').format(key)
    return Markup('<data value="{}" data-key="{}" data-kind="{}">{}</data>').format(
        json.dumps(value), key, kind, number_text(value, kind)
    )


def number_text(value: float, kind: str) -> str:
    """A number to read.

    >>> number_text(0.72138, "points"), number_text(12345, "count"), number_text(0.05, "gain"), number_text(252, "duration")
    ('72.1', '12\\u202f345', '+5.0', '4 min 12 s')
    """
    if kind == "count":
        return f"{value:,}".replace(",", "\u202f")
    if kind == "duration":
        return duration_text(value)
    if kind in ("points", "gain"):
        return per_cent(value, sign=kind == "gain")
    return {"hundredths": "{:.2f}", "short": "{:.3g}", "cost": "{:.4g}"}[kind].format(value)


def duration_text(seconds: float) -> str:
    """Two units at most.

    >>> duration_text(7.25), duration_text(59.97), duration_text(4000), duration_text(200000)
    ('7.2 s', '1 min 0 s', '1 h 7 min', '2 d 8 h')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (large, many), (small, few) in pairwise(units):
        if round(seconds / few) * few >= many:
            whole, rest = divmod(round(seconds / few), many // few)
            return f"{whole} {large} {rest} {small}"
    raise AssertionError("a minute is the least left here")


def printable(text: str) -> str:
    """The text without characters that XML forbids or UTF-8 cannot hold.

    >>> printable("a\\x00b")
    'a�b'
    """
    forbidden = {*map(chr, range(32)), "\x7f", "\ufffe", "\uffff"} - set("\t\n\r")
    kept = "".join("\N{REPLACEMENT CHARACTER}" if c in forbidden else c for c in text)
    return kept.encode("utf-8", "replace").decode("utf-8")
