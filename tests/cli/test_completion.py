"""`stepgrad --completion`: the shell completes what the command line takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stepgrad.cli import main
from stepgrad.cli.app import COMMANDS

SHELLS = ["bash", "zsh", "fish"]
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
$(complete -p stepgrad | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(name="scripts", scope="module")
def make_scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("scripts")
    scripts = {}
    for shell in SHELLS:
        with pytest.MonkeyPatch.context() as patch:
            lines: list[str] = []
            patch.setattr("builtins.print", lambda text, lines=lines: lines.append(text))
            assert main(["--completion", shell]) == 0
        scripts[shell] = folder / shell
        scripts[shell].write_text("\n".join(lines), encoding="utf-8")
    return scripts


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_knows_every_command(scripts: dict[str, Path], shell: str) -> None:
    text = scripts[shell].read_text(encoding="utf-8")
    assert all(command in text for command in COMMANDS)
    assert "nll.steps" in text


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ev"], {"evaluate"}),
        (["d"], {"demo", "detect", "doctor"}),
        (["evaluate", "--prot"], {"--protocol"}),
        (["train", "--map_loss.est"], {"--map_loss.estimator"}),
        (["propose", "shapes", "--mode", "q"], {"quality"}),
    ],
)
def test_bash_offers_what_can_follow(scripts: dict[str, Path], typed: list[str], offered: set[str]) -> None:
    words = ["bash", "--norc", "-c", ASK, "-", str(scripts["bash"]), "stepgrad", *typed]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert {word.strip() for word in done.stdout.split()} == offered, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "SHELL requires an argument"),
        (["bsh"], 'Choose from: "bash", "zsh", "fish". Did you mean "bash"'),
        (["bash", "zsh"], "Unused Tokens: .'zsh'.\\."),
    ],
)
def test_an_unknown_shell_is_answered_by_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--completion", *words]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert re.search(said, message)
