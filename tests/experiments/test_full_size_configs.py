"""The full-size rows: all can be read, say what their names say, and train on folders laid out as the official ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepgrad.cli import main
from stepgrad.cli.configs import read_config
from stepgrad.data import (
    VOC_CLASSES,
    PackedProposals,
    ShapesDataset,
    devkit_from_continuous,
    import_proposals,
    load_dataset,
)
from stepgrad.detector.training.config import TrainConfig
from tests.data.builders import voc_xml

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "full_size"
DATA = {
    "voc07": ("voc07", "VOC2007/trainval", "VOC2007/test"),
    "voc0712": ("voc07", "VOC2007/trainval+VOC2012/trainval", "VOC2007/test"),
    "voc12": ("voc12", "VOC2012/train", "VOC2012/val"),
}
LONGEST_SIDES = {"alexnet": 1000, "vgg16": 600}
LOSSES = {"nll": "nll", "nll-then-map": "nll-then-map", "paper": "map"}
ROWS = [f"{data}-{backbone}-{loss}" for data in DATA for backbone in LONGEST_SIDES for loss in LOSSES]
LISTS = {"VOC2007": ("trainval", "test"), "VOC2012": ("train", "val")}


def row(name: str) -> TrainConfig:
    return read_config([str(FOLDER / f"{name}.yaml")], {})


def test_every_row_has_a_file_and_a_line_and_every_file_is_a_row() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(ROWS)
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in ROWS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_what_its_name_says_and_tests_only_where_a_phase_ends(name: str) -> None:
    data, backbone, loss = name.split("-", 2)
    config = row(name)
    assert (config.protocol, config.data.train, config.data.val) == DATA[data]
    assert (config.model.backbone, config.model.weights) == (backbone, "imagenet")
    assert (config.model.shortest_side, config.model.longest_side) == (600, LONGEST_SIDES[backbone])
    assert (config.loss, config.score) == (LOSSES[loss], "raw" if loss == "paper" else "logprob")
    assert config.data.flip
    assert config.run.eval_every is not None
    assert config.run.eval_every > config.total_steps


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("backbone", LONGEST_SIDES)
def test_rows_differ_by_their_loss_alone(data: str, backbone: str) -> None:
    nll, both, paper = (row(f"{data}-{backbone}-{loss}") for loss in LOSSES)
    assert (nll.nll, nll.model) == (both.nll, both.model)
    assert nll.data == both.data == paper.data
    assert nll.run == both.run == paper.run
    assert paper.map.steps * paper.map.images == nll.nll.steps * nll.nll.images


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """VOC2007 and VOC2012, laid out as the official ones, and windows for them: pictures of `shapes` with VOC's classes."""
    root = tmp_path_factory.mktemp("official")
    drawn = ShapesDataset("train", length=12, size=96)
    numbers = iter(range(len(drawn)))
    for year, names in LISTS.items():
        devkit = root / "VOCdevkit" / year
        for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (devkit / folder).mkdir(parents=True)
        ids = {name: [_write_image(devkit, drawn, next(numbers)) for _ in range(3)] for name in names}
        ids.setdefault("trainval", [i for part in ids.values() for i in part])
        for name, listed in ids.items():
            (devkit / "ImageSets/Main" / f"{name}.txt").write_text("\n".join(listed) + "\n")
        dataset = load_dataset(devkit)
        windows = [drawn.windows(int(i)).numpy() for i in dataset.ids]
        offsets = np.cumsum([0, *map(len, windows)])
        packed = PackedProposals(dataset.ids, offsets, np.concatenate(windows), "shapes")
        import_proposals(packed, dataset, root / "windows" / year)
    return root / "VOCdevkit", root / "windows"


def _write_image(devkit: Path, drawn: ShapesDataset, number: int) -> str:
    target, name = drawn.target(number), f"{number:06}"
    corners = devkit_from_continuous(target["boxes"].numpy()).round().astype(int).tolist()
    labels = [VOC_CLASSES[label] for label in target["labels"].tolist()]
    objects: list[Any] = [(label, *box) for label, box in zip(labels, corners, strict=True)]
    (devkit / "Annotations" / f"{name}.xml").write_text(voc_xml(objects, (drawn.size, drawn.size)))
    drawn.image(number).save(devkit / "JPEGImages" / f"{name}.jpg", quality=95)
    return name


SMALLER = (
    *("--model.weights", "null"),  # torchvision's would be downloaded
    *("--model.shortest_side", "64", "--model.longest_side", "64", "--data.max_windows", "12"),
    *("--nll.steps", "2", "--map.steps", "2", "--run.log_every", "1", "--run.report", "false"),
)


def train_two_steps(name: str, tree: tuple[Path, Path], out: Path, *words: str) -> None:
    """Run the row's own command with the options above: two steps of each phase with its number of images, then the test."""
    devkit, windows = tree
    given = ["--data.path", str(devkit), "--data.windows", str(windows), "--out", str(out)]
    assert main(["train", "--config", str(FOLDER / f"{name}.yaml"), *given, *SMALLER, *words]) == 0
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    phases = {phase.name: phase.config for phase in row(name).phases()}
    steps = [line for line in lines if line["kind"] == "train"]
    expected = [(phase, config.images) for phase, config in phases.items() for _ in range(2)]
    assert [(line["phase"], line["images"]) for line in steps] == expected
    assert all(math.isfinite(line["loss"]) and line["gradient_norm"] > 0 for line in steps)
    assert [line["step"] for line in lines if line["kind"] == "val"] == [2 * (i + 1) for i in range(len(phases))]


def test_a_row_of_both_years_trains_for_two_steps_of_each_phase(tree: tuple[Path, Path], tmp_path: Path) -> None:
    train_two_steps("voc0712-alexnet-nll-then-map", tree, tmp_path / "run", "--model.hidden", "16")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ROWS)
def test_every_row_trains_for_two_steps_at_full_width(name: str, tree: tuple[Path, Path], tmp_path: Path) -> None:
    train_two_steps(name, tree, tmp_path / "run")
    for file in tmp_path.rglob("*.safetensors"):  # up to gigabytes a row
        file.unlink()
