"""The table of everything that reads files of other people: a name, valid files, a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest import mock

from tests.fuzz import seeds
from tests.fuzz.damage_bytes import Files


@dataclass(frozen=True)
class Reader:
    """One way into stepgrad."""

    name: str
    seed: Callable[[], Files]
    call: Callable[[Path], object]
    """Given the folder of the files."""


def _look_at(dataset: object) -> None:
    from stepgrad.data.base import DetectionDataset

    assert isinstance(dataset, DetectionDataset)
    for index in range(len(dataset)):
        dataset.target(index)
        dataset[index]
        dataset.fingerprint(index)
        dataset.source(index)


def _dataset(name: str, split: str | None = None) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        from stepgrad.data import load_dataset

        _look_at(load_dataset(folder / name, split))

    return read


def _without_pictures(folder: Path) -> None:
    from stepgrad.data import load_dataset

    dataset = load_dataset(folder, need_images=False, degenerate="drop")
    for index in range(len(dataset)):
        dataset.target(index)


def _doctor(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        from stepgrad.data.doctor import examine

        [str(problem) for problem in examine(folder / name).problems]

    return read


def _yolo(folder: Path) -> None:
    from stepgrad.data import load_dataset

    _look_at(load_dataset(folder / "data.yaml", "train"))
    _look_at(load_dataset(folder, degenerate="drop"))


def _convert(to: Literal["yolo", "voc", "coco"]) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        from stepgrad.data import load_dataset
        from stepgrad.data.convert import convert

        data = next((folder / name for name in ("VOC", "coco.json") if (folder / name).exists()), folder)
        place = folder / "out"
        convert(data, place / "made", to)
        load_dataset(place / "made", "train")

    return read


def _judge(folder: Path, found: str, data: str, split: str | None) -> None:
    """Read, evaluate under two protocols, and write what was read to both formats."""
    from stepgrad.cli.judged import read, save_detections
    from stepgrad.evaluation.result import evaluate_under
    from stepgrad.metric.protocol import get_protocol

    judged = read(str(folder / found), str(folder / data), split, None, "error", "error")
    for name, continuous in (("voc07", False), ("coco", True)):
        str(evaluate_under(judged.evidence(continuous), get_protocol(name)))
    for place in ("out/written.json", "out/written"):
        save_detections(str(folder / place), judged.detections.boxes(False), judged.dataset)


def _coco_results(folder: Path) -> None:
    _judge(folder, "found.json", "coco.json", None)


def _tasks(folder: Path) -> None:
    """Judge whichever tasks the files have; one that cannot be read does not keep the others from being tried."""
    from stepgrad.cli.judged import read
    from stepgrad.data.doctor import examine
    from stepgrad.errors import StepgradError
    from stepgrad.evaluation.compare import compare
    from stepgrad.metric.protocol import get_protocol

    refused: StepgradError | None = None
    for task in ("oriented",) if (folder / "labelTxt").exists() else ("masks", "keypoints", "oriented"):
        home = folder / task if (folder / task).is_dir() else folder
        found = next((home / name for name in ("found.json", "found") if (home / name).exists()), home / "found.json")
        data = next((home / name for name in ("coco.json", "data.yaml", "labelTxt") if (home / name).exists()), home)
        try:
            made = read(str(found), str(data), None, None, "error", "count", task=task)  # type: ignore[arg-type]
            str(compare(made.evidence(), [get_protocol("coco"), get_protocol("ultralytics")]))
        except StepgradError as error:
            refused = error
        [str(problem) for problem in examine(data, need_images=False).problems]
    if refused is not None:
        raise refused


def _coco_numbers(folder: Path) -> None:
    from stepgrad.cli.judged import read
    from stepgrad.evaluation.coco_numbers import coco_numbers

    judged = read(str(folder / "found.json"), str(folder / "coco.json"), None, None, "drop", "count")
    str(coco_numbers(judged.evidence(True)))


def _voc_results(folder: Path) -> None:
    _judge(folder, "found", "VOC", "train")


def _windows(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        from stepgrad.data import load_dataset, load_proposals

        proposals = load_proposals(folder / name)
        for image_id in proposals:
            proposals[image_id]
        load_proposals(folder / name, load_dataset(folder / "VOC", "train"))

    return read


def _windows_doctor(folder: Path) -> None:
    from stepgrad.data.doctor import examine

    name = next(name for name in ("windows", "windows.npz", "windows.mat") if (folder / name).exists())
    [str(problem) for problem in examine(folder / "VOC", proposals=folder / name).problems]


def _config(folder: Path) -> None:
    from stepgrad.cli.configs import config_text, read_config

    config_text(read_config([str(folder / "config.yaml")], {}))


def _log(folder: Path) -> None:
    from stepgrad.detector.training.run_log import read_log
    from stepgrad.report.training import summary

    summary(read_log(folder / "log.jsonl"), "voc12")


def _run(checkpoint: str) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        from stepgrad.detector.training.run_folder import open_run

        open_run(folder / "run", checkpoint)

    return read


def _checkpoints(folder: Path) -> None:
    from stepgrad.detector.training.run_folder import RunFolder, State

    found = RunFolder(folder / "run").checkpoint()
    if found is not None:
        State.of(found)


def _weights(folder: Path) -> None:
    from stepgrad.detector.backbones import build_backbone
    from stepgrad.detector.head import Head
    from stepgrad.detector.weights import fill_weights

    backbone, head = build_backbone("tiny"), Head(128, 2, 3, 0.0)
    for name in ("weights.pt", "weights.safetensors"):
        str(fill_weights(backbone, head, folder / name))


def _own_weights(folder: Path) -> None:
    from stepgrad.detector.training.build import own_weights

    own_weights(str(folder / "best.safetensors"))


def _features(folder: Path) -> None:
    from stepgrad.detector.training.features import FeatureCache

    FeatureCache(folder / "features", "0" * 64).get("key")


def _pictures(folder: Path) -> None:
    from stepgrad.cli.detect import find_pictures
    from stepgrad.data.images import decode, image_to_tensor
    from stepgrad.data.problems import Problem, raise_errors
    from stepgrad.detector.pictures import read_upright

    seen = {path: decode(path) for path in find_pictures([str(folder)])}
    for path, picture in seen.items():
        if not isinstance(picture, Problem):
            image_to_tensor(read_upright(path))
    for picture in seen.values():
        if isinstance(picture, Problem):
            raise_errors(picture)


def _record(folder: Path) -> None:
    """With a digest that is always right: damage shall get past it."""
    from stepgrad.report import drawings

    with mock.patch.object(drawings, "_record_digest", return_value="right"):
        drawings.DetectionsFolder(folder, [])._free_name("a", ".png")


READERS = {
    reader.name: reader
    for reader in (
        Reader("voc", seeds.voc, _dataset("VOC", "train")),
        Reader("voc-drop", seeds.voc, _without_pictures),
        Reader("voc-doctor", seeds.voc, _doctor("VOC")),
        Reader("coco", seeds.coco, _dataset("coco.json")),
        Reader("coco-drop", seeds.coco, _without_pictures),
        Reader("coco-doctor", seeds.coco, _doctor("coco.json")),
        Reader("yolo", seeds.yolo, _yolo),
        Reader("yolo-doctor", seeds.yolo, _doctor("data.yaml")),
        Reader("convert-yolo-to-voc", seeds.yolo, _convert("voc")),
        Reader("convert-coco-to-yolo", seeds.coco, _convert("yolo")),
        Reader("convert-voc-to-coco", seeds.voc, _convert("coco")),
        Reader("coco-results", seeds.coco_results, _coco_results),
        Reader("coco-numbers", seeds.coco_results, _coco_numbers),
        Reader("voc-results", seeds.voc_results, _voc_results),
        Reader("task-results", seeds.task_results, _tasks),
        Reader("yolo-tasks", seeds.yolo_tasks, _tasks),
        Reader("dota", seeds.dota, _tasks),
        Reader("windows-npz", seeds.packed_windows, _windows("windows.npz")),
        Reader("windows-mat", seeds.mat_windows, _windows("windows.mat")),
        Reader("windows-cache", seeds.cached_windows, _windows("windows")),
        Reader("windows-doctor", seeds.cached_windows, _windows_doctor),
        Reader("config", seeds.config, _config),
        Reader("log", seeds.log, _log),
        Reader("run-best", seeds.run, _run("best")),
        Reader("run-last", seeds.run, _run("last")),
        Reader("checkpoints", seeds.run, _checkpoints),
        Reader("weights", seeds.weights, _weights),
        Reader("own-weights", seeds.own_weights, _own_weights),
        Reader("features", seeds.features, _features),
        Reader("pictures", seeds.pictures, _pictures),
        Reader("record", seeds.record, _record),
    )
}
