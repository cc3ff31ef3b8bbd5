"""`stepgrad detect` as a user sees it, with a detector whose answers are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stepgrad.cli import main
from stepgrad.detector.pictures import search_windows
from stepgrad.detector.training import run_folder
from stepgrad.detector.training.config import from_dict
from stepgrad.extras import install_command

SCORES = [0.9, 0.6, 0.2]


class FakeModel:
    """Finds the first three windows, as classes 0, 1, 0."""

    def __init__(self) -> None:
        self.windows: list[torch.Tensor] = []
        self.images: list[torch.Tensor] = []

    def __call__(self, images: list[torch.Tensor], proposals: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        self.images += images
        self.windows += proposals
        boxes = proposals[0][:3]
        return [
            {
                "boxes": boxes,
                "labels": torch.tensor([0, 1, 0])[: len(boxes)],
                "scores": torch.tensor(SCORES)[: len(boxes)],
            }
        ]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run of probabilities without thresholds; tests change it."""
    opened = SimpleNamespace(
        folder=Path("runs/a"),
        config=from_dict({"loss": "nll"}),
        model=FakeModel(),
        class_names=("cat", "dog"),
        step=7,
        thresholds={},
        asked=[],
    )
    monkeypatch.setattr(run_folder, "open_run", lambda *words: (opened.asked.append(words), opened)[1])
    return opened


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a picture `a.png` and windows for it, to work in."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (60, 40), "gray").save("a.png")
    boxes = [[0, 0, 20, 20], [10, 10, 40, 30], [5, 5, 50, 35]]
    np.savez("w.npz", ids=["a", "b"], offsets=[0, 3, 6], boxes=boxes * 2)
    return tmp_path


def detect(*words: str) -> int:
    return main(["detect", *words, "--run", "runs/a", "--windows", "w.npz"])


def pixels(path: str) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


def record(folder: str = "detections") -> Any:
    return json.loads(Path(folder, "detections.json").read_text())


@pytest.mark.parametrize(
    ("words", "candidates"), [([], 100), (["--candidates", "7"], 7), (["--candidates", "0"], None)]
)
def test_as_many_windows_enter_nms_as_detect_is_told(
    run: Any, work: Path, words: list[str], candidates: int | None
) -> None:
    run.model.candidates = 100
    assert detect("a.png", *words) == 0
    assert run.model.candidates == candidates


def kept(folder: str = "detections") -> list[float]:
    return [round(found["score"], 6) for found in record(folder)["images"][0]["detections"]]


def test_json_has_image_size_boxes_classes_and_scores(run: Any, work: Path) -> None:
    assert detect("a.png") == 0
    content = record()
    assert (content["run"], content["step"]) == ("runs/a", 7)
    (entry,) = content["images"]
    assert (entry["image"], entry["width"], entry["height"], entry["drawing"]) == ("a.png", 60, 40, "a.png")
    assert entry["detections"][0] == {
        **{"box": [0, 0, 20, 20], "label": 0, "class": "cat", "score": pytest.approx(0.9)},
    }
    assert run.asked == [(Path("runs/a"), "best")]


def test_boxes_are_drawn_on_a_copy(run: Any, work: Path) -> None:
    before = Path("a.png").read_bytes()
    assert detect("a.png") == 0
    assert Path("a.png").read_bytes() == before
    drawn = pixels("detections/a.png")
    assert drawn.shape == (40, 60, 3)
    assert (drawn != pixels("a.png")).any()


def test_json_alone_if_asked(run: Any, work: Path) -> None:
    assert detect("a.png", "--draw", "false") == 0
    assert [path.name for path in Path("detections").iterdir()] == ["detections.json"]
    assert record()["images"][0]["drawing"] is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [0.9, 0.6]),
        (["--threshold", "0.7"], [0.9]),
        (["--threshold", "-1"], [0.9, 0.6, 0.2]),
        (["--top", "1"], [0.9]),
        (["--top", "2", "--threshold", "0.7"], [0.9]),
        (["--threshold", "2"], []),
    ],
)
def test_threshold_and_top_choose(words: list[str], expected: list[float], run: Any, work: Path) -> None:
    assert detect("a.png", *words) == 0
    assert kept() == expected


