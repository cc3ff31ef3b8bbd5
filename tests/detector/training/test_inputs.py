"""Which images a step sees, and what they look like in a mirror."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from stepgrad.data import ShapesDataset
from stepgrad.detector.training.config import from_dict
from stepgrad.detector.training.engine import train
from stepgrad.detector.training.inputs import Order, mirrored, mix, open_data
from stepgrad.detector.training.progress import QuietProgress
from stepgrad.errors import ConfigError, DataError, StepgradError
from tests.data.builders import write_voc


def test_every_pair_comes_once_an_epoch_and_epochs_differ() -> None:
    order = Order(count=7, flip=True, seed=3)
    epochs = [[order.entry(place) for place in range(14 * epoch, 14 * epoch + 14)] for epoch in range(3)]
    assert all(len(set(epoch)) == 14 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_sequence_depends_on_the_seed_and_not_on_what_was_asked_before() -> None:
    order = Order(count=5, flip=False, seed=1)
    whole = [order.entry(place) for place in range(23)]
    assert [order.entry(place) for place in reversed(range(23))] == whole[::-1]
    assert not any(flipped for _, flipped in whole)
    assert [Order(count=5, flip=False, seed=2).entry(place) for place in range(23)] != whole


def test_a_mirror_image_twice_is_the_image() -> None:
    example = open_data("shapes", "val", limit=2).example(1)
    twice = mirrored(mirrored(example, 160), 160)
    assert torch.equal(twice.image, example.image)
    torch.testing.assert_close(twice.windows, example.windows)
    torch.testing.assert_close(twice.target["boxes"], example.target["boxes"])


def test_the_content_of_a_window_moves_with_it() -> None:
    example = open_data("shapes", "val", limit=1).example(0)
    seen = mirrored(example, 160)
    x1, y1, x2, y2 = (int(v) for v in example.windows[0].round())
    u1, _, u2, _ = (int(v) for v in seen.windows[0].round())
    assert torch.equal(seen.image[:, y1:y2, u1:u2], example.image[:, y1:y2, x1:x2].flip(-1))


def test_a_limit_of_windows_keeps_a_fixed_choice_of_them() -> None:
    few = open_data("shapes", "train", limit=3, max_windows=20)
    windows = ShapesDataset("train").windows(2)
    assert few.windows(2).shape == (20, 4)
    assert torch.equal(few.windows(2), open_data("shapes", "train", max_windows=20).windows(2))
    assert all((windows == window).all(dim=1).any() for window in few.windows(2))


def test_a_part_of_a_split_holds_the_images_of_its_numbers() -> None:
    part, whole = open_data("shapes", "val[3:5]"), open_data("shapes", "val")
    assert len(part) == 2
    assert torch.equal(part.example(1).image, whole.example(4).image)
    windows, target = whole.facts(3)
    assert torch.equal(part.windows(0), windows)
    assert torch.equal(part.example(0).target["boxes"], target["boxes"])
    assert part.fingerprint(0) == whole.fingerprint(3)


def test_a_part_without_images_is_refused() -> None:
    with pytest.raises(DataError, match=r"has 500 images, none of them in 'val\[500:\]'"):
        open_data("shapes", "val[500:]")
    with pytest.raises(ConfigError, match="at least one image"):
        open_data("shapes", "val", limit=0)


def test_seeds_of_neighbouring_steps_and_streams_are_all_different() -> None:
    seeds = {mix(seed, step, stream) for seed in range(4) for step in range(200) for stream in range(4)}
    assert len(seeds) == 4 * 200 * 4


class Listening(QuietProgress):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stages: list[tuple[str, int | None]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def stage(self, what: str, total: int | None = None) -> Iterator[Any]:
        self.stages.append((what, total))
        yield lambda: None


@pytest.fixture
def voc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A VOC folder without windows, seen from a folder to keep them in."""
    pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # few small images need no processes
    return str(write_voc(tmp_path / "V"))


def test_only_the_images_in_use_are_searched_and_only_once(voc: str) -> None:
    first, second = Listening(), Listening()
    part = open_data(voc, "train[1:]", progress=first)
    assert first.stages == [("searching windows", 1)]
    assert [path.name for path in Path("proposals/V-fast").iterdir()] == ["b.npz"]
    assert len(part.example(0).windows) > 0
    again = open_data(voc, "train[1:]", progress=second)
    assert (second.said, second.stages) == ([], [])
    assert torch.equal(again.windows(0), part.windows(0))


def test_named_windows_are_needed_for_the_images_in_use_only(voc: str) -> None:
    open_data(voc, "train[1:]")
    assert len(open_data(voc, "train[1:]", "proposals/V-fast").windows(0)) > 0
    with pytest.raises(DataError, match="has no windows for 1 of the 2 images"):
        open_data(voc, "train", "proposals/V-fast")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", {"weights": "no/such.pt"}, "no such weights file"),
        ("data", {"val_windows": "no/such.npz"}, "no such file"),
        ("data", {"val_path": "shapes"}, "Expected the same classes"),
        ("run", {"accelerator": "cud"}, "cannot train on 'cud'"),
    ],
)
def test_whatever_is_cheap_to_check_is_checked_before_windows_are_searched(
    voc: str, key: str, value: dict[str, str], message: str
) -> None:
    model = {"backbone": "tiny", "weights": None, "hidden": 8}
    content: dict[str, Any] = {"data": {"path": voc, "train": "train", "val": "train"}, "model": model}
    content["run"] = {"accelerator": "cpu"}
    content[key] = {**content[key], **value}
    if "val_path" in value:
        content["data"]["val"] = "val"
    with pytest.raises(StepgradError, match=message):
        train(from_dict(content), "run")
    assert not Path("proposals").exists()
    assert not Path("run").exists()
