from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepgrad.data.shapes import ShapesDataset
from stepgrad.report import Arm
from tests.report.browser import Browser, find_chromium
from tests.report.trainings import NOISES, noisy_arm, write


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no chromium on PATH; Debian's package is called chromium")
    with Browser(program) as opened:
        yield opened


@pytest.fixture(scope="session")
def dataset() -> ShapesDataset:
    return ShapesDataset("test", length=16)


@pytest.fixture(scope="session")
def arms(dataset: ShapesDataset) -> list[Arm]:
    return [noisy_arm(dataset, name, noise) for name, noise in NOISES.items()]


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory, arms: list[Arm], dataset: ShapesDataset) -> Path:
    return write(tmp_path_factory.mktemp("arms"), arms, dataset)