def test_thresholds_of_validation_are_the_default(run: Any, work: Path) -> None:
    run.thresholds = {"cat": 0.1}  # no dog was ever found
    assert detect("a.png") == 0
    assert kept() == [0.9, 0.2]
    assert detect("a.png", "--threshold", "0.5") == 0
    assert kept() == [0.9, 0.6]


def test_a_file_of_thresholds_chooses_class_by_class(run: Any, work: Path) -> None:
    run.thresholds = {"cat": 0.1, "dog": 0.1}
    Path("t.json").write_text('{"thresholds": {"dog": null, "cat": 0.5, "bird": 0.1}}')
    assert detect("a.png", "--thresholds", "t.json") == 0
    assert kept() == [0.9]
    Path("t.yaml").write_text("thresholds:\n  dog: 0.6\n  cat: 0.1\n")
    assert detect("a.png", "--thresholds", "t.yaml", "--top", "2") == 0
    assert kept() == [0.9, 0.6]


def test_thresholds_have_every_class_of_the_run_and_stand_alone(
    run: Any, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.json").write_text('{"thresholds": {"cat": 0.5}}')
    assert detect("a.png", "--thresholds", "t.json") == 2
    assert "t.json: expected a threshold for each class of the run but dog have none" in capsys.readouterr().err
    assert detect("a.png", "--thresholds", "t.json", "--threshold", "0.5") == 2
    assert "but got both" in capsys.readouterr().err


def test_raw_scores_without_thresholds_give_the_best_and_say_so(
    run: Any, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.config = from_dict({"loss": "map"})
    assert detect("a.png") == 0
    assert kept() == [0.9, 0.6, 0.2]
    assert "the 10 best of each picture (raw scores have no natural threshold" in capsys.readouterr().out


def test_unreadable_pictures_are_named_and_the_rest_goes_on(
    run: Any, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.jpg").write_bytes(b"no picture")
    assert detect("bad.jpg", "missing.jpg", "a.png") == 1
    shown = capsys.readouterr().out
    assert "error bad.jpg: is not an image" in shown
    assert "error missing.jpg: no such picture; check the path." in shown
    assert [entry["image"] for entry in record()["images"]] == ["a.png"]


def test_folders_stand_for_the_pictures_in_them(run: Any, work: Path) -> None:
    Path("album").mkdir()
    for name in ("b.JPG", "a.png"):
        Image.new("RGB", (60, 40)).save(Path("album", name), "PNG")
    Path("album/notes.txt").write_text("x")
    assert detect("album", "a.png", "album/a.png") == 0
    entries = record()["images"]
    assert [entry["image"] for entry in entries] == ["album/a.png", "album/b.JPG", "a.png"]
    assert [entry["drawing"] for entry in entries] == ["a.png", "b.jpg", "a-2.png"]  # two pictures, one name


def test_a_folder_without_pictures_is_an_error(run: Any, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert detect("empty") == 2
    assert "empty: has no pictures" in capsys.readouterr().err


def test_pictures_of_the_user_are_never_overwritten(run: Any, work: Path) -> None:
    Image.new("RGB", (60, 40)).save("b.jpg")
    Path("b-2.jpg").write_bytes(b"mine as well")
    before = {path.name: path.read_bytes() for path in work.iterdir() if path.is_file()}
    for _again in range(2):  # the second time its own drawings are replaced
        assert detect("a.png", "b.jpg", "--out", ".") == 0
        after = {path.name: path.read_bytes() for path in work.iterdir() if path.is_file()}
        assert {name: after[name] for name in before} == before
        assert set(after) - set(before) == {"a-2.png", "b-3.jpg", "detections.json"}


NAMES_A_FILE = '{"run": "r", "step": 1, "chosen": "", "images": [{"image": "a.png", "drawing": "a.png"}]}'
RECORDS = ["[1, 2]", NAMES_A_FILE, '{"images": []}', '{"images": [], "sha256": 3}', "3", "[" * 100_000, ""]


@pytest.mark.parametrize("text", RECORDS)
def test_a_record_that_is_not_ours_is_refused_and_makes_no_file_ours(
    text: str, run: Any, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("detections").mkdir()
    Path("detections/a.png").write_bytes(b"mine")
    Path("detections/detections.json").write_text(text)
    assert detect("a.png") == 2
    said = "detections/detections.json: was not written by `stepgrad detect`, or was changed since"
    assert said in capsys.readouterr().err
    assert Path("detections/detections.json").read_text() == text
    assert Path("detections/a.png").read_bytes() == b"mine"


def test_a_drawing_that_was_replaced_by_the_user_stays(run: Any, work: Path) -> None:
    assert detect("a.png") == 0
    Path("detections/a.png").write_bytes(b"mine")
    assert detect("a.png") == 0
    assert Path("detections/a.png").read_bytes() == b"mine"
    assert record()["images"][0]["drawing"] == "a-2.png"


def test_links_are_not_followed(run: Any, work: Path) -> None:
    Path("mine.png").write_bytes(b"mine")
    Path("detections").mkdir()
    Path("detections/a.png").symlink_to(work / "mine.png")
    assert detect("a.png") == 0
    assert Path("mine.png").read_bytes() == b"mine"
    assert Path("detections/a.png").is_symlink()


@pytest.mark.parametrize("size", [(3000, 1), (1, 3000), (1, 1)])
def test_a_very_narrow_picture_is_a_picture(size: tuple[int, int], run: Any, work: Path) -> None:
    pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")
    Image.new("RGB", size).save("narrow.png")
    assert main(["detect", "--run", "runs/a", "narrow.png", "a.png"]) == 0
    assert [entry["image"] for entry in record()["images"]] == ["narrow.png", "a.png"]


def test_a_picture_that_breaks_the_model_costs_one_line(
    run: Any, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (61, 40)).save("b.png")
    model = run.model

    def fails_on_b(images: Any, proposals: Any) -> Any:
        if images[0].shape[2] == 61:
            raise RuntimeError("too odd\nfor words")
        return model(images, proposals)

    run.model = fails_on_b
    assert detect("b.png", "a.png") == 1
    assert "error b.png: detection failed (RuntimeError: too odd\\nfor words).\n" in capsys.readouterr().out
    assert [entry["image"] for entry in record()["images"]] == ["a.png"]


def test_photographs_are_turned_upright(run: Any, work: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    Image.new("RGB", (60, 40)).save("b.jpg", exif=exif)
    assert detect("b.jpg") == 0
    assert run.model.images[0].shape == (3, 60, 40)
    assert (record()["images"][0]["width"], record()["images"][0]["height"]) == (40, 60)
    assert pixels("detections/b.jpg").shape == (60, 40, 3)


def test_windows_that_are_missing_are_named(run: Any, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (60, 40)).save("c.png")
    assert detect("c.png", "a.png") == 1
    assert "error c.png: w.npz has no windows for it" in capsys.readouterr().out


def test_no_more_windows_than_in_training(run: Any, work: Path) -> None:
    run.config = from_dict({"loss": "nll", "data": {"max_windows": 2}})
    assert detect("a.png") == 0
    assert detect("a.png") == 0
    first, second = run.model.windows
    assert len(first) == 2
    assert torch.equal(first, second)


def test_windows_are_searched_for(run: Any, work: Path) -> None:
    pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")
    picture = np.zeros((120, 160, 3), np.uint8)
    picture[30:90, 40:120] = 255
    Image.fromarray(picture).save("s.png")
    assert main(["detect", "--run", "runs/a", "s.png"]) == 0
    assert [40.0, 30.0, 120.0, 90.0] in run.model.windows[0].tolist()


def test_windows_of_large_pictures_are_in_their_own_pixels() -> None:
    pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")
    picture = np.zeros((1200, 2000, 3), np.uint8)
    picture[400:800, 800:1600] = 255
    windows = search_windows(Image.fromarray(picture))
    assert (windows - torch.tensor([800.0, 400.0, 1600.0, 800.0])).abs().amax(dim=1).min() <= 8


def test_without_opencv_the_way_out_is_told(
    run: Any, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cv2.ximgproc", None)
    assert main(["detect", "--run", "runs/a", "a.png"]) == 2
    assert install_command(["detector"]) in capsys.readouterr().err


def test_interrupt_keeps_what_was_found(run: Any, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (60, 40)).save("b.png")
    model, seen = run.model, []

    def interrupted(images: Any, proposals: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return model(images, proposals)

    run.model = interrupted
    assert detect("a.png", "b.png") == 130
    assert [entry["image"] for entry in record()["images"]] == ["a.png"]
