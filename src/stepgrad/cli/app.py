"""The parser: cyclopts reads the words of a command by the annotations of its function, and its help by the docstring.

A command NAME is the function NAME in the file NAME.py, and has its place in COMMANDS. Parameters before a `*` are given without
an option, all others as `--parameter`. `Path` makes shells complete the names of files, `Whole` is an int.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError

from stepgrad.errors import ConfigError

COMMANDS = (
    "demo",
    "train",
    "evaluate",
    "explain",
    "thresholds",
    "rescore",
    "calibrate",
    "report",
    "detect",
    "propose",
    "doctor",
    "convert",
    "warmup",
)
"""In the order in which the help lists them."""

HELP = """Train detectors directly for the metric you report. `stepgrad demo` shows it in a minute or two.

`stepgrad COMMAND --help` explains the options of a command. `eval "$(stepgrad --completion bash)"` (or zsh), or in fish
`stepgrad --completion fish | source`, makes the shell complete commands and options.
"""

app = App(
    name="stepgrad",
    help=HELP,
    version=lambda: import_module("stepgrad.cli.version").version_text(),
    version_flags=("--version", "-V"),
    version_format="plaintext",
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # main() chooses the exit code
    default_parameter=Parameter(
        name_transform=str,  # --map_steps, as the parameter is called
        consume_multiple=True,  # --compare coco voc12
        json_list=False,  # a file may be called [1].jpg
        allow_repeating=True,  # the last one counts
        negative=(),  # --draw false, not --no-draw
        show_default=lambda value: shown_default(value),
    ),
)
for _place, _name in enumerate(COMMANDS):
    app.command(f"stepgrad.cli.{_name}:{_name}", name=_name, sort_key=_place)  # imported when it is asked for


def read_whole(_: Any, tokens: Sequence[Any]) -> int:
    """The whole number of an option; the parser itself would round 2.5 to 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number but got {tokens[0].value!r}.") from None


Whole = Annotated[int, Parameter(converter=read_whole)]


@app.command(name="--completion")
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a script with which the shell completes commands and options.

    Args:
        shell: The shell.
    """
    script = app.generate_completion(shell=shell)
    print(script)
    if shell == "zsh":  # the script is for a file that zsh finds by its first line; `eval` needs one more
        (function,) = re.findall(r"^(_cyclopts_\w+)\(\)", script, re.MULTILINE)[:1]
        print(f"compdef {function} stepgrad")


def call(words: Sequence[str]) -> int:
    """Run the command that the words ask for; returns its exit code. A mistake in the words is a ConfigError of one line."""
    if words[0] in app.help_flags:
        app.resolved_commands()  # whose docstrings the list begins
    try:
        return app(_with_values(words), exit_on_error=False, print_error=False) or 0
    except CycloptsError as error:
        error.verbose = False
        command = " ".join(["stepgrad", *(error.command_chain or ())])
        raise ConfigError(f"{_meant(error) or error} See `{command} --help`.") from error


def _with_values(words: Sequence[str]) -> list[str]:
    """`--flag true` as `--flag=true`: a flag stands alone for the parser, so that `--draw photo.jpg` has a picture.

    >>> _with_values(["--draw", "false", "no", "--split", "no", "true"])
    ['--draw=false', 'no', '--split=no', 'true']
    """
    joined: list[str] = []
    for word in words:
        if word.lower() in ("true", "false", "yes", "no") and joined and re.fullmatch(r"--[a-z][^=]*", joined[-1]):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _meant(error: CycloptsError) -> str:
    """The dotted options that end like an unknown one, which the parser does not take for close: `--nll.lr` for `--lr`."""
    if not isinstance(error, UnknownOptionError):
        return ""
    word = (error.token.keyword or error.token.value).partition("=")[0]
    ends = [name for argument in error.argument_collection for name in argument.names if name.endswith(f".{word[2:]}")]
    return f"Unknown option: {word}. Did you mean {' or '.join(ends)}?" if ends else ""


def shown_default(value: Any) -> str | None:
    """A default as a config has it, for the help; None for one that says nothing.

    >>> shown_default(0.5), shown_default(True), shown_default(None)
    ('0.5', 'true', None)
    """
    if value is None or value is False or value == ():
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
