"""`stepgrad doctor` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepgrad.cli.doctor import doctor
from stepgrad.errors import DataError
from tests.data.builders import DOG, voc_xml, write_voc


def test_healthy_data_gives_zero_a_table_and_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(str(write_voc(tmp_path / "V", {"a": [DOG]}, {"train": "a"})), class_names=["dog"]) == 0
    output = capsys.readouterr().out
    assert "VOC folder V: 1 image, 60 x 40 pixels" in output
    assert [word for line in output.splitlines() if "dog" in line for word in line.split() if word != "│"] == [
        *("dog", "1", "1", "0", "20", "20", "20")
    ]
    assert "0 errors, 0 warnings: ready to train" in output


def test_sick_data_gives_one_and_each_problem_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_voc(tmp_path / "V")
    (root / "JPEGImages/a.jpg").write_bytes(b"")
    assert doctor(str(root)) == 1
    lines = capsys.readouterr().out.splitlines()
    found = [number for number, line in enumerate(lines) if line.startswith("error")]
    assert len(found) == 1
    assert lines[found[0]] == f"error {root}/JPEGImages/a.jpg: is not an image (the file is empty)"
    assert lines[found[0] + 1].strip() == "download or export it again"
    assert lines[-1].startswith("1 error, ")


def test_warnings_alone_give_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_voc(tmp_path / "V")
    (root / "Annotations/b.xml").write_text(voc_xml([]))
    assert doctor(str(root)) == 0
    assert "b.xml: holds no objects" in capsys.readouterr().out


def test_many_problems_of_a_kind_are_cut_and_the_rest_counted_but_the_report_holds_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_voc(tmp_path / "V")
    (root / "Annotations/b.xml").write_text(voc_xml([("dog", 30, 6, 11, 25)] * 9))
    assert doctor(str(root), limit=4, report=str(tmp_path / "report.json")) == 1
    output = capsys.readouterr().out
    assert output.count("xmax 11 < xmin 30") == 4
    assert "... and 5 more of this kind (box-degenerate); --limit 0 shows all" in output
    content = json.loads((tmp_path / "report.json").read_text())
    assert len([problem for problem in content["problems"] if problem["kind"] == "box-degenerate"]) == 9
    assert content["summary"]["images"] == 2
    doctor(str(root), limit=0)
    assert capsys.readouterr().out.count("xmax 11 < xmin 30") == 9


def test_brackets_in_names_are_not_taken_for_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_voc(tmp_path / "V [old]", {"a": [("[red]", 30, 6, 11, 25), DOG]}, {"train": "a"})
    doctor(str(root))
    assert f"{root}/Annotations/a.xml: object 0 ([red]): xmax 11" in capsys.readouterr().out


def test_what_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Looked for"):
        doctor(str(tmp_path))
