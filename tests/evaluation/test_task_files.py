"""Masks and poses in COCO's json, from the files to the numbers: equal to pycocotools on the same files."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepgrad.cli import main
from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.evaluation.compare import compare
from stepgrad.metric.protocol import get_protocol
from tests.scenes import over_seeds

coco_api = pytest.importorskip("pycocotools.coco", reason="pycocotools: the reference")
cocoeval = pytest.importorskip("pycocotools.cocoeval", reason="pycocotools: the reference")
mask_api = pytest.importorskip("pycocotools.mask", reason="pycocotools: the reference")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools
Json = dict[str, Any]
WIDTH, HEIGHT = 120, 90


def segmentation(rng: np.random.Generator, polygon: list[float], how: str) -> Any:
    """A polygon in one of the forms that COCO's files have."""
    if how == "polygon":
        return [polygon, [value + 7.5 for value in polygon]] if rng.random() < 0.3 else [polygon]
    rle = mask_api.frPyObjects([polygon], HEIGHT, WIDTH)[0]
    if how == "compressed":
        return {"size": rle["size"], "counts": rle["counts"].decode()}
    pixels = mask_api.decode(rle).reshape(-1, order="F")
    changes = np.flatnonzero(np.diff(np.concatenate([[0], pixels])))
    return {"size": rle["size"], "counts": np.diff([0, *changes, len(pixels)]).tolist()}


def outline(rng: np.random.Generator) -> list[float]:
    angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(3, 9)))
    centre, radius = rng.uniform(5, 85, 2), rng.uniform(2, 40, len(angles))
    return np.stack([centre[0] + radius * np.cos(angles), centre[1] + radius * np.sin(angles)], 1).reshape(-1).tolist()


def box_of(points: list[float], step: int = 2) -> list[float]:
    x, y = points[0::step], points[1::step]
    return [min(x), min(y), max(x) - min(x) + 1, max(y) - min(y) + 1]


def entries(rng: np.random.Generator, task: str, with_boxes: bool) -> tuple[list[Json], list[Json]]:
    """Annotations and detections of some images, with crowds, equal scores and objects without keypoints."""
    truth: list[Json] = []
    found: list[Json] = []
    for image in (3, 1, 2):
        own = [_shape(rng, task) for _ in range(rng.integers(0, 6))]
        for shape in own:
            flags = {"iscrowd": int(rng.random() < 0.2), "area": float(rng.choice([500.0, 2000.0, 20_000.0]))}
            truth.append(_entry(rng, image, shape, task, "any") | flags)
        for _ in range(rng.integers(1, 25)):
            shape = own[rng.integers(len(own))] if own and rng.random() < 0.8 else _shape(rng, task)
            near = [value + float(rng.choice([0.0, 0.0, 1.5, -3.0])) for value in shape]
            how = "any" if with_boxes else "compressed"  # pycocotools reads others only where there are boxes
            entry = _entry(rng, image, near, task, how) | {"score": float(rng.integers(1, 9)) / 8}
            found.append(entry if with_boxes else {key: entry[key] for key in entry if key != "bbox"})
    return truth, found


def _shape(rng: np.random.Generator, task: str) -> list[float]:
    if task == "masks":
        return outline(rng)
    corner, size = rng.uniform(0, 60, 2), rng.uniform(5, 60, 2)
    points = np.concatenate([corner + rng.random((17, 2)) * size, rng.integers(0, 3, (17, 1))], axis=1)
    points[:, 2] *= rng.random() < 0.8
    return points.reshape(-1).tolist()


def _entry(rng: np.random.Generator, image: int, shape: list[float], task: str, how: str) -> Json:
    entry: Json = {"image_id": image, "category_id": int(rng.choice([4, 9]) if task == "masks" else 4)}
    if task == "masks":
        how = str(rng.choice(["polygon", "compressed", "plain"])) if how == "any" else how
        return entry | {"segmentation": segmentation(rng, shape, how), "bbox": box_of(shape)}
    labelled = int(sum(value > 0 for value in shape[2::3]))
    return entry | {"keypoints": shape, "num_keypoints": labelled, "bbox": box_of(shape, 3)}


def write(folder: Path, truth: list[Json], found: list[Json], classes: int = 2) -> tuple[Path, Path]:
    content = {
        "images": [{"id": i, "width": WIDTH, "height": HEIGHT, "file_name": f"{i}.jpg"} for i in (1, 2, 3)],
        "categories": [{"id": c, "name": f"class {c}"} for c in (4, 9)[:classes]],
        "annotations": [{"id": n, **entry} for n, entry in enumerate(truth, 1)],
    }
    (folder / "truth.json").write_text(json.dumps(content))
    (folder / "found.json").write_text(json.dumps(found))
    return folder / "found.json", folder / "truth.json"


def their_numbers(found: Path, truth: Path, kind: str) -> list[float]:
    with contextlib.redirect_stdout(io.StringIO()):
        annotations = coco_api.COCO(str(truth))
        run = cocoeval.COCOeval(annotations, annotations.loadRes(str(found)), kind)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return [float(value) for value in run.stats]


