"""YAML of unknown origin: plain values of a sensible size, or a YAMLError."""

from __future__ import annotations

from typing import Any

import yaml

MOST_VALUES = 10_000
"""A config has a few hundred. Aliases let a line of text stand for billions, which only printing them would show."""


def load_yaml(text: str) -> Any:
    """As `yaml.safe_load`, but every complaint is a YAMLError.

    >>> load_yaml("{a: 1, b: [x, null]}")
    {'a': 1, 'b': ['x', None]}
    >>> load_yaml("2001-99-99")
    Traceback (most recent call last):
    yaml.error.YAMLError: month must be in 1..12
    """
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        raise
    except Exception as error:  # of dates, numbers, tags and nesting: PyYAML lets whatever it stumbles over through
        raise yaml.YAMLError(str(error)) from error
    if _is_larger(content, MOST_VALUES):
        raise yaml.YAMLError(
            f"expected at most {MOST_VALUES} values; those behind aliases (*name) count each time they are used"
        )
    return content


def _is_larger(content: Any, most: int) -> bool:
    """Whether it holds more values than that; ends also where it contains itself."""
    left, seen = [content], 0
    while left:
        value = left.pop()
        seen += 1
        if seen > most:
            return True
        if isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set)):
            left += value
    return False
