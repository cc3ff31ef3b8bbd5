"""`stepgrad train`, and what is done with a run afterwards, from end to end on the built-in set."""

from __future__ import annotations

import json
import re
import signal
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepgrad.cli import main
from stepgrad.cli.judged import JudgedInput, only_images
from stepgrad.data import load_dataset
from stepgrad.data.read_detections import FileDetections
from stepgrad.detector.training import engine
from stepgrad.detector.training.inputs import open_split
from stepgrad.detector.training.run_folder import Run, open_run
from stepgrad.detector.training.run_log import read_log
from stepgrad.evaluation.flatten import detections_of
from stepgrad.extras import install_command
from stepgrad.progress import RichProgress
from tests.data.builders import coco_content, write_coco, write_voc

CONFIG = """
data: {path: shapes, train_images: 6, val_images: 4}
model: {backbone: tiny, weights: null, hidden: 16, dropout: 0, freeze: none, shortest_side: null, longest_side: null}
nll: {steps: 3, images: 2, lr: 1e-2, drop_every: null}
map: {steps: 2, images: 2, windows: null, drop_every: null}
run: {eval_every: 2, log_every: 1, report: false}
"""
NOTHING = FileDetections(detections_of([], 0, []), inclusive=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five steps."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.yaml").write_text(CONFIG)
    assert main(["train", "--config", str(folder / "tiny.yaml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A config file in a folder to work in."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(CONFIG)
    return "tiny.yaml"


def test_run_folder_holds_config_log_checkpoints_and_best_weights(run: Path) -> None:
    assert {"config.yaml", "log.jsonl", "checkpoints", "best.safetensors", "evaluation.json"} <= {
        path.name for path in run.iterdir()
    }
    lines = read_log(run / "log.jsonl")
    assert [(line["step"], line["phase"]) for line in lines if line["kind"] == "train"] == [
        *((1, "nll"), (2, "nll"), (3, "nll"), (4, "map"), (5, "map")),
    ]


def test_end_tells_the_map_the_report_and_what_to_do_next(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", tiny, "--nll.steps", "0", "--map.steps", "1", "--run.report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(Path("runs/tiny-1/evaluation.json").read_text())["map"]
    assert "run folder runs/tiny-1" in lines
    assert any(re.fullmatch(r"time +\d:\d\d:\d\d in total(: .*other .*)?", line) for line in lines)
    assert f"mAP voc12 {100 * found:.1f} at step 1, the best of 1 step" in lines
    assert "report    runs/tiny-1/report.html" in lines
    assert Path("runs/tiny-1/report.html").stat().st_size > 0
    for command in ("evaluate", "detect"):
        assert any(f"stepgrad {command} --run runs/tiny-1" in line for line in lines)


def test_a_folder_that_holds_a_run_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "log.jsonl").read_bytes()
    assert main(["train", "--config", "shapes", "--out", str(run)]) == 2
    assert f"`stepgrad train --resume {run}`" in capsys.readouterr().err
    assert (run / "log.jsonl").read_bytes() == before


def test_default_folder_is_the_first_free_number(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def note(config: Any, folder: Path, progress: Any) -> engine.RunResult:
        chosen.append(str(folder))
        return engine.RunResult(folder, 1, None, {}, None)

    monkeypatch.setattr(engine, "train", note)
    for words in (["--config", "shapes"], ["--config", tiny], ["--data.path", "VOC 2007/"], []):
        assert main(["train", *words]) == 0
    Path("runs/shapes-1").mkdir(parents=True)
    assert main(["train", "--config", "shapes"]) == 0
    assert chosen == ["runs/shapes-1", "runs/tiny-1", "runs/VOC-2007-1", "runs/shapes-1", "runs/shapes-2"]


def test_several_processes_need_a_named_folder(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", tiny, "--run.devices", "2"]) == 2
    assert "name it with --out" in capsys.readouterr().err


def test_ctrl_c_gives_130_and_says_how_to_go_on(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = RichProgress.step

    def press(progress: RichProgress, line: Any) -> None:
        real(progress, line)
        if line["step"] == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RichProgress, "step", press)
        assert main(["train", "--config", tiny, "--out", "a"]) == 130
    assert "continue with `stepgrad train --resume a`" in capsys.readouterr().out
    assert main(["train", "--resume", "a"]) == 0
    assert "best of 5 steps" in capsys.readouterr().out
    steps = [line["step"] for line in read_log(Path("a/log.jsonl")) if line["kind"] == "train"]
    assert steps == [1, 2, 3, 4, 5]


def test_what_cannot_be_resumed_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(tmp_path / "none")]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["train", "--resume", str(run), "--step", "1"]) == 2
    assert "has no checkpoint of step 1" in capsys.readouterr().err


def test_evaluate_gives_the_number_of_the_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.json"
    assert main(["evaluate", "--run", str(run), "--report", str(report)]) == 0
    expected = json.loads((run / "evaluation.json").read_text())
    assert json.loads(report.read_text())["map"] == expected["map"]
    assert capsys.readouterr().out.startswith(f"voc12, 4 images, {expected['detections']} detections")


def test_the_metric_of_a_run_is_everywhere_its_map_is(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = "ap@area=small"
    words = ["--metric", name, "--protocol", "coco", "--run.report", "true"]
    assert main(["train", "--config", tiny, "--out", "a", *words]) == 0
    value = json.loads(Path("a/evaluation.json").read_text())["metrics"][name]["value"]
    assert f", {name} {100 * value:.1f} at step" in capsys.readouterr().out
    numbers = json.loads(Path("a/report.json").read_text())
    assert numbers["metrics"] == {name: value}
    validated = {line["step"]: line["metrics"][name] for line in read_log(Path("a/log.jsonl")) if line["kind"] == "val"}
    assert numbers["run"]["metrics"][name] == {"steps": list(validated), "values": list(validated.values())}
    assert "/metrics/ap@area=small" in Path("a/report.html").read_text()
    assert main(["evaluate", "--run", "a"]) == 0
    assert f"\n{name} {100 * value:.1f}" in capsys.readouterr().out
    words = ["--protocol", "voc12", "--metric", "f1", "--report", "found.html"]
    assert main(["evaluate", "--run", "a", *words]) == 0  # voc12 has no AP by size
    assert name not in capsys.readouterr().out
    assert set(json.loads(Path("found.json").read_text())["metrics"]) == {"f1"}


def test_a_run_has_the_same_page_by_evaluate_and_by_report(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "found.html"
    assert main(["evaluate", "--run", str(run), "--report", str(page)]) == 0
    assert main(["report", str(run), "--out", str(tmp_path / "again")]) == 0
    numbers = json.loads(page.with_suffix(".json").read_text())
    again = json.loads((tmp_path / "again/report.json").read_text())
    ways = numbers.pop("provenance"), again.pop("provenance")
    assert numbers == again
    hashes = [{file["sha256"] for file in way["files"].values()} for way in ways]  # options are those of two commands
    assert hashes[0] == hashes[1]
    assert numbers["maps"]["voc12"] == json.loads((run / "evaluation.json").read_text())["map"]
    assert numbers["run"]["steps"] == 5
    assert main(["report", str(run), str(run), "--out", str(tmp_path / "both")]) == 0
    compared = json.loads((tmp_path / "both/report.json").read_text())
    assert "did as well as" in compared["sentence"]
    assert "(cross-entropy, then mAP training)" in compared["sentence"]


def test_last_checkpoint_can_be_judged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--run", str(run), "--checkpoint", "last"]) == 0
    expected = next(line for line in read_log(run / "log.jsonl") if line["kind"] == "val" and line["step"] == 5)
    captured = capsys.readouterr()
    assert "step 5: 4 images of shapes val" in captured.err
    assert f"mAP {100 * expected['map']['voc12']:.1f}" in captured.out


def scores_of(run: Run) -> list[float]:
    """Of the detections in its first validation image."""
    with torch.no_grad():
        example = open_split(run.config.data, "val").example(0)
        scores: list[float] = run.model([example.image], [example.windows])[0]["scores"].tolist()
    return scores


@pytest.mark.parametrize(
    ("words", "candidates"),
    [([], 100), (["--candidates", "1"], 1), (["--candidates", "0"], None), (["--compress", "8,4"], 100)],
)
def test_evaluate_takes_compressed_layers_and_as_many_windows_as_it_is_told_and_the_run_stays(
    run: Path, tmp_path: Path, words: list[str], candidates: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    cut = "--compress" in words
    expected = open_run(run).compressed(8, 4) if cut else open_run(run)
    assert expected.model.candidates == 100
    expected.model.candidates = candidates
    saved = tmp_path / "found.json"
    assert main(["evaluate", "--run", str(run), "--save_detections", str(saved), *words]) == 0
    assert ("fc6 and fc7 cut to ranks 8 and 4" in capsys.readouterr().err) == cut
    found = json.loads(saved.read_text())
    assert [entry["score"] for entry in found if entry["image_id"] == found[0]["image_id"]] == scores_of(expected)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files


def test_a_run_is_explained_on_its_own_data_from_the_map_that_evaluate_prints(run: Path, tmp_path: Path) -> None:
    ladder, judged = tmp_path / "ladder.json", tmp_path / "judged.json"
    assert main(["explain", "--run", str(run), "--plot", str(tmp_path / "a.svg"), "--report", str(ladder)]) == 0
    assert main(["evaluate", "--run", str(run), "--resamples", "0", "--report", str(judged)]) == 0
    content = json.loads(ladder.read_text())
    assert content["rungs"][0]["map"] == pytest.approx(json.loads(judged.read_text())["map"], abs=1e-12)
    assert [rung["name"] for rung in content["rungs"]][-1] == "recall ceiling"
    assert (tmp_path / "a.svg").stat().st_size > 1000
    assert main(["explain", "--run", str(run), "--nms", "0.5"]) == 2


def test_a_run_is_judged_on_other_data_by_several_protocols(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "shapes:test,length=3", "--split", "test", "--compare", "voc12", "coco"]
    assert main(["evaluate", "--run", str(run), *words]) == 0
    captured = capsys.readouterr()
    assert "3 images of shapes test" in captured.err
    assert "voc12 0." in captured.out


def half_an_object(folder: Path) -> tuple[str, str]:
    """A VOC folder with one object, and windows, of which one has half of it and one nothing."""
    names = load_dataset("shapes", "val").class_names
    root = write_voc(folder / "V", {"a": [(names[0], 11, 6, 30, 25)]}, {"all": "a"})
    (root / "classes.txt").write_text("\n".join(names))
    np.savez(folder / "w.npz", ids=["a"], offsets=[0, 2], boxes=[[10, 5, 30, 15], [35, 5, 55, 30]])  # half; none
    return str(root), str(folder / "w.npz")


def test_voc_data_is_counted_as_in_training_unless_told_otherwise(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default in its own convention; in that of the files, numbers are those of the files."""
    root, windows = half_an_object(tmp_path)
    common = ["--run", str(run), "--data", root, "--windows", windows, "--protocol", "voc12"]
    shares = {}
    for boxes in ([], ["--boxes", "converted"], ["--boxes", "file"]):
        saved = tmp_path / "found"
        assert main(["evaluate", *common, *boxes, "--save_detections", str(saved)]) == 0
        shares[" ".join(boxes)] = capsys.readouterr().out.splitlines()[2].split()[4]  # recall of the first class
    assert shares == {"": "100.0", "--boxes converted": "100.0", "--boxes file": "0.0"}


def test_one_run_has_one_number_however_it_is_asked_for(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the run or from its saved detections, alone or in a comparison, with or without naming the default."""
    root, windows = half_an_object(tmp_path)
    by_run = ["--run", str(run), "--windows", windows]
    save = ["--save_detections", str(tmp_path / "found")]
    assert main(["evaluate", *by_run, "--data", root, *save]) == 0
    assert main(["evaluate", *by_run, "--data", root, *save[:1], f"{save[1]}.json"]) == 0
    capsys.readouterr()
    ways = [by_run, ["--detections", save[1]], ["--detections", f"{save[1]}.json"]]
    report = tmp_path / "report.json"
    for protocol in ("voc12", "voc12-devkit", "coco"):
        numbers = set()
        for way, boxes in product(ways, ([], ["--boxes", "converted"])):
            common = ["evaluate", *way, "--data", root, *boxes, "--report", str(report)]
            assert main([*common, "--protocol", protocol]) == 0
            numbers.add(json.loads(report.read_text())["map"])
            assert main([*common, "--compare", protocol, "voc07"]) == 0
            numbers.add(json.loads(report.read_text())["results"][0]["map"])
        assert len(numbers) == 1, (protocol, numbers)
        assert numbers != {0.0}  # half an object is found at a threshold of one half


def test_images_nobody_looked_at_are_not_missed(tmp_path: Path) -> None:
    dataset = load_dataset(write_coco(tmp_path / "C", coco_content()))
    assert len(dataset) == 2
    counts = {n: JudgedInput(only_images(dataset, 0, n), NOTHING).evidence().objects.images.tolist() for n in (1, 2)}
    assert counts[1] == [image for image in counts[2] if image == 0] != counts[2]


@pytest.mark.parametrize("kind", ["voc", "coco", "shapes"])
def test_images_from_the_middle_of_a_split_keep_their_objects(kind: str, tmp_path: Path) -> None:
    dataset = {
        "voc": lambda: load_dataset(write_voc(tmp_path / "V")),
        "coco": lambda: load_dataset(write_coco(tmp_path / "C")),
        "shapes": lambda: load_dataset("shapes:val,length=2"),
    }[kind]()
    assert dataset.index_of(dataset.ids[1]) == 1
    part = only_images(dataset, 1, 1)
    found, expected = (JudgedInput(d, NOTHING).evidence() for d in (part, dataset))
    assert found.image_ids == expected.image_ids[1:]
    assert np.array_equal(found.objects.boxes, expected.objects.boxes[expected.objects.images == 1])
    assert part.index_of(dataset.ids[1]) == 0
    assert np.array_equal(np.asarray(part.image(0)), np.asarray(dataset.image(1)))


BAD = {
    "two sources": (["--detections", "x.json"], "but got both"),
    "split without data": (["--split", "test"], "split: needs --data"),
    "windows without data": (["--windows", "w.npz"], "windows: needs --data"),
    "names": (["--class_names", "a", "b"], "class_names: is not for --run"),
    "checkpoint": (["--checkpoint", "bst"], "best, last or a step but got 'bst'"),
    "missing step": (["--checkpoint", "1"], "has no checkpoint of step 1"),
    "protocol": (["--protocol", "voc7"], "Did you mean 'voc07'"),
    "one rank": (["--compress", "8"], "compress: expected the ranks of fc6 and fc7, such as 1024,256, but got '8'"),
    "ranks in words": (["--compress", "8,few"], "compress: expected the ranks of fc6 and fc7"),
    "no rank": (["--compress", "0,4"], "the rank of fc6 to be a whole number >= 1"),
    "large rank": (["--compress", "4,4096"], "the rank of fc7 to be at most"),
    "fewer candidates than none": (["--candidates=-1"], "candidates: expected a number >= 0 but got -1"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_named(case: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, message = BAD[case]
    assert main(["evaluate", "--run", str(run), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("words", ["save_detections y.json", "compress 8,4", "candidates 8", "windows w.npz"])
def test_what_only_a_run_can_do_is_named(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, value = words.split()
    assert main(["evaluate", "--detections", "x.json", "--data", "shapes", f"--{name}", value]) == 2
    needed = "--run or --model" if name == "save_detections" else "--run"
    assert capsys.readouterr().err == f"stepgrad: {name}: needs {needed}.\n"


def test_data_of_other_classes_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_voc(tmp_path / "V")
    np.savez(tmp_path / "w.npz", ids=["a", "b"], offsets=[0, 1, 2], boxes=[[0, 0, 9, 9]] * 2)
    assert main(["evaluate", "--run", str(run), "--data", str(root), "--windows", str(tmp_path / "w.npz")]) == 2
    assert "expected the classes of the run, disk, ring" in capsys.readouterr().err


def test_detect_takes_compressed_layers(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_dataset("shapes", "test").image(0).save(tmp_path / "p.png")
    np.savez(tmp_path / "w.npz", ids=["p"], offsets=[0, 2], boxes=[[0, 0, 50, 60], [70, 80, 150, 150]])
    words = ["--run", str(run), "--windows", str(tmp_path / "w.npz"), "--top", "5"]
    scores = []
    for name, options in {"whole": [], "cut": ["--compress", "1,1"]}.items():
        assert main(["detect", *words, "--out", str(tmp_path / name), *options, str(tmp_path / "p.png")]) == 0
        assert ("cut to ranks 1 and 1" in capsys.readouterr().out) == (name == "cut")
        (entry,) = json.loads((tmp_path / name / "detections.json").read_text())["images"]
        scores.append([found["score"] for found in entry["detections"]])
    assert scores[0] != scores[1]


def test_detect_finds_windows_and_objects_in_a_picture(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")
    load_dataset("shapes", "test").image(0).save(tmp_path / "p.png")
    out = tmp_path / "out"
    assert main(["detect", "--run", str(run), str(tmp_path / "p.png"), "--top", "3", "--out", str(out)]) == 0
    (entry,) = json.loads((out / "detections.json").read_text())["images"]
    assert (entry["width"], entry["height"]) == (160, 160)
    scores = [found["score"] for found in entry["detections"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert (out / "p.png").stat().st_size > 0


def test_without_opencv_nothing_is_downloaded_or_announced(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_voc(Path("V"), splits={"train": "a", "val": "b"})
    monkeypatch.setitem(sys.modules, "cv2.ximgproc", None)
    monkeypatch.setattr(engine, "build_model", lambda *_: pytest.fail("a model was built, perhaps from a download"))
    assert main(["train", "--config", tiny, "--data.path", "V", "--out", "out"]) == 2
    shown = capsys.readouterr()
    assert install_command(["detector"]) in shown.err
    assert "windows of" not in shown.out + shown.err
