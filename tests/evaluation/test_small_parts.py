"""Parts of the evaluator one by one: rules in words, tables, what a file's numbers must be, corners taken for sizes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepgrad.data import DetectionDataset, load_dataset
from stepgrad.data.detection_rows import DetectionChecks
from stepgrad.data.read_detections import read_coco_results
from stepgrad.errors import DataError
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.rules import RULES, describe_rule
from stepgrad.metric.protocol import COCO, ULTRALYTICS_OLD, VOC07, VOC07_PYTHON, VOC12, Protocol
from tests.data.builders import write_coco, write_voc
from tests.evaluation.datasets import boxes_at, pred, target

WORDS = {
    "pixel offset": ("adds 1 to widths and heights", "adds 0 to widths and heights"),
    "equality": ("IoU > threshold", "IoU >= threshold"),
    "duplicate rule": ("takes the best object", "takes the best object still free"),
    "difficult": ("difficult objects count", "difficult objects ignored"),
    "max detections": ("every detection", "at most 100 per image"),
    "ties": ("equal scores in the order given", "equal scores image by image"),
    "clipping": ("as they are", "as they are"),
    "IoU thresholds": ("0.5", "0.5 to 0.95, 10 of them"),
    "recall levels": ("area", "101 levels (float)"),
    "absent classes": ("count as 0", "left out"),
    "overlaps": ("double precision", "double precision"),
    "mask resolution": ("masks as they are", "masks as they are"),
    "rounding of masks": ("inside from a half on", "inside from a half on"),
    "hidden parts": ("belong to both objects", "belong to both objects"),
    "likeness": ("IoU of polygons", "IoU of polygons"),
    "areas of poses": ("as annotated", "as annotated"),
    "crowds": ("crowds are regions", "crowds are regions"),
    "classes looked for": ("every class in every image", "every class in every image"),
    "least score": ("any score", "any score"),
    "interpolation": ("none: the area", "mean of the best precision at recall >= level"),
}
OF_ULTRALYTICS = {
    "clipping": "cut at the image's edges",
    "overlaps": "single precision",
    "mask resolution": "masks at 160 pixels, or as counted",
    "hidden parts": "belong to the smaller object",
    "likeness": "probIoU",
    "areas of poses": "0.53 of the box's",
    "duplicate rule": "takes the best object, the last of equals",
    "difficult": "difficult objects are removed",
    "crowds": "crowds are removed",
    "least score": "scores of at least 0.001",
    "max detections": "at most 300 per image over all classes",
    "IoU thresholds": "0.5 to 0.95, 10 of them in single precision",
    "interpolation": "trapezoid of the best precision at recall > level, then a line to 0 at recall 1",
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_told_in_words(rule: str) -> None:
    first = replace(VOC07_PYTHON, recall_levels=None, recall_grid="exact", difficult="count")
    told = describe_rule(first, rule), describe_rule(COCO, rule)
    assert told == WORDS[rule]


@pytest.mark.parametrize("rule", OF_ULTRALYTICS)
def test_each_rule_of_ultralytics_is_told_in_words(rule: str) -> None:
    assert describe_rule(ULTRALYTICS_OLD, rule) == OF_ULTRALYTICS[rule]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_few_thresholds_are_listed_and_many_are_summed_up(count: int) -> None:
    values = tuple(0.5 + 0.1 * i for i in range(count))
    told = describe_rule(replace(VOC12, match_thresholds=values), "IoU thresholds")
    assert told == ("0.5 to 0.8, 4 of them" if count == 4 else ", ".join(["0.5", "0.6", "0.7"][:count]))


def table_of(protocol: str | Protocol) -> dict[str, list[str]]:
    """A class with a hit and a miss, one with a difficult object only, one with nothing; by column."""
    evaluator = Evaluator(3, protocol, ["cat", "dog", "cow"])
    found = pred(boxes_at(0, 50, 20), [0.9, 0.8, 0.7], [0, 0, 1])
    truth = target(boxes_at(0, 90, 20), [0, 0, 1]) | {"difficult": np.array([False, False, True])}
    evaluator.update([found], [truth])
    header, rows = evaluator.compute().table()
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def test_table_has_a_row_per_class_and_the_mean() -> None:
    table = table_of("voc12")
    assert table == {
        "class": ["cat", "dog", "cow", "mean of 3"],
        "objects": ["2", "0", "0", "2"],
        "ignored": ["0", "1", "0", "1"],
        "detections": ["2", "1", "0", "3"],
        "recall": ["50.0", "-", "-", ""],
        "AP": ["50.0", "0.0", "0.0", "16.7"],
    }


def test_classes_left_out_have_no_numbers_and_are_not_in_the_mean() -> None:
    table = table_of(replace(COCO, name="coco"))
    assert table["class"][-1] == "mean of 1"
    for name in ("AP", "AP50", "AP75"):
        assert table[name] == ["50.5", "-", "-", "50.5"]  # 51 of 101 levels


def test_further_columns_are_those_people_look_for() -> None:
    assert list(table_of(VOC07))[6:] == ["AP (area)"]
    assert list(table_of(VOC12))[6:] == []
    assert list(table_of(replace(VOC12, match_thresholds=(0.5, 0.6))))[6:] == ["AP50"]
    assert list(table_of(replace(VOC12, match_thresholds=(0.75,))))[6:] == []


def test_the_curve_shown_is_that_of_the_first_threshold_unless_another_is_asked_for() -> None:
    evaluator = Evaluator(1, "coco")
    evaluator.update([pred(boxes_at(0, height=6), [0.9])], [target(boxes_at(0))])  # IoU 0.6
    (row,) = evaluator.compute().classes
    assert (row.curve().threshold, row.curve().precision.tolist()) == (0.5, [1.0])
    assert (row.curve(0.65).threshold, row.curve(0.65).precision.tolist()) == (0.65, [0.0])
    assert row.recall == 1.0


@pytest.fixture
def coco(tmp_path: Path) -> DetectionDataset:
    return load_dataset(write_coco(tmp_path / "COCO"), need_images=False)


@pytest.mark.parametrize("axis", [0, 1])
def test_numbers_of_a_box_are_checked_along_both_axes(axis: int, coco: DetectionDataset) -> None:
    count, refuse = DetectionChecks(coco, "count"), DetectionChecks(coco, "error")

    def box(place: float, size: float) -> list[float]:
        return [*((place, 1.0) if axis == 0 else (1.0, place)), *((size, 2.0) if axis == 0 else (2.0, size))]

    for fine in (box(-5.0, 3.0), box(0.0, 0.0), box(1.0, 0.5)):
        count.numbers(0.0, fine, "here")
    refuse.numbers(-1.0, box(0.0, 1e-300), "here")
    with pytest.raises(DataError, match=r"here: the box is .* wide and .* high; remove it, or count such"):
        refuse.numbers(1.0, box(0.0, 0.0), "here")
    with pytest.raises(DataError, match=r"here: the box is .* wide and .* high; swap its corners"):
        count.numbers(1.0, box(0.0, -0.5), "here")
    for large in (box(1.7e308, 1.7e308), box(0.0, 1.0e308)):
        with pytest.raises(DataError, match="too large for double precision"):
            count.numbers(1.0, large, "here")
    for broken in (box(np.nan, 1.0), box(0.0, np.inf)):
        with pytest.raises(DataError, match="expected a finite box"):
            count.numbers(1.0, broken, "here")
    with pytest.raises(DataError, match="expected a finite score but got nan"):
        count.numbers(np.nan, box(0.0, 1.0), "here")


def test_an_unknown_image_gets_a_suggestion_unless_there_are_too_many_to_compare(tmp_path: Path) -> None:
    voc = load_dataset(write_voc(tmp_path / "VOC"), class_names=["cat", "dog"], need_images=False)
    reader = DetectionChecks(voc, "count")
    known = str(voc.ids[0])
    assert reader.image(known, "here") == 0
    with pytest.raises(DataError, match=f"is not among the {len(voc)} images of .*Did you mean.*{known}"):
        reader.image(known + "x", "here")
    for odd in (0.5, None, [known]):
        with pytest.raises(DataError, match=r"of the same split.$"):
            reader.image(odd, "here")
    voc.ids.extend(f"other {i}" for i in range(len(voc.ids), 10_000))
    vars(voc).pop("positions", None)  # worked out once, from the ids
    with pytest.raises(DataError, match=r"is not among the 10000 images of .* of the same split.$"):
        DetectionChecks(voc, "count").image(known + "x", "here")


@pytest.mark.parametrize(
    "entry",
    [
        *([1], "x", {"image_id": 4, "category_id": 18, "bbox": [1, 2, 3, 4]}),
        *(
            {"image_id": 4, "category_id": 18, "bbox": b, "score": 0.5}
            for b in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, "4"])
        ),
        *(
            {"image_id": 4, "category_id": 18, "bbox": b, "score": 0.5}
            for b in ("1234", [True, 2, 3, 4], [1, 2, 3, None])
        ),
        *({"image_id": 4, "category_id": 18, "bbox": [1, 2, 3, 4], "score": s} for s in (True, "0.5", None)),
    ],
    ids=str,
)
def test_every_entry_needs_its_four_fields(entry: object, tmp_path: Path, coco: DetectionDataset) -> None:
    path = tmp_path / "found.json"
    path.write_text(json.dumps([entry]))
    with pytest.raises(DataError, match=r"found.json: detection 0: expected"):
        read_coco_results(path, coco)
