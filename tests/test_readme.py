"""What the README shows, run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_readme_example_pastes_in_and_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (promised,) = re.findall(r'print\(loss_fn.metrics\["map"\]\) +# ([\d.]+):', code)
    assert done.stdout.strip() == promised


def test_the_readme_pushes_windows_as_its_comment_says() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(code, names)
    on_object, also, false_alarm = names["scores"][0].grad.flatten().tolist()
    assert on_object < 0
    assert also < 0 < false_alarm
