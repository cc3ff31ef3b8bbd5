"""What the tests of the doctor share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepgrad.data import Problem, VOCDataset
from stepgrad.data.doctor import Diagnosis
from stepgrad.data.proposals.cache import WindowsRecord, record_path, write_record
from tests.data.builders import write_voc


def healthy_folder(tmp_path: Path) -> Path:
    """Images a (dog, cat) and b (dog); `classes.txt` keeps absent classes from being missed."""
    folder = write_voc(tmp_path / "V")
    (folder / "classes.txt").write_text("cat\ndog\n")
    return folder


def only(diagnosis: Diagnosis) -> Problem:
    assert len(diagnosis.problems) == 1, diagnosis.problems
    return diagnosis.problems[0]


def expect(diagnosis: Diagnosis, path: Path, kind: str, severity: str, what: str) -> None:
    """One problem, of this file, of this sort, that says `what` and offers a fix."""
    problem = only(diagnosis)
    assert (problem.path, problem.kind, problem.severity) == (str(path), kind, severity)
    assert what in problem.what
    assert problem.fix
    assert diagnosis.errors == (severity == "error")


def cache_of(root: Path, tmp_path: Path, counts: dict[str, int]) -> Path:
    """A cache folder with so many windows an image."""
    dataset = VOCDataset(root, "train")
    for image_id, count in counts.items():
        boxes = np.tile(np.array([[0, 0, 20, 20]]), (count, 1))
        fingerprint = dataset.fingerprint(dataset.index_of(image_id))
        write_record(record_path(tmp_path / "cache", image_id), WindowsRecord(boxes, "{}", fingerprint, "V"))
    return tmp_path / "cache"
