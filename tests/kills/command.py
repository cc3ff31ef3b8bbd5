"""What the commands under fire have in common."""

from __future__ import annotations

import hashlib
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path

from tests.kills.server import End, Server

Problems = Counter[str]
"""How often, by kind."""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def half_written(folder: Path) -> list[Path]:
    """What writers have not yet put in place, or never will."""
    try:
        return [path for path in folder.rglob(".*") if path.suffix == ".tmp" or path.name.startswith(".writing")]
    except FileNotFoundError:  # moved while looking
        return []


def cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


class Command(ABC):
    """One command, started and killed again and again in a folder of its own."""

    name: str

    def __init__(self, server: Server, root: Path) -> None:
        self.server, self.root = server, root / self.name
        self.root.mkdir(parents=True)
        self.rounds = 0
        self.prepare()
        self.run_unbroken()
        self.begin()

    @property
    def folder(self) -> Path:
        """Of this round."""
        return self.root / f"round{self.rounds}"

    def run_unbroken(self) -> None:
        """Make what is to come out, and learn how long it takes; twice, as kernels may be compiled in the first run."""
        for _ in range(2):
            shutil.rmtree(self.root / "unbroken", ignore_errors=True)
            end = self.run_whole(self.words(self.root / "unbroken"))
        self.seconds, self.writes = end.seconds, end.writes

    def run_whole(self, words: list[str]) -> End:
        end = self.server.run(words)
        assert end.code == 0, end.said
        return end

    @abstractmethod
    def prepare(self) -> None:
        """Make what the command needs."""

    def begin(self) -> None:
        """A new round."""
        self.rounds += 1

    @abstractmethod
    def words(self, folder: Path) -> list[str]:
        """The command, to begin or to go on in a folder."""

    @abstractmethod
    def phase(self) -> str:
        """What a killed process was at, by what it left on disk."""

    @abstractmethod
    def check(self) -> Problems:
        """After a kill: what was there is there, and whole."""

    @abstractmethod
    def check_end(self) -> Problems:
        """After the command came to its end: the results are those of the unbroken one."""

    @abstractmethod
    def tear(self) -> Path | None:
        """Cut a file in half, as a bad disk may; None if there is none to cut."""

    @abstractmethod
    def mend(self, torn: Path) -> list[str]:
        """Follow the advice of the error message; returns the command to go on with."""


class FileByFile(Command):
    """A command that makes files one after the other, each once: what is there stays, and is that of the unbroken run."""

    seen: set[Path]

    def prepare(self) -> None:
        """It needs nothing."""

    def begin(self) -> None:
        super().begin()
        self.seen = set()

    @abstractmethod
    def made(self) -> set[Path]:
        """The files so far, relative to the folder."""

    @abstractmethod
    def fault(self, path: Path) -> str:
        """What is wrong with one of them; nothing if it is right."""

    def check(self) -> Problems:
        made = self.made()
        problems: Problems = Counter(filter(None, map(self.fault, made)))
        problems["files lost"] += len(self.seen - made)
        self.seen = made
        return problems

    def tear(self) -> Path | None:
        made = sorted(self.made())
        if not made:
            return None
        cut_in_half(self.folder / made[-1])
        return self.folder / made[-1]

    def mend(self, torn: Path) -> list[str]:
        torn.unlink()
        self.seen.discard(torn.relative_to(self.folder))
        return self.words(self.folder)
