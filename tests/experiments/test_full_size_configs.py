"""The full-size rows: all can be read, say what their names say, and train on folders laid out as the official ones."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepgrad.cli import main
from stepgrad.cli.configs import presets, read_config
from stepgrad.data import (
    VOC_CLASSES,
    PackedProposals,
    ShapesDataset,
    devkit_from_continuous,
    import_proposals,
    load_dataset,
)
from stepgrad.detector.training.config import PhaseConfig, TrainConfig
from tests.data.builders import voc_xml

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "full_size"
DATA = {
    "voc07": ("voc07", "VOC2007/trainval", "VOC2007/test"),
    "voc0712": ("voc07", "VOC2007/trainval+VOC2012/trainval", "VOC2007/test"),
    "voc12": ("voc12", "VOC2012/train", "VOC2012/val"),
}
BACKBONES = {"alexnet": 1000, "vgg16": 600}
"""And the longest side of an image."""
LOSSES = {"nll": "nll", "nll-then-map": "nll-then-map", "paper": "map"}
ROWS = [f"{data}-{backbone}-{loss}" for data in DATA for backbone in BACKBONES for loss in LOSSES]
LISTS = {"VOC2007": ("trainval", "test"), "VOC2012": ("train", "val")}


@cache
def row(name: str) -> TrainConfig:
    return read_config([str(FOLDER / f"{name}.yaml")], {})


def images_shown(phase: PhaseConfig) -> int:
    return phase.steps * phase.images


def test_every_row_has_a_file_and_every_file_is_a_row() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(ROWS)


def test_readme_has_every_row() -> None:
    text = (FOLDER / "README.md").read_text()
    assert [name for name in ROWS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_what_its_name_says(name: str) -> None:
    data, backbone, loss = name.split("-", 2)
    config = row(name)
    assert (config.protocol, config.data.train, config.data.val) == DATA[data]
    assert (config.model.backbone, config.model.weights) == (backbone, "imagenet")
    assert (config.model.shortest_side, config.model.longest_side) == (600, BACKBONES[backbone])
    assert config.loss == LOSSES[loss]
    assert config.score == ("raw" if loss == "paper" else "logprob")
    assert config.data.flip


@pytest.mark.parametrize("name", ROWS)
def test_test_images_are_looked_at_only_where_a_phase_ends(name: str) -> None:
    config = row(name)
    assert config.run.eval_every is not None
    assert config.run.eval_every > config.total_steps
    assert config.run.save_every is not None
    assert config.run.save_every < min(phase.config.steps for phase in config.phases())


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_rows_differ_by_their_loss_alone(data: str, backbone: str) -> None:
    nll, both, paper = (row(f"{data}-{backbone}-{loss}") for loss in LOSSES)
    assert nll.nll == both.nll
    assert nll.data == both.data == paper.data
    assert nll.model == both.model
    assert nll.run == both.run == paper.run
    assert images_shown(paper.map) == images_shown(nll.nll)


@pytest.mark.parametrize("data", DATA)
def test_phases_are_those_of_the_presets(data: str) -> None:
    baseline, paper, tuned = (read_config([preset], {}) for preset in ("fast-rcnn", "paper", "voc07"))
    steps = 60_000 if data == "voc0712" else 40_000
    assert vars(row(f"{data}-alexnet-nll").nll) == {**vars(baseline.nll), "steps": steps}
    for backbone, chunk in (("alexnet", None), ("vgg16", 4)):
        theirs, ours = row(f"{data}-{backbone}-paper"), row(f"{data}-{backbone}-nll-then-map")
        assert vars(theirs.map) == {**vars(paper.map), "steps": steps // 8, "chunk_images": chunk}
        assert theirs.map_loss == paper.map_loss
        assert vars(ours.map) == {**vars(tuned.map), "chunk_images": chunk}
        assert ours.map_loss == tuned.map_loss


def test_no_row_or_part_hides_a_preset() -> None:
    """`extends: paper` is the preset, wherever it stands; files have a suffix."""
    assert not {path.name for path in FOLDER.rglob("*")} & set(presets())


def write_devkit(root: Path, images: int) -> Path:
    """VOC2007 and VOC2012, laid out as the official ones: pictures of `shapes`, under the names of VOC's classes."""
    drawn = ShapesDataset("train", length=2 * images * len(LISTS), size=96)
    numbers = iter(range(len(drawn)))
    for year, names in LISTS.items():
        for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (root / year / folder).mkdir(parents=True)
        ids = {name: [_write_image(root / year, drawn, next(numbers)) for _ in range(images)] for name in names}
        for name, listed in {
            **ids,
            "trainval": ids.get("trainval") or [i for part in ids.values() for i in part],
        }.items():
            (root / year / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(listed) + "\n")
    return root


