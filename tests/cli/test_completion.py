"""`stepgrad --completion`: the shell completes what the command line takes."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import redirect_stdout
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
    scripts = {shell: tmp_path_factory.mktemp("scripts") / shell for shell in SHELLS}
    for shell, script in scripts.items():
        with script.open("w", encoding="utf-8") as file, redirect_stdout(file):
            assert main(["--completion", shell]) == 0
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
