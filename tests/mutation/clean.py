"""Tests without any fault: how long each takes and which lines it runs, so that a mutant meets only tests that can notice."""

from __future__ import annotations

import json
import math
import resource
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutants import Mutant

TIMES_THE_CLEAN_RUN = 5
SPARE_SECONDS = 10.0
"""A test may take so much longer with a fault than without."""
SETUP = "all of "
"""Before the path of a test file: what ran while one of its tests was prepared, which a fixture may keep for the others."""


@dataclass
class Clean:
    """What some tests do without a fault."""

    seconds: dict[str, float] = field(default_factory=dict)
    """CPU time by test."""
    runs: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """By file below src/stepgrad and line: the tests that run it."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Clean:
        return cls(**json.loads(path.read_text()))


def met_by(mutant: Mutant, parts: Sequence[Clean]) -> dict[str, float]:
    """Tests that run the faulty line, with their CPU times: files that are quick first, and in each the quick tests first."""
    seconds = {test: took for part in parts for test, took in part.seconds.items()}
    found: set[str] = set()
    for part in parts:
        lines = part.runs.get(mutant.file, {})
        for line in mutant.lines or lines:
            found.update(lines.get(str(line), ()))
    chosen = [test for test in seconds if test in found or SETUP + _file(test) in found]
    of_file = dict.fromkeys(map(_file, chosen), 0.0)
    for test in chosen:
        of_file[_file(test)] += seconds[test]
    chosen.sort(key=lambda test: (of_file[_file(test)], _file(test), seconds[test]))
    return {test: seconds[test] for test in chosen}


def _file(test: str) -> str:
    return test.split("::")[0]


class Recorder:
    """A plugin of pytest that writes a `Clean`. To be made before stepgrad is imported."""

    def __init__(self, package: Path, to: Path) -> None:
        import coverage

        self.package = package
        self.to = to
        self.clean = Clean()
        self.coverage = coverage.Coverage(data_file=None, source=[str(package)], config_file=False, messages=False)
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        began = time.process_time()
        result = yield
        self.clean.seconds[item.nodeid] = time.process_time() - began
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.coverage.switch_context(SETUP + _file(item.nodeid))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self.coverage.switch_context(item.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tests that only start processes run no line here
            data = self.coverage.get_data()
        for path in data.measured_files():
            lines = data.contexts_by_lineno(path)
            self.clean.runs[str(Path(path).relative_to(self.package))] = {
                str(line): [context for context in contexts if context] for line, contexts in lines.items()
            }
        self.clean.write(self.to)


class Chosen:
    """A plugin of pytest that runs some tests only, in a given order, and ends the process if one takes far too long."""

    def __init__(self, seconds: dict[str, float]) -> None:
        """
        Args:
            seconds: the tests, in order, with the CPU time that each takes without a fault.
        """
        self.seconds = seconds
        self.place = {test: place for place, test in enumerate(seconds)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda i: self.place[i.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        most = time.process_time() + TIMES_THE_CLEAN_RUN * self.seconds[item.nodeid] + SPARE_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(most), resource.RLIM_INFINITY))
