"""The commands in the C locale, which knows ASCII alone, in a folder that is called anything but ASCII."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from stepgrad.data import load_dataset
from stepgrad.data.read_detections import read_detections
from tests.data.builders import coco_content, write_coco, write_voc

pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")

CONFIG = """# Käfer, 🐶
data: {path: Dätä, train: train, val: train, windows: Fenster ö}
model: {backbone: tiny, weights: null, hidden: 16, dropout: 0, freeze: trunk, shortest_side: null, longest_side: null}
nll: {steps: 1, images: 2, lr: 1e-2, drop_every: null}
map: {steps: 1, images: 2, windows: null, drop_every: null}
run: {eval_every: 1, log_every: 1, report: true, feature_cache: Merkmale ö}
"""
RUN_ALL = """
import sys
from stepgrad.cli import run
commands, word = [[]], None
for word in sys.argv[1:]:
    commands.append([]) if word == ";" else commands[-1].append(word)
for command in commands:
    sys.argv[1:] = command
    try:
        run()
    except SystemExit as end:
        print(command[0], "gave", end.code)
"""
"""Several commands in one process: each would need seconds to start."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data, a config and pictures, none of them called in ASCII."""
    here = tmp_path / "so ö 🐶"
    beetle = ("Käfer", 11, 6, 30, 25)
    write_voc(here / "Dätä", {"ö x": [beetle], "b": [beetle, ("dog", 1, 1, 60, 40)]}, {"train": "ö x\nb\n"})
    content = coco_content()
    content["images"][0]["file_name"] = "ö.jpg"
    write_coco(here / "CÖCO", content)
    (here / "CÖCO/images/nine.jpg").rename(here / "CÖCO/images/ö.jpg")
    (here / "cönfig.yaml").write_text(CONFIG, encoding="utf-8")
    Image.new("RGB", (60, 40)).save(here / "bild 🐶.png")
    Image.new("RGB", (3000, 1)).save(here / "narrow ö.png")
    return here


def run_in(locale: str, folder: Path, *commands: list[str]) -> str:
    words = [word for command in commands for word in (*command, ";")][:-1]
    environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "200"}
    environment.pop("PYTHONIOENCODING", None)
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=600,
        check=False,
    )
    shown = (done.stdout + done.stderr).decode("ascii" if locale == "C" else "utf-8")
    assert "Traceback" not in shown, shown
    return shown


TRAIN = ["train", "--config", "cönfig.yaml", "--out", "läufe/a"]
AFTERWARDS = [
    ["train", "--resume", "läufe/a"],
    ["evaluate", "--run", "läufe/a", "--save_detections", "gefunden ö"],
    ["evaluate", "--detections", "gefunden ö", "--data", "Dätä", "--split", "train"],
    ["detect", "--run", "läufe/a", "bild 🐶.png", "narrow ö.png", "--out", "bilder ö", "--threshold", "0"],
]


def test_every_command_works_in_the_c_locale(folder: Path) -> None:
    shown = run_in(
        "C",
        folder,
        ["doctor", "Dätä"],
        ["doctor", "CÖCO"],
        ["propose", "CÖCO", "--workers", "1"],
        ["propose", "Dätä", "--out", "Fenster ö", "--workers", "1"],
        TRAIN,
        *AFTERWARDS,
    )
    codes = [line.split()[-1] for line in shown.splitlines() if " gave " in line]
    assert codes == ["0"] * 9, shown
    assert "K\\xe4fer" in shown  # what ASCII lacks is escaped
    config = yaml.safe_load((folder / "läufe/a/config.yaml").read_text(encoding="utf-8"))
    assert config["data"]["path"] == "Dätä"
    assert "K\u00e4fer" in (folder / "läufe/a/report.html").read_text(encoding="utf-8")
    dataset = load_dataset(folder / "Dätä", "train")
    assert read_detections(folder / "gefunden ö", dataset).missing == ()
    drawn = json.loads((folder / "bilder ö/detections.json").read_text(encoding="utf-8"))["images"]
    assert len(drawn) == 2
    assert len(list((folder / "Fenster ö").glob("*.npz"))) == 2
    assert (folder / "Merkmale ö").is_dir()


@pytest.mark.nightly
def test_what_was_made_in_one_locale_is_used_in_another(folder: Path) -> None:
    made = run_in("C.UTF-8", folder, ["propose", "Dätä", "--out", "Fenster ö", "--workers", "1"], TRAIN)
    assert made.count("gave 0") == 2, made
    used = run_in("C", folder, *AFTERWARDS)
    assert used.count("gave 0") == 4, used
    again = run_in("C.UTF-8", folder, *AFTERWARDS[1:])
    assert again.count("gave 0") == 3, again
