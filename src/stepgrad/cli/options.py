"""Options from annotated signatures: their help, their values, and one line for whatever is wrong with them."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import textwrap
from argparse import ArgumentError
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stepgrad.cli.lists import Words, sort_words
from stepgrad.errors import ConfigError, suggest

REQUIRED = inspect.Parameter.empty
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Option:
    """One thing that can be asked for."""

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
    helps, hints = _helps(function), get_type_hints(function)
    return [
        Option(name, hints[name], parameter.default, helps.get(name, ""))
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def _helps(described: Any) -> dict[str, str]:
    """The description of each parameter or field, on one line."""
    from docstring_parser import parse_from_object

    return {entry.arg_name: _one_line(entry.description) for entry in parse_from_object(described).params}


def fields_help(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass; null is what yaml calls None."""
    return {name: re.sub(r"\bNone\b", "null", text) for name, text in _helps(kind).items()}


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def call(function: Callable[..., int], arguments: Sequence[str], command: str) -> int:
    """Run a function with what the command line says; `--help` prints its options instead."""
    options = options_of(function)
    if wants_help(arguments):
        print(_function_help(function, options, command))
        return 0
    return function(**values_of(options, arguments, command))


def wants_help(arguments: Sequence[str]) -> bool:
    return "-h" in arguments or "--help" in arguments


def values_of(options: Sequence[Option], arguments: Sequence[str], command: str) -> dict[str, Any]:
    """What was asked for, by name and typed; options that were left out are left out here."""
    named = [option for option in options if option.default is not REQUIRED]
    words = sort_words(
        arguments, [o.name for o in named], [o.name for o in named if o.is_list], [o.name for o in named if o.is_flag]
    )
    _assign_rest(words, [option for option in options if option.default is REQUIRED], command)
    return typed(words, options)


def _assign_rest(words: Words, positional: Sequence[Option], command: str) -> None:
    """Words that belong to no option fill the places in order; the last place takes several if it is a list."""
    rest = words.rest
    for option in positional:
        if not rest:
            raise ConfigError(
                f"{command}: expected {option.name.upper()} ({option.help.rstrip('.')}). See `stepgrad {command} --help`."
            )
        value, rest = (json.dumps(rest), []) if option.is_list else (rest[0], rest[1:])
        words.options.append((option.name, value))
    if rest:
        raise ConfigError(f"{rest[0]}: belongs to no option. See `stepgrad {command} --help`.")


def typed(words: Words, options: Iterable[Option]) -> dict[str, Any]:
    """The values as the annotated types, by name, or one line that says what was expected."""
    known = {option.name: option for option in options}
    return {name: _value(known[name], text) for name, text in words.options}


def _value(option: Option, text: str) -> Any:
    if option.takes_null and text == "None":
        text = "null"
    if option.kinds == [str]:  # a name is what it is: yaml would find comments, nulls and forbidden characters in it
        return None if option.takes_null and text == "null" else text
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=option.hint, default=None)
    words = _json_list(text) if option.is_list else None
    try:
        return (
            parser.parse_args([f"--value={text}"]) if words is None else parser.parse_object({"value": words})
        ).value
    except ArgumentError as error:
        close = suggest(text, option.choices)
        raise ConfigError(f"{option.name}: expected {option.expected} but got {text!r}.{close}") from error


def _json_list(text: str) -> list[Any] | None:
    """The words that `sort_words` wrote as json, None if somebody wrote a list in yaml's way."""
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return words if isinstance(words, list) else None


def _function_help(function: Callable[..., Any], options: Sequence[Option], command: str) -> str:
    text, _, _ = inspect.getdoc(function).partition("\n\nArgs:")  # type: ignore[union-attr]  # every command has one
    places = [option for option in options if option.default is REQUIRED]
    usage = " ".join(option.name.upper() + (" ..." if option.is_list else "") for option in places)
    rows = [(option.name.upper(), option.help) for option in places]
    rows += [(f"--{option.name} {metavar(option)}".rstrip(), with_default(option)) for option in options[len(places) :]]
    return "\n\n".join(
        [f"usage: stepgrad {command} {usage} [--OPTION VALUE ...]".replace("  ", " "), text, table(rows)]
    )


def metavar(option: Option) -> str:
    """What stands for the value in a help page."""
    if option.is_flag:
        return "true|false" if option.default else ""
    return "|".join(option.choices) or re.sub(r".*\.", "", option.name).upper() + (" ..." if option.is_list else "")


def with_default(option: Option) -> str:
    """The help of an option and, unless it is nothing, its default."""
    default = option.default
    if default is None or default is False or default == ():
        return option.help
    return f"{option.help} [{str(default).lower() if default is True else default}]"


def table(rows: Sequence[tuple[str, str]], indent: int = 2, column: int = 30) -> str:
    """Names on the left, their meaning on the right, as wide as the terminal (at most 110)."""
    width = min(shutil.get_terminal_size().columns, 110)
    lines: list[str] = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, max(width - column, 20)) or [""]
        left = " " * indent + name
        if len(left) > column - 2:  # the name has a line of its own
            lines.append(left)
            left = ""
        lines += [f"{left:<{column}}{wrapped[0]}".rstrip(), *(" " * column + line for line in wrapped[1:])]
    return "\n".join(lines)