def _write_image(root: Path, drawn: ShapesDataset, number: int) -> str:
    target, name = drawn.target(number), f"{number:06}"
    corners = devkit_from_continuous(target["boxes"].numpy()).round().astype(int).tolist()
    labels = [VOC_CLASSES[label] for label in target["labels"].tolist()]
    objects: list[Any] = [(label, *box) for label, box in zip(labels, corners, strict=True)]
    (root / "Annotations" / f"{name}.xml").write_text(voc_xml(objects, (drawn.size, drawn.size)))
    drawn.image(number).save(root / "JPEGImages" / f"{name}.jpg", quality=95)
    return name


def write_windows(devkit: Path, folder: Path) -> Path:
    """A folder for each year with the windows that `shapes` brings."""
    for year in LISTS:
        dataset = load_dataset(devkit / year)
        drawn = ShapesDataset("train", length=1 + max(int(i) for i in dataset.ids), size=96)
        windows = [drawn.windows(int(i)).numpy() for i in dataset.ids]
        offsets = np.cumsum([0, *(len(each) for each in windows)])
        packed = PackedProposals(dataset.ids, offsets, np.concatenate(windows), "shapes")
        import_proposals(packed, dataset, folder / year)
    return folder


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A VOCdevkit and windows for it."""
    root = tmp_path_factory.mktemp("official")
    devkit = write_devkit(root / "VOCdevkit", images=3)
    return devkit, write_windows(devkit, root / "windows")


SMALLER = (
    *("--model.weights", "null"),  # torchvision's would be downloaded
    *("--model.shortest_side", "64", "--model.longest_side", "64", "--data.max_windows", "12"),
    *("--nll.steps", "2", "--map.steps", "2", "--run.log_every", "1", "--run.report", "false"),
)


def train_two_steps(name: str, tree: tuple[Path, Path], out: Path, *words: str) -> list[dict[str, Any]]:
    """The row's own command with the options above; returns the lines of its log."""
    devkit, windows = tree
    given = ["--data.path", str(devkit), "--data.windows", str(windows), "--out", str(out)]
    assert main(["train", "--config", str(FOLDER / f"{name}.yaml"), *given, *SMALLER, *words]) == 0
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def check_log(lines: list[dict[str, Any]], config: TrainConfig) -> None:
    """Two steps of each phase with the row's own number of images, then the test: once a phase."""
    phases = {phase.name: phase.config for phase in config.phases()}
    steps = [line for line in lines if line["kind"] == "train"]
    assert [line["phase"] for line in steps] == [name for name in phases for _ in range(2)]
    assert [line["images"] for line in steps] == [phase.images for phase in phases.values() for _ in range(2)]
    assert all(math.isfinite(line["loss"]) and line["gradient_norm"] > 0 for line in steps)
    tested = [line for line in lines if line["kind"] == "val"]
    assert [line["step"] for line in tested] == [2 * (i + 1) for i in range(len(phases))]
    assert all(set(line["map"]) == {config.protocol, *config.also_report} for line in tested)


def test_a_row_of_both_years_trains_for_two_steps_of_each_phase(tree: tuple[Path, Path], tmp_path: Path) -> None:
    name = "voc0712-alexnet-nll-then-map"
    lines = train_two_steps(name, tree, tmp_path / "run", "--model.hidden", "16")
    check_log(lines, row(name))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ROWS)
def test_every_row_trains_for_two_steps_at_full_width(name: str, tree: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    check_log(train_two_steps(name, tree, out), row(name))
    for file in out.rglob("*.safetensors"):  # up to gigabytes a row
        file.unlink()


@pytest.mark.nightly
def test_a_row_goes_on_from_the_finished_baseline(tree: tuple[Path, Path], tmp_path: Path) -> None:
    small = ("--model.hidden", "16")
    train_two_steps("voc07-alexnet-nll", tree, tmp_path / "nll", *small)
    words = ("--model.weights", str(tmp_path / "nll"), "--nll.steps", "0")
    lines = train_two_steps("voc07-alexnet-nll-then-map", tree, tmp_path / "map", *small, *words)
    assert [line["phase"] for line in lines if line["kind"] == "train"] == ["map", "map"]
