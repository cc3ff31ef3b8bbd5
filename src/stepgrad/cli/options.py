"""Options from annotated signatures: their help, their values, and one line for whatever is wrong with them.

jsonargparse turns words into values of the annotated types, argparse lays out the help pages. Which words belong to which
option is found here, since neither can do it the way people write: lists as words (`--compare voc07 coco`), flags without a
value before a file name (`--draw photo.jpg`), names that yaml would read as something else (`#1`), file names between options,
and a mistyped option answered by the one that was meant.
"""

from __future__ import annotations

import inspect
import re
import shutil
from argparse import ArgumentError, RawDescriptionHelpFormatter
from argparse import ArgumentParser as HelpPage
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stepgrad.errors import ConfigError, suggest

REQUIRED = inspect.Parameter.empty
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_YES_NO = ("true", "false", "yes", "no")


@dataclass(frozen=True)
class Option:
    """One option of a command: its name, type, default and help."""

    name: str
    hint: Any
    default: Any
    help: str

    @property
    def kinds(self) -> list[Any]:
        """The types a value may have, null aside."""
        members = get_args(self.hint) if get_origin(self.hint) in (Union, UnionType) else (self.hint,)
        return [member for member in members if member is not NoneType]

    @property
    def takes_null(self) -> bool:
        return NoneType in get_args(self.hint)

    @property
    def is_list(self) -> bool:
        return any(get_origin(kind) in (list, tuple) for kind in self.kinds)

    @property
    def is_flag(self) -> bool:
        return bool in self.kinds

    @property
    def choices(self) -> list[str]:
        return [str(value) for kind in self.kinds if get_origin(kind) is Literal for value in get_args(kind)]

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            words = "one of " + ", ".join(self.choices)
        elif self.is_list:
            words = "a list of words"
        else:
            words = " or ".join(_KINDS.get(kind, str(kind)) for kind in self.kinds)
        return f"{words} or null" if self.takes_null else words


