"""The words of a command line, sorted into options and the rest, the way people write them.

`--compare voc07 coco` in place of `--compare '[voc07, coco]'`, `--coco` in place of `--coco true`, and a mistyped option
answered by the one that was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from stepgrad.errors import ConfigError

YES_NO = ("true", "false", "yes", "no")


@dataclass
class Words:
    """What was written: options with their values in order, and the words that belong to none."""

    options: list[tuple[str, str]] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)

    @property
    def given(self) -> list[str]:
        """The names of the options."""
        return [name for name, _ in self.options]

    def last(self, name: str) -> str | None:
        """The value of an option; the last one counts."""
        return next((value for key, value in reversed(self.options) if key == name), None)


def sort_words(
    arguments: Sequence[str], known: Iterable[str], lists: Iterable[str] = (), flags: Iterable[str] = ()
) -> Words:
    """Tell options from other words.

    Args:
        arguments: the words after the command.
        known: names of all options, without dashes.
        lists: those that take several words.
        flags: those that need no value to mean yes.

    >>> sort_words(["a.jpg", "--compare", "voc07", "coco", "--coco"], ["compare", "coco"], ["compare"], ["coco"])
    Words(options=[('compare', '["voc07", "coco"]'), ('coco', 'true')], rest=['a.jpg'])
    >>> sort_words(["--compar", "coco"], ["compare", "coco"])
    Traceback (most recent call last):
    stepgrad.errors.ConfigError: compar: no such option. Did you mean '--compare'?
    """
    known, lists, flags = list(known), set(lists), set(flags)
    found, words = Words(), list(arguments)
    while words:
        word = words.pop(0)
        if not _is_option(word):
            found.rest.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name if name in known else name.replace("-", "_")
        if name not in known:
            raise ConfigError(f"{name}: no such option.{suggest_option(name, known)}")
        if not equals:
            value = _take_list(words) if name in lists else _take_flag(words) if name in flags else _take(words, name)
        found.options.append((name, value))
    return found


def suggest_option(name: str, known: Sequence[str]) -> str:
    """` Did you mean '--nll.steps'?`: the options that end so, else the closest.

    >>> suggest_option("lr", ["nll.lr", "map.lr", "loss"])
    " Did you mean '--nll.lr' or '--map.lr'?"
    """
    last = [option for option in known if option.rpartition(".")[2] == name]
    close = last or get_close_matches(name, known, n=1)
    return f" Did you mean {' or '.join(repr(f'--{option}') for option in close)}?" if close else ""


def _is_option(word: str) -> bool:
    """Dashes before a letter: negative numbers are values."""
    return re.match(r"--?[A-Za-z]", word) is not None


def _take(words: list[str], name: str) -> str:
    if not words or words[0].startswith("--"):
        raise ConfigError(f"{name}: expected a value after --{name}.")
    return words.pop(0)


def _take_flag(words: list[str]) -> str:
    return words.pop(0) if words and words[0].lower() in YES_NO else "true"


def _take_list(words: list[str]) -> str:
    """One json list from the words up to the next option; one that is written as a list already stays."""
    values: list[str] = []
    while words and not _is_option(words[0]):
        values.append(words.pop(0))
    return values[0] if len(values) == 1 and values[0].startswith("[") else json.dumps(values)
