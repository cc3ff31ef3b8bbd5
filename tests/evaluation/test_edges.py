"""Boxes cut at the edges of their images: a rule of protocols, and a note on files that hold only such boxes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stepgrad.cli import main
from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.evaluation.compare import compare
from stepgrad.evaluation.edges import clipped, in_resized_images
from stepgrad.evaluation.judge import judge
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import COCO, PROTOCOLS, ULTRALYTICS, ULTRALYTICS_JSON, Protocol
from tests.data.builders import SIZE, write_coco, write_yolo
from tests.evaluation.datasets import random_dataset
from tests.scenes import over_seeds

WIDTH, HEIGHT = SIZE
EDGE = 22.0
INSIDE = [10.0, 10.0, 20.0, 20.0]
AT_EDGE = [30.0, 5.0, WIDTH - 30.0, 20.0]
BEYOND = [30.0, 5.0, WIDTH - 10.0, 20.0]


def limits_of(evidence: Evidence, low: float, high: float) -> NDArray[np.float64]:
    return np.tile([[[low] * 4, [high] * 4]], (evidence.num_images, 1, 1))


def evidence_in_small_images(seed: int) -> Evidence:
    """A random dataset in images so small that many boxes reach beyond them."""
    data = random_dataset(np.random.default_rng([seed, 45]), "difficult")
    evidence = data.evaluator("coco").evidence()
    return replace(evidence, limits=limits_of(evidence, 0.0, EDGE), pixel_offset=0.0)


def by_hand(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([[min(max(value, 0.0), EDGE) for value in box] for box in boxes.tolist()]).reshape(-1, 4)


def aps(evidence: Evidence, protocol: Protocol) -> list[list[float]]:
    return [row.ap.tolist() for row in judge(evidence, protocol)]


@pytest.mark.parametrize("protocol", ["coco", "voc12", "ultralytics"])
@over_seeds(5, 200)
def test_ap_of_a_protocol_that_clips_is_that_of_boxes_clipped_by_hand(seed: int, protocol: str) -> None:
    evidence, plain = evidence_in_small_images(seed), PROTOCOLS[protocol]
    cut = replace(
        evidence,
        detections=evidence.detections.with_boxes(by_hand(evidence.detections.boxes)),
        objects=evidence.objects.with_boxes(by_hand(evidence.objects.boxes)),
    )
    assert aps(evidence, replace(plain, clip=True)) == aps(cut, plain)


@over_seeds(3, 50)
def test_ap_unchanged_by_clipping_where_boxes_lie_inside_or_sizes_are_unknown(seed: int) -> None:
    evidence = evidence_in_small_images(seed)
    evidence = replace(evidence, limits=limits_of(evidence, -1e6, 1e6))
    written = evidence.detections.sizes * (1 + 1e-12)  # as a file may give them, not what the corners give
    inside = replace(evidence, detections=replace(evidence.detections, sizes=written))
    unknown = replace(evidence_in_small_images(seed), limits=limits_of(evidence, np.nan, np.nan))
    for case in (inside, unknown, replace(unknown, limits=None)):
        assert aps(case, ULTRALYTICS_JSON) == aps(case, COCO)
        assert np.array_equal(clipped(case).detections.sizes, case.detections.sizes)


@over_seeds(3, 50)
def test_clipping_is_the_same_in_either_pixel_convention(seed: int) -> None:
    continuous = evidence_in_small_images(seed)
    inclusive = continuous.shrunk(1.0)
    for protocol in (COCO, PROTOCOLS["voc12-devkit"]):
        cutting = replace(protocol, clip=True)
        assert evaluate_under(inclusive, cutting).map == evaluate_under(continuous, cutting).map


@over_seeds(3, 50)
def test_single_precision_comes_back_from_pixels_of_the_original_image(seed: int) -> None:
    rng = np.random.default_rng([seed, 46])
    counted = evidence_in_small_images(seed)
    boxes = (640 * rng.random(counted.detections.boxes.shape, dtype=np.float32)).astype(np.float64)
    counted = replace(counted, detections=counted.detections.with_boxes(boxes))
    resizings = np.concatenate(
        [rng.uniform(0.1, 3, (counted.num_images, 2)), rng.integers(0, 90, (counted.num_images, 2))], 1
    )
    scale, shift = (np.tile(part, 2)[counted.detections.images] for part in (resizings[:, :2], resizings[:, 2:]))
    original = replace(counted, detections=counted.detections.with_boxes((boxes - shift) / scale), resizings=resizings)
    back = in_resized_images(original).detections.boxes
    assert np.array_equal(back.astype(np.float32), boxes.astype(np.float32))


def write_detections(path: Path, boxes: list[list[float]]) -> Path:
    rows = [{"image_id": "a", "category_id": 1, "bbox": box, "score": 0.9 - i / 100} for i, box in enumerate(boxes)]
    path.write_text(json.dumps(rows))
    return path


def test_comparing_says_what_clipping_changes(tmp_path: Path) -> None:
    data = write_yolo(tmp_path, labels={"train/a": "0 0.75 0.5 0.5 0.5\n", "val/c": ""})
    x, y, width, height = 0.5 * WIDTH, 0.25 * HEIGHT, 0.5 * WIDTH, 0.5 * HEIGHT
    beyond = [x, y, width * 1.5, height]  # IoU 2 / 3, and 1 once it is cut
    found = write_detections(tmp_path / "d.json", [beyond, *[[40.0, 30.0, 5.0, 5.0]] * 5])
    dataset = load_dataset(data, need_images=False)
    evidence = evidence_from(dataset, read_detections(found, dataset))
    (pair,) = compare(evidence, [replace(ULTRALYTICS, name="uncut"), replace(ULTRALYTICS, clip=True)]).pairs
    assert pair.parts() == {"clipping": pytest.approx(59.7)}  # from 4 to 10 of the thresholds, 0.995 each
    (first,) = pair.first
    assert first.because == "clipping"


few_detections = pytest.mark.filterwarnings("ignore::stepgrad.errors.LikelyMistakeWarning")


def notes(capsys: pytest.CaptureFixture[str], found: Path, data: Path, *words: str) -> list[str]:
    main(["evaluate", "--detections", str(found), "--data", str(data), *words])
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ") and "edge" in line]


@few_detections
def test_a_file_of_boxes_cut_at_the_edges_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_yolo(tmp_path)
    rounded = [AT_EDGE[0] + 0.0004, AT_EDGE[1], AT_EDGE[2] - 0.0004, AT_EDGE[3]]
    cut = write_detections(tmp_path / "cut.json", [INSIDE, AT_EDGE, rounded])
    (note,) = notes(capsys, cut, data, "--compare", "ultralytics", "coco", "ultralytics-8.4")
    assert "2 of 3 boxes end exactly at an edge" in note
    assert "save_counted" in note
    assert notes(capsys, cut, data, "--protocol", "ultralytics-json") == []  # it would cut them itself
    assert notes(capsys, write_detections(tmp_path / "uncut.json", [INSIDE, *[AT_EDGE] * 5, BEYOND]), data) == []
    assert notes(capsys, write_detections(tmp_path / "inside.json", [INSIDE] * 3), data) == []
    assert notes(capsys, write_detections(tmp_path / "none.json", []), data) == []


@few_detections
def test_a_protocol_that_clips_says_where_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_coco(tmp_path)
    content = json.loads(data.read_text())
    for image in content["images"]:
        image.pop("width", None)
    data.write_text(json.dumps(content))
    found = tmp_path / "none.json"
    found.write_text("[]")
    main(["evaluate", "--detections", str(found), "--data", str(data), "--protocol", "ultralytics-json"])
    assert "ultralytics-json cut no boxes there" in capsys.readouterr().out