def options_of(function: Callable[..., Any]) -> list[Option]:
    """The parameters of a function, with the help of its docstring."""
    helps, hints = helps_of(function), get_type_hints(function)
    return [
        Option(name, hints[name], parameter.default, helps.get(name, ""))
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def helps_of(described: Any) -> dict[str, str]:
    """The description of each parameter or field on one line; null is what yaml calls None."""
    from docstring_parser import parse_from_object

    texts = {
        entry.arg_name: " ".join((entry.description or "").split()) for entry in parse_from_object(described).params
    }
    return {name: re.sub(r"\bNone\b", "null", text) for name, text in texts.items()}


def call(function: Callable[..., int], arguments: Sequence[str], command: str) -> int:
    """Run a function with what the command line says; `--help` prints its options instead."""
    options = options_of(function)
    if wants_help(arguments):
        places = [usage_of(option) for option in options if option.default is REQUIRED]
        text, _, _ = inspect.getdoc(function).partition("\n\nArgs:")  # type: ignore[union-attr]  # every command has one
        print(help_page(" ".join([command, *places, "[--OPTION VALUE ...]"]), text, {"options": map(row_of, options)}))
        return 0
    return function(**parse(options, arguments, command))


def wants_help(arguments: Sequence[str]) -> bool:
    return "-h" in arguments or "--help" in arguments


def parse(options: Sequence[Option], arguments: Sequence[str], command: str) -> dict[str, Any]:
    """The typed values of the options that the arguments name; options that were left out are left out here."""
    words_of, rest = _sorted(arguments, {option.name: option for option in options if option.default is not REQUIRED})
    for option in options:
        if option.default is REQUIRED:  # a place, filled in order by words that belong to no option
            if not rest:
                wanted = f"{option.name.upper()} ({option.help.rstrip('.')})"
                raise ConfigError(f"{command}: expected {wanted}. See `stepgrad {command} --help`.")
            count = len(rest) if option.is_list else 1
            words_of[option.name], rest = rest[:count], rest[count:]
    if rest:
        raise ConfigError(f"{rest[0]}: is neither an option nor the value of one. See `stepgrad {command} --help`.")
    return {option.name: _value(option, words_of[option.name]) for option in options if option.name in words_of}


def _sorted(arguments: Sequence[str], known: Mapping[str, Option]) -> tuple[dict[str, list[str]], list[str]]:
    """The words of each option, of which the last one counts unless it is a list; and the words that belong to none."""
    words_of: dict[str, list[str]] = {}
    rest, words = [], list(arguments)
    while words:
        word = words.pop(0)
        if not _is_option(word):
            rest.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name if name in known else name.replace("-", "_")
        if name not in known:
            raise ConfigError(f"{name}: no such option.{suggest_option(name, list(known))}")
        taken = [value] if equals else _take(known[name], words)
        words_of[name] = [*words_of.get(name, []), *taken] if known[name].is_list else taken
    return words_of, rest


def _is_option(word: str) -> bool:
    """Dashes before a letter: negative numbers are values."""
    return re.match(r"--?[A-Za-z]", word) is not None


def _take(option: Option, words: list[str]) -> list[str]:
    """Remove the words of an option from the beginning."""
    if option.is_flag:
        return [words.pop(0)] if words and words[0].lower() in _YES_NO else ["true"]
    end = next((i for i, word in enumerate(words) if _is_option(word)), len(words))
    taken = words[: end if option.is_list else min(end, 1)]
    if not taken and not option.is_list:
        raise ConfigError(f"{option.name}: expected a value after --{option.name}.")
    del words[: len(taken)]
    return taken


def suggest_option(name: str, known: Sequence[str]) -> str:
    """` Did you mean '--nll.steps'?`: the options that end so, else the closest.

    >>> suggest_option("lr", ["nll.lr", "map.lr", "loss"])
    " Did you mean '--nll.lr' or '--map.lr'?"
    """
    last = [option for option in known if option.rpartition(".")[2] == name]
    close = last or get_close_matches(name, known, n=1)
    return f" Did you mean {' or '.join(repr(f'--{option}') for option in close)}?" if close else ""


def _value(option: Option, words: list[str]) -> Any:
    """The words as a value of the annotated type, or one line that says what was expected."""
    if option.takes_null and words in (["null"], ["None"]):
        return None
    if option.kinds == [str]:  # a name is what it is: yaml takes `#1` and `~` for null
        return words[0]
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=option.hint, default=None)
    as_words = option.is_list and not (len(words) == 1 and words[0].startswith("["))
    try:
        return (parser.parse_object({"value": words}) if as_words else parser.parse_args([f"--value={words[0]}"])).value
    except ArgumentError as error:
        close = suggest(words[0], option.choices)
        raise ConfigError(f"{option.name}: expected {option.expected} but got {words[0]!r}.{close}") from error


def help_page(usage: str, text: str, groups: Mapping[str, Iterable[tuple[str, str]]], closing: str = "") -> str:
    """A page of titled groups, each of names and their meanings, as wide as the terminal (at most 110)."""
    page = HelpPage(
        usage=f"stepgrad {usage}",
        description=text,
        epilog=closing,
        add_help=False,
        formatter_class=lambda prog: RawDescriptionHelpFormatter(
            prog, 2, 30, min(shutil.get_terminal_size().columns, 110)
        ),
    )
    for title, rows in groups.items():
        group = page.add_argument_group(title)
        for number, (name, meaning) in enumerate(rows):  # as places, which are shown just as they are called
            group.add_argument(f"{title} {number}", metavar=name, help=meaning.replace("%", "%%"))
    return page.format_help()


def row_of(option: Option) -> tuple[str, str]:
    """An option in a help page: its name with what stands for its value, its meaning with its default."""
    default = option.default
    if default in (REQUIRED, None, ()) or default is False:  # not `in`, for which 0 is False
        return usage_of(option), option.help
    return usage_of(option), f"{option.help} [{as_yaml(default)}]"


def usage_of(option: Option) -> str:
    value = option.name.rpartition(".")[2].upper() + (" ..." if option.is_list else "")
    if option.default is REQUIRED:
        return value
    if option.is_flag:
        value = "true|false" if option.default else ""
    return f"--{option.name} {'|'.join(option.choices) or value}".rstrip()


def as_yaml(value: Any) -> str:
    """A value as yaml has it.

    >>> as_yaml(None), as_yaml(True), as_yaml(0.5)
    ('null', 'true', '0.5')
    """
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
