"""Names from data on the terminal: seen as they are, obeyed never."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path

import pytest
from rich.table import Table

from stepgrad.cli import main
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.errors import LikelyMistakeWarning
from tests.data.builders import coco_content, write_coco

EVIL = "[red]d\x1b[31m\x9b2Jo\ng:dog:\u202e"
SEEN = "[red]d\\x1b[31m\\x9b2Jo\\ng:dog:\\u202e"


def printed(*things: object, **options: object) -> str:
    file = io.StringIO()
    Terminal(file=file, force_terminal=True, color_system=None, width=200).print(*things, **options)
    return file.getvalue()


def test_names_are_seen_as_they_are() -> None:
    assert printed(safe_text(EVIL), soft_wrap=True) == f"{SEEN}\n"
    table = Table(safe_text(EVIL))
    table.add_row(safe_text(EVIL))
    assert printed(table).count(SEEN) == 2


def test_control_characters_that_slipped_in_are_seen_too() -> None:
    assert printed("a\x1b]0;title\x07b\nc", markup=False) == "a\\x1b]0;titleb\nc\n"  # rich itself drops the bell


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A COCO file with an evil category and an evil file name, to work beside."""
    monkeypatch.chdir(tmp_path)
    content = coco_content()
    content["categories"][0]["name"] = EVIL
    content["images"][0]["file_name"] = f"{EVIL}.jpg"
    return write_coco(tmp_path, content)


def harmless(text: str) -> bool:
    return not any(character in text for character in "\x1b\x9b\u202e🐶")


def test_no_command_passes_control_characters_on(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(data)]) == 1
    doctor = capsys.readouterr()
    assert SEEN in doctor.out
    assert main(["propose", str(data)]) == 2
    propose = capsys.readouterr()
    assert SEEN in propose.err
    found = [{"image_id": 4, "category_id": 18, "bbox": [0, 0, 60, 40], "score": 0.5}]
    Path("found.json").write_text(json.dumps(found))
    assert main(["evaluate", "--detections", "found.json", "--data", str(data)]) == 0
    evaluate = capsys.readouterr()
    assert SEEN in evaluate.out
    assert (
        main(["evaluate", "--detections", "found.json", "--data", str(data), "--compare", "coco", "voc07", "--classes"])
        == 0
    )
    compare = capsys.readouterr()
    assert SEEN in compare.out
    assert main(["doctor", EVIL]) == 2
    missing = capsys.readouterr()
    assert SEEN in missing.err
    assert all(harmless(text) for captured in (doctor, propose, evaluate, compare, missing) for text in captured)


def test_a_picture_of_an_evil_name_is_shown_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(tmp_path / EVIL)]) == 2
    captured = capsys.readouterr()
    assert SEEN in captured.err
    assert harmless(captured.out + captured.err)


def test_a_warning_is_a_line_without_a_place_in_the_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(_: list[str]) -> int:
        warnings.warn(f"{EVIL}: is most likely a mistake", LikelyMistakeWarning, stacklevel=2)
        return 0

    monkeypatch.setattr("stepgrad.cli.app.call", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["doctor"]) == 0
    assert capsys.readouterr().err == f"warning: {SEEN}: is most likely a mistake\n"