def our_numbers(found: Path, truth: Path, task: str) -> list[float]:
    report = found.parent / "report.json"
    options = [
        "--detections",
        found,
        "--data",
        truth,
        "--task",
        task,
        "--protocol",
        "coco",
        "--coco",
        "--report",
        report,
    ]
    assert main(["evaluate", *map(str, options)]) == 0
    values = json.loads(report.read_text())["coco"].values()
    return [-1.0 if value is None else value for value in values]


@pytest.mark.filterwarnings("ignore::stepgrad.errors.LikelyMistakeWarning")
@pytest.mark.parametrize(("task", "kind", "count"), [("masks", "segm", 12), ("keypoints", "keypoints", 10)])
@over_seeds(6, 300)
def test_every_number_of_files_equals_that_of_pycocotools(
    seed: int, task: str, kind: str, count: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng([seed, 321])
    truth, found = entries(rng, task, with_boxes=bool(seed % 2))
    files = write(tmp_path, truth, found, 2 if task == "masks" else 1)
    ours = our_numbers(*files, task)
    assert len(ours) == count
    assert ours == pytest.approx(their_numbers(*files, kind), abs=1e-12)


RLE = {"size": [HEIGHT, WIDTH], "counts": [100, 50, HEIGHT * WIDTH - 150]}
GOOD = {"image_id": 1, "category_id": 4, "bbox": [1, 1, 9, 9], "segmentation": RLE, "keypoints": [5, 5, 2]}


@pytest.mark.parametrize(
    ("task", "side", "change", "says"),
    [
        ("masks", "found", {"segmentation": None}, "has no `segmentation`"),
        ("masks", "truth", {"segmentation": None}, "has no `segmentation`"),
        ("keypoints", "found", {"keypoints": None}, "has no `keypoints`"),
        ("keypoints", "found", {"keypoints": [5, 5, 2, 6, 6, 2]}, "expected 1 keypoints, as in the rest of the data"),
        ("keypoints", "truth", {"keypoints": [5, "x", 2]}, "expected keypoints \\[x1, y1, v1"),
        ("oriented", "found", {}, "neither `poly` nor `rbox`"),
        ("oriented", "truth", {"rbox": [1, 2, 3, 4]}, "expected poly"),
        (
            "masks",
            "found",
            {"segmentation": {"size": [5, 5], "counts": [25]}},
            "5 x 5 pixels but the image is 120 x 90",
        ),
        ("masks", "truth", {"segmentation": [[1, 2, 3, 4]]}, "expected segmentation to be polygons"),
        ("masks", "found", {"segmentation": {"size": [HEIGHT, WIDTH], "counts": [7]}}, "add up to 90 x 120 pixels"),
        ("masks", "found", {"segmentation": {"size": [HEIGHT, WIDTH], "counts": {}}}, "expected counts as text"),
    ],
)
def test_a_file_without_the_shape_says_what_was_expected_and_the_way_out(
    task: str, side: str, change: Json, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {**GOOD, "poly": [1, 1, 9, 1, 9, 9, 1, 9]} if task == "oriented" and side == "truth" else GOOD
    entries = {"truth": [{**whole}], "found": [{**GOOD, "score": 0.5}]}
    if task == "oriented" and side == "found":
        entries["truth"][0]["poly"] = [1, 1, 9, 1, 9, 9, 1, 9]
    entries[side][0] |= change
    if side == "truth" and "rbox" in change:
        entries[side][0].pop("poly")
    entries[side][0] = {key: value for key, value in entries[side][0].items() if value is not None}
    found, truth = write(tmp_path, entries["truth"], entries["found"])
    assert main(["evaluate", "--detections", str(found), "--data", str(truth), "--task", task]) != 0
    error = capsys.readouterr().err
    assert says.replace("\\", "") in " ".join(error.split())


def test_files_that_have_masks_are_judged_by_boxes_with_a_word_about_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, truth = write(tmp_path, [GOOD], [{**GOOD, "score": 0.5}])
    arguments = ["evaluate", "--detections", str(found), "--data", str(truth)]
    assert main(arguments) == 0
    assert "both files have masks, too: --task masks judges them" in " ".join(capsys.readouterr().out.split())
    assert main([*arguments, "--task", "boxes"]) == 0
    assert "--task" not in capsys.readouterr().out


@pytest.mark.parametrize(("task", "rule"), [("masks", "mask resolution"), ("keypoints", "areas of poses")])
def test_parts_of_the_difference_between_protocols_add_up_for_masks_and_poses(
    task: str, rule: str, tmp_path: Path
) -> None:
    truth, found = entries(np.random.default_rng(5), task, with_boxes=True)
    files = write(tmp_path, truth, found, 2 if task == "masks" else 1)
    dataset = load_dataset(files[1], need_images=False, task=task)  # type: ignore[arg-type]
    evidence = evidence_from(dataset, read_detections(files[0], dataset))
    protocols = [evidence.overlap.adapt(get_protocol(name)) for name in ("coco", "ultralytics")]
    (pair,) = compare(evidence, protocols).pairs
    parts = pair.parts()
    assert rule in parts
    assert {"crowds", "interpolation"} <= set(parts)
    assert not {"clipping", "pixel offset"} & set(parts)
    assert sum(parts.values()) == pytest.approx(100 * (pair.maps[1] - pair.maps[0]), abs=1e-9)
    assert pair.steps[-1].map == pytest.approx(pair.maps[1], abs=1e-12)
