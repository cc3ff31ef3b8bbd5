"""Segments of time from files: ActivityNet's json and one with `videos`, equal to the re-stated rules of its own script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepgrad.cli import main
from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import ACTIVITYNET
from tests.oracles.other_tasks import activitynet_ap
from tests.scenes import over_seeds

Json = dict[str, Any]
LABELS = ("jump", "run", "swim")


def made(rng: np.random.Generator) -> tuple[Json, Json]:
    """ActivityNet's two files: times on a grid, so that thresholds are met exactly; a class may have no detection."""
    database: Json = {"other": {"subset": "training", "annotations": [{"label": "dance", "segment": [0, 1]}]}}
    results: Json = {}
    for video in map(str, range(4)):
        own = [{"label": str(rng.choice(LABELS)), "segment": _segment(rng)} for _ in range(rng.integers(1, 5))]
        database[video] = {"subset": "validation", "annotations": own}
        near = [own[rng.integers(len(own))]["segment"] for _ in range(rng.integers(0, 12))]
        moved = [sorted(np.add(segment, rng.integers(-3, 4, 2)).tolist()) for segment in near]
        results[video] = [
            {"label": str(rng.choice(LABELS)), "segment": [a, b + 1], "score": float(rng.random())} for a, b in moved
        ]
    known = {entry["label"] for video in "0123" for entry in database[video]["annotations"]}
    results = {video: [e for e in entries if e["label"] in known] for video, entries in results.items()}
    return {"database": database}, {"version": "1.3", "results": results, "external_data": {}}


def _segment(rng: np.random.Generator) -> list[int]:
    begin = int(rng.integers(0, 30))
    return [begin, begin + int(rng.integers(1, 20))]


def as_lists(truth: Json, found: Json) -> tuple[Json, list[Json]]:
    """The same as a json with `videos`."""
    of_subset = {name: entry for name, entry in truth["database"].items() if entry["subset"] == "validation"}
    names = list(dict.fromkeys(a["label"] for entry in of_subset.values() for a in entry["annotations"]))
    number = {name: i for i, name in enumerate(names, 5)}
    annotations = [
        {"video_id": int(video), "category_id": number[a["label"]], "segment": a["segment"]}
        for video, entry in of_subset.items()
        for a in entry["annotations"]
    ]
    results = [
        {"video_id": int(video), "category_id": number[e["label"]], "segment": e["segment"], "score": e["score"]}
        for video, entries in found["results"].items()
        for e in entries
    ]
    categories = [{"id": i, "name": name} for name, i in number.items()]
    return {
        "videos": [{"id": int(v)} for v in of_subset],
        "categories": categories,
        "annotations": annotations,
    }, results


def write(folder: Path, truth: Any, found: Any) -> tuple[Path, Path]:
    (folder / "truth.json").write_text(json.dumps(truth))
    (folder / "found.json").write_text(json.dumps(found))
    return folder / "found.json", folder / "truth.json"


def numbers(found: Path, truth: Path, split: str | None) -> list[float]:
    """AP of each class at each threshold."""
    dataset = load_dataset(truth, split, task="segments", need_images=False)
    result = evaluate_under(evidence_from(dataset, read_detections(found, dataset)), ACTIVITYNET)
    return [float(value) for row in result.classes for value in row.ap_by_threshold.values()]


def expected(truth: Json, found: Json) -> list[float]:
    of_subset = {name: entry for name, entry in truth["database"].items() if entry["subset"] == "validation"}
    names = list(dict.fromkeys(a["label"] for entry in of_subset.values() for a in entry["annotations"]))
    values = []
    for name in names:
        own = [(v, a["segment"]) for v, e in of_subset.items() for a in e["annotations"] if a["label"] == name]
        seen = [
            (v, e["score"], e["segment"])
            for v, entries in found["results"].items()
            for e in entries
            if e["label"] == name
        ]
        values += [activitynet_ap(seen, own, threshold) for threshold in np.linspace(0.5, 0.95, 10)]
    return values


@over_seeds(20, 1000)
def test_both_forms_give_the_numbers_of_activitynets_rules(seed: int, tmp_path: Path) -> None:
    truth, found = made(np.random.default_rng([seed, 11]))
    wanted = pytest.approx(expected(truth, found), abs=1e-12)
    assert numbers(*write(tmp_path, truth, found), "validation") == wanted
    assert numbers(*write(tmp_path, *as_lists(truth, found)), None) == wanted


def test_the_command_judges_segments_by_activitynets_protocol_and_explains_and_reports_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth, found = made(np.random.default_rng(3))
    files = [str(file) for file in write(tmp_path, truth, found)]
    options = ["--data", files[1], "--split", "validation", "--task", "segments"]
    assert main(["evaluate", "--detections", files[0], *options, "--report", str(tmp_path / "n.json")]) == 0
    numbers = json.loads((tmp_path / "n.json").read_text())
    assert numbers["protocol"] == "activitynet"
    assert numbers["map"] == pytest.approx(np.mean(expected(truth, found)), abs=1e-12)
    assert main(["explain", "--detections", files[0], *options]) == 0
    assert "recall ceiling" in capsys.readouterr().out
    assert main(["report", files[0], *options, "--out", str(tmp_path)]) == 0
    assert "tIoU" in (tmp_path / "report.html").read_text()


GOOD = {"label": "run", "segment": [0, 5]}


@pytest.mark.parametrize(
    ("truth", "found", "split", "says"),
    [
        ({}, {}, None, "name one of them as the split"),
        ({}, {}, "test", "has no subset 'test'; it has val, training."),
        ({"segment": [5, 5]}, {}, "val", "begins at 5 and ends at 5"),
        ({"segment": "5"}, {}, "val", "expected segment [begin, end]"),
        ({"label": 3}, {}, "val", "expected a label but got 3"),
        ({}, {"label": "rum"}, "val", "'rum' is no class of truth val"),
        ({}, {"segment": [5, 4]}, "val", "swap its ends"),
        ({}, {"score": None}, "val", "expected a finite score"),
        ({}, {"video": "b"}, "val", "video 'b' is not among the 1 videos"),
    ],
)
def test_defects_of_files_are_named_with_the_way_out(
    truth: Json, found: Json, split: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"subset": "training", "annotations": []}
    database = {"a": {"subset": "val", "annotations": [{**GOOD, **truth}]}, "c": other}
    entry = {**GOOD, "score": 0.5, **found}
    files = write(tmp_path, {"database": database}, {"results": {entry.pop("video", "a"): [entry]}})
    options = ["--detections", str(files[0]), "--data", str(files[1]), "--task", "segments"]
    assert main(["evaluate", *options, *(["--split", split] if split else [])]) != 0
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_no_json_of_segments_says_what_was_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write(tmp_path, {"database": {"a": {"subset": "val", "annotations": [GOOD]}}}, [3])
    options = ["--detections", str(files[0]), "--data", str(files[1])]
    assert main(["evaluate", *options, "--task", "segments"]) != 0
    assert '"results"' in capsys.readouterr().err
    assert main(["evaluate", *options]) != 0
    assert "ActivityNet's json needs --task segments" in " ".join(capsys.readouterr().err.split())
    assert main(["evaluate", "--detections", str(files[0]), "--data", "shapes", "--task", "segments"]) != 0
    assert "shapes has no segments" in " ".join(capsys.readouterr().err.split())
