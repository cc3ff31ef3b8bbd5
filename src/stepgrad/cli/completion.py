"""`stepgrad --completion bash`: a script with which the shell completes commands, options and their values.

The script is made by shtab from an argparse parser of all options, which nothing else uses: words are read by options.py.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from stepgrad.cli.options import REQUIRED, Option, options_of
from stepgrad.errors import ConfigError, suggest
from stepgrad.extras import need


def completion_script(words: list[str], commands: Mapping[str, str]) -> str:
    """The script for the shell that the words after `--completion` name.

    Args:
        words: one word, the name of a shell.
        commands: what each command does, in a line.
    """
    need("shtab", purpose="`stepgrad --completion`")
    import shtab

    shells: list[str] = shtab.SUPPORTED_SHELLS
    if len(words) != 1 or words[0] not in shells:
        got = " ".join(words)
        raise ConfigError(f"completion: expected one of {', '.join(shells)} but got {got!r}.{suggest(got, shells)}")
    return str(shtab.complete(_parser(commands, shtab.FILE, shells), words[0]))


def _parser(commands: Mapping[str, str], files: Any, shells: list[str]) -> ArgumentParser:
    parser = ArgumentParser("stepgrad")
    parser.add_argument(
        "--version", action="store_true", help="Print the versions of stepgrad and of the packages it uses."
    )
    parser.add_argument("--completion", choices=shells, help="Print the completion script of a shell.")
    parts = parser.add_subparsers()
    for command, text in commands.items():
        part = parts.add_parser(command, help=text.replace("%", "%%"))
        for option in _options(command):
            _add(part, option, files)
    return parser


def _options(command: str) -> Iterable[Option]:
    module = import_module(f"stepgrad.cli.{command}")
    if command != "train":
        return options_of(getattr(module, command))
    from stepgrad.cli.configs import config_options

    return [*module.OWN_OPTIONS, *config_options()]


def _add(parser: ArgumentParser, option: Option, files: Any) -> None:
    """Text may be the name of a file, as it mostly is; numbers have no completions."""
    name = option.name if option.default is REQUIRED else f"--{option.name}"
    text = option.help.replace("%", "%%")
    if option.is_flag:
        parser.add_argument(name, action="store_true", help=text)
        return
    count: dict[str, Any] = {"nargs": "+"} if option.is_list else {}
    action = parser.add_argument(name, choices=option.choices or None, help=text, **count)
    if not option.choices and {str, list[str]} & set(option.kinds):
        action.complete = files  # type: ignore[attr-defined]  # where shtab looks for it
