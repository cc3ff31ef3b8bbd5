"""Every input that once escaped, again. A folder of `corpus/READER/` is laid over the reader's valid files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import known
from tests.fuzz.damage_bytes import Files
from tests.fuzz.guarded import run_case
from tests.fuzz.readers import READERS

CORPUS = Path(__file__).parent / "corpus"
ON_DISK = sorted((place.parent.name, place.name) for place in CORPUS.glob("*/*") if place.is_dir())


def _files(folder: Path) -> Files:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _check(reader: str, files: Files, place: Path) -> None:
    outcome = run_case(place / "guard", {**READERS[reader].seed(), **files}, READERS[reader].call)
    assert outcome.kind != "escape", outcome.report


@pytest.mark.parametrize(("reader", "fault"), ON_DISK)
def test_what_once_escaped_gets_an_answer_or_a_stepgrad_error(reader: str, fault: str, tmp_path: Path) -> None:
    _check(reader, _files(CORPUS / reader / fault), tmp_path)


@pytest.mark.parametrize(("reader", "fault"), list(known.CASES))
def test_a_known_fault_gets_an_answer_or_a_stepgrad_error(reader: str, fault: str, tmp_path: Path) -> None:
    _check(reader, known.CASES[reader, fault], tmp_path)
