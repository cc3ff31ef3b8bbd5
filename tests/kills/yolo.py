"""Trainings of YOLO with MAPTrainer under fire: `python -m tests.kills.yolo --count 100`, where ultralytics is installed.

ultralytics continues from averaged weights in half precision, so a resumed run is not the unbroken one to the last bit, with
its own trainer neither. What must hold: after each kill every checkpoint is whole and the newest epoch is still there; in the
end every epoch has its row under the header of the unbroken run, mAP took part in the same epochs, the options are those of
the beginning, and rows from before the first kill equal the unbroken run's to the last digit.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.kills.campaign import Campaign, Count
from tests.kills.command import Command, Problems, half_written
from tests.kills.server import server
from tests.models.yolo.small import (  # before ultralytics, which then reads the environment
    EASY,
    SIZE,
    yolo_folder,
)

EPOCHS = 4
OPTIONS = {"start": 2, "weight": 0.5, **EASY}
SETTINGS = {
    **{"epochs": EPOCHS, "imgsz": SIZE, "batch": 4, "nbs": 4, "plots": False, "workers": 0, "device": "cpu"},
    **{"optimizer": "SGD", "lr0": 0.01, "warmup_epochs": 0, "verbose": False, "exist_ok": True, "save_period": 1},
}


def import_early() -> None:
    """What the server imports once for all commands."""
    import ultralytics  # noqa: F401

    from stepgrad.models.yolo import MAPTrainer  # noqa: F401


def run() -> None:
    """The command: `train DATA FOLDER`, or `resume FOLDER` without the options."""
    from ultralytics import YOLO

    from stepgrad.models.yolo import MAPTrainer

    _, word, *paths = sys.argv
    if word == "train":
        data, folder = map(Path, paths)
        place = {"project": str(folder.parent), "name": folder.name}
        YOLO("yolov8n.yaml").train(data=str(data), trainer=MAPTrainer.options(**OPTIONS), **SETTINGS, **place)
    else:
        YOLO(Path(paths[0]) / "weights" / "last.pt").train(resume=True, trainer=MAPTrainer)
    sys.exit(0)


def load(path: Path) -> dict[str, Any] | None:
    """A checkpoint; None if it cannot be read."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    except Exception:  # whatever a torn file makes of the reader
        return None
    return content


class Yolo(Command):
    """Saves after each of four epochs; mAP takes part in the last two."""

    name = "yolo"
    module = "tests.kills.yolo"
    newest = -1
    rows_before: list[list[str]]
    seen: set[str]

    def prepare(self) -> None:
        self.data = yolo_folder(self.root / "data")
        self.rows_before = []

    def begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        super().begin()
        self.newest, self.rows_before, self.seen = -1, [], set()

    def words(self, folder: Path) -> list[str]:
        if (folder / "weights" / "last.pt").exists():
            return ["resume", str(folder)]
        return ["train", str(self.data), str(folder)]

    def rows(self, folder: Path) -> list[list[str]]:
        """results.csv without its column of times."""
        table = folder / "results.csv"
        lines = table.read_text().splitlines() if table.exists() else []
        return [[cell for i, cell in enumerate(line.split(",")) if i != 1] for line in lines]

    def is_trained(self) -> bool:
        """Whether all epochs are done: ultralytics has nothing to resume then."""
        last = load(self.folder / "weights" / "last.pt") if (self.folder / "weights" / "last.pt").exists() else None
        return last is not None and last["epoch"] in (-1, EPOCHS - 1)

    def phase(self) -> str:
        if half_written(self.folder):
            return "saving"
        return f"after {max(len(self.rows(self.folder)) - 1, 0)} epochs"  # one line is the header

    def check(self) -> Problems:
        problems: Problems = Counter()
        contents = {path.name: load(path) for path in (self.folder / "weights").glob("*.pt")}
        problems["files damaged"] += list(contents.values()).count(None)
        problems["files lost"] += len(self.seen - contents.keys())
        epochs = [EPOCHS if content["epoch"] == -1 else content["epoch"] for content in contents.values() if content]
        problems["files lost"] += max(epochs, default=-1) < self.newest
        problems["results that differ"] += (
            self._before_first_kill() != self.rows(self.root / "unbroken")[: len(self.rows_before)]
        )
        self.newest, self.seen = max(epochs, default=-1), set(contents)
        return problems

    def _before_first_kill(self) -> list[list[str]]:
        self.rows_before = self.rows_before or self.rows(self.folder)
        return self.rows_before

    def check_end(self) -> Problems:
        problems = self.check()
        header, *rows = self.rows(self.folder)
        right, *unbroken = self.rows(self.root / "unbroken")
        last = {
            row[0]: row for row in rows
        }  # an epoch killed after its row was written, before it was saved, comes again
        problems["results that differ"] += header != right or {len(row) for row in rows} != {len(header)}
        problems["results that differ"] += list(last) != [row[0] for row in unbroken]
        problems["results that differ"] += [float(row[-1]) > 0 for row in last.values()] != [
            float(row[-1]) > 0 for row in unbroken
        ]
        for name in ("best.pt", "last.pt"):
            problems["files lost"] += not (self.folder / "weights" / name).exists()
        return problems

    def tear(self) -> Path | None:
        return None

    def mend(self, torn: Path) -> list[str]:
        return self.words(self.folder)


class Kills(Campaign):
    """Kills only: what ultralytics says of a full disk is its own affair."""

    command: Yolo

    def _choose(self) -> Callable[[], None]:
        self._leave_trained()
        return self._kill_once

    def _let_end(self, words: list[str]) -> None:
        self._leave_trained()
        super()._let_end(self.command.words(self.command.folder))

    def _leave_trained(self) -> None:
        if self.command.is_trained():
            self.count.problems += self.command.check()
            self.count.ends["yolo killed after its last epoch"] += 1
            self.command.begin()


def kill(times: int, folder: Path, seed: int = 0, tell: Callable[[str], None] = lambda line: None) -> Count:
    """So many kills of trainings."""
    count, began = Count(), time.monotonic()
    with server(folder, Yolo.module) as children:
        command = Yolo(children, folder)
        tell(f"{command.name}: {command.seconds:.1f} s unbroken, {command.writes} writes")
        Kills(command, count, random.Random(seed)).kill(times)
    count.seconds = time.monotonic() - began
    return count


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills.yolo", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="kills [100]")
    parser.add_argument("--seed", type=int, default=0, help="another one has other moments [0]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        count = kill(options.count, Path(folder), options.seed, lambda text: print(text, flush=True))
    print(count)
    return 0 if count.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
