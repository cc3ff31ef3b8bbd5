"""The three commands under fire: what they write, what must hold after each kill, and what must come out in the end."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from stepgrad.data.proposals.cache import read_record
from stepgrad.detector.training.checkpoint import checkpoint_step, list_checkpoints
from stepgrad.detector.training.config import to_dict
from stepgrad.detector.training.run_log import read_log
from stepgrad.errors import DataError
from stepgrad.weights_file import load_weights
from tests.detector.training.small_runs import fingerprint, small_config, without_times
from tests.kills.command import Command, FileByFile, Problems, cut_in_half, half_written, sha256
from tests.kills.server import Server


class Train(Command):
    """Saves at every step, so that most of its time after the first second is spent near a save."""

    name = "train"
    newest = 0

    def prepare(self) -> None:
        config = small_config(
            data={"val_images": 1},
            nll={"steps": 8},
            map={"steps": 8},
            run={"save_every": 1, "eval_every": 4, "keep": 3, "report": True},
        )
        self.config = self.root / "config.yaml"
        self.config.write_text(yaml.safe_dump(to_dict(config)))

    def run_unbroken(self) -> None:
        super().run_unbroken()
        folder = self.root / "every_step"
        self.run_whole([*self.words(folder), "--run.keep", "1000", "--run.report", "false"])
        self.right = {checkpoint_step(path): fingerprint(path) for path in list_checkpoints(folder / "checkpoints")}

    def begin(self) -> None:
        super().begin()
        self.newest = 0

    def words(self, folder: Path) -> list[str]:
        if (folder / "config.yaml").exists():
            return ["train", "--resume", str(folder)]
        return ["train", "--config", str(self.config), "--out", str(folder)]

    def phase(self) -> str:
        if half_written(self.folder):
            return "saving"
        lines = read_log(self.folder / "log.jsonl")
        if not lines:
            return "starting"
        if max(line["step"] for line in lines) == max(self.right):
            return "finishing"
        return str(lines[-1].get("phase") or lines[-1]["kind"])

    def check(self) -> Problems:
        saved = list_checkpoints(self.folder / "checkpoints")
        problems: Problems = Counter(filter(None, map(self._fault, saved)))
        newest = max(map(checkpoint_step, saved), default=0)
        problems["files lost"] += newest < self.newest
        self.newest = newest
        return problems

    def _fault(self, path: Path) -> str:
        try:
            return "weights that differ" if fingerprint(path) != self.right[checkpoint_step(path)] else ""
        except DataError:
            return "files damaged"

    def check_end(self) -> Problems:
        unbroken, problems = self.root / "unbroken", self.check()
        for name in ("config.yaml", "log.jsonl", "best.safetensors", "evaluation.json", "report.json", "report.html"):
            problems["files lost"] += not (self.folder / name).exists()
        problems["weights that differ"] += self.newest != max(self.right)
        problems["weights that differ"] += best(self.folder) != best(unbroken)
        problems["results that differ"] += sha256(self.folder / "evaluation.json") != sha256(
            unbroken / "evaluation.json"
        )
        logs = [without_times(read_log(folder / "log.jsonl")) for folder in (self.folder, unbroken)]
        problems["results that differ"] += logs[0] != logs[1]
        return problems

    def tear(self) -> Path | None:
        saved = list_checkpoints(self.folder / "checkpoints")
        if len(saved) < 2:
            return None
        cut_in_half(saved[-1])
        return saved[-1]

    def mend(self, torn: Path) -> list[str]:
        step = checkpoint_step(list_checkpoints(self.folder / "checkpoints")[-2])
        self.newest = step
        torn.unlink()  # the command would replace it when it comes to that step; until then the checks would count it
        return [*self.words(self.folder), "--step", str(step)]


class Propose(FileByFile):
    name = "propose"

    def words(self, folder: Path) -> list[str]:
        return ["propose", "shapes:val,length=12", "--out", str(folder), "--workers", "1"]

    def made(self) -> set[Path]:
        return {path.relative_to(self.folder) for path in self.folder.glob("[!.]*.npz")}

    def phase(self) -> str:
        if half_written(self.folder):
            return "writing"
        made = len(self.made())
        return "starting" if made == 0 else "finishing" if made == 12 else "searching"

    def fault(self, path: Path) -> str:
        try:
            read_record(self.folder / path)
        except DataError:
            return "files damaged"
        return "results that differ" if sha256(self.folder / path) != sha256(self.root / "unbroken" / path) else ""

    def check_end(self) -> Problems:
        problems = self.check()
        problems["files lost"] += 12 - len(self.seen)
        return problems


class Evaluate(Command):
    """Detects with a run and saves detections (COCO's file, VOC's files by turns), numbers and curves over older ones."""

    name = "evaluate"

    def __init__(self, server: Server, root: Path, run: Path) -> None:
        self.run = run
        super().__init__(server, root)

    def prepare(self) -> None:
        for kind in (0, 1):
            self.run_whole(self._words(self.root / f"old{kind}", kind, checkpoint="8"))
            self.last = self.run_whole(self._words(self.root / f"new{kind}", kind))

    def run_unbroken(self) -> None:
        self.seconds, self.writes = self.last.seconds, self.last.writes

    def begin(self) -> None:
        super().begin()
        shutil.copytree(self.root / f"old{self.rounds % 2}", self.folder)

    def words(self, folder: Path) -> list[str]:
        return self._words(folder, self.rounds % 2)

    def _words(self, folder: Path, kind: int, checkpoint: str = "last") -> list[str]:
        return [
            *("evaluate", "--run", str(self.run), "--checkpoint", checkpoint),
            *("--save_detections", str(folder / ("detections.json" if kind else "voc"))),
            *("--plot", str(folder / "curves.png"), "--report", str(folder / "report.json")),
        ]

    def _states(self) -> dict[str, str]:
        """Of each file that should be there: old, new, lost or damaged."""
        kind, found = self.rounds % 2, {}
        for new in (path for path in (self.root / f"new{kind}").rglob("*") if path.is_file()):
            name = str(new.relative_to(self.root / f"new{kind}"))
            path, old = self.folder / name, self.root / f"old{kind}" / name
            content = path.read_bytes() if path.exists() else None
            choices = {old.read_bytes(): "old", new.read_bytes(): "new"}
            found[name] = "lost" if content is None else choices.get(content, "damaged")
        return found

    def phase(self) -> str:
        if half_written(self.folder):
            return "writing"
        states = set(self._states().values())
        return "detecting" if states == {"old"} else "written" if states == {"new"} else "between files"

    def check(self) -> Problems:
        states = list(self._states().values())
        shutil.copytree(self.root / f"old{self.rounds % 2}", self.folder, dirs_exist_ok=True)  # for the next kill
        return Counter({"files lost": states.count("lost"), "files damaged": states.count("damaged")})

    def check_end(self) -> Problems:
        states = self._states()
        return self.check() + Counter({"results that differ": list(states.values()).count("old")})

    def tear(self) -> Path | None:
        path = self.folder / "report.json"
        cut_in_half(path)
        return path

    def mend(self, torn: Path) -> list[str]:
        return self.words(self.folder)


def best(folder: Path) -> tuple[str, Any]:
    """Of the best weights and what is said about them."""
    tensors, metadata = load_weights(folder / "best.safetensors")
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].numpy().tobytes())
    return digest.hexdigest(), json.loads(metadata["stepgrad"])
