"""The protocol `lvis`: classes count where they were looked for, and what is partly annotated forgives."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepgrad as sg
from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.engine.matching import IGNORED
from stepgrad.errors import ConfigError
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.options import get_metric
from stepgrad.metric.protocol import LVIS, get_protocol
from tests.scenes import clustered_boxes, over_seeds, windows_near

CATEGORIES = (3, 8, 9, 40)
Content = tuple[dict[str, Any], list[dict[str, Any]]]


def xywh(box: np.ndarray) -> list[float]:
    return [float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])]


def random_content(seed: int) -> Content:
    """Annotations with every kind of knowledge about classes, and detections without equal scores."""
    rng = np.random.default_rng([seed, 90])
    images, annotations, found = [], [], []
    scores = (rng.permutation(4000) + 1) / 4001
    for image in range(1, int(rng.integers(2, 7))):
        centres = rng.integers(8, 40, size=(3, 2))
        objects = clustered_boxes(rng, centres, int(rng.integers(0, 9)), jitter=2)
        categories = rng.choice(CATEGORIES, len(objects))
        windows = windows_near(rng, objects, centres, int(rng.integers(0, 30)))
        there = {int(c) for c in categories}
        absent = [c for c in CATEGORIES if c not in there and rng.random() < 0.5]
        partly = [c for c in sorted(there) if rng.random() < 0.3]
        images.append(
            {
                **{"id": image, "width": 100, "height": 100, "coco_url": f"{image}.jpg"},
                **{"neg_category_ids": absent, "not_exhaustive_category_ids": partly},
            }
        )
        for box, category in zip(objects, categories, strict=True):
            number = len(annotations) + 1
            annotations.append(
                {
                    **{"id": number, "image_id": image, "category_id": int(category), "bbox": xywh(box)},
                    "area": float((box[2:] - box[:2]).prod()),
                }
            )
        for box in windows:
            category = int(rng.choice(CATEGORIES))
            score = float(scores[len(found)])
            sides = xywh(box)
            if rng.random() < 0.1:
                sides[int(rng.integers(2, 4))] = 0.0
            found.append({"image_id": image, "category_id": category, "bbox": sides, "score": score})
    listed = [{"id": c, "name": f"c{c}", "frequency": "f", "image_count": 1} for c in CATEGORIES]
    return {"images": images, "annotations": annotations, "categories": listed}, found


def ours(
    content: Content, folder: Path, protocol: str = "lvis", metrics: Sequence[ListMetric] = ()
) -> EvaluationResult:
    for name, part in zip(("truth.json", "found.json"), content, strict=True):
        (folder / name).write_text(json.dumps(part))
    dataset = load_dataset(folder / "truth.json", need_images=False)
    evidence = evidence_from(dataset, read_detections(folder / "found.json", dataset))
    return evaluate_under(evidence, get_protocol(protocol), metrics)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the package
@over_seeds(20, 1000)
def test_ap_equals_that_of_the_lvis_package(
    seed: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "float", float, raising=False)  # the package is older than NumPy 2
    lvis = pytest.importorskip("lvis", reason="not a dependency: pip install lvis")
    content, folder = random_content(seed), tmp_path_factory.mktemp("lvis")
    if not content[0]["annotations"] or not content[1]:
        return
    sizes = [get_metric(f"ap@area={area}") for area in ("small", "medium", "large")]
    result = ours(content, folder, metrics=sizes)
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = lvis.LVIS(str(folder / "truth.json"))
        evaluation = lvis.LVISEval(truth, lvis.LVISResults(truth, content[1]), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    logging.disable(logging.NOTSET)
    precision = evaluation.eval["precision"][:, :, :, 0]  # (thresholds, levels, classes), all areas
    for c, row in enumerate(result.classes):
        if row.objects:
            np.testing.assert_allclose(list(row.ap_by_threshold.values()), precision[:, :, c].mean(axis=1), atol=1e-12)
        else:
            assert (precision[:, :, c] == -1).all()
    for a, metric in enumerate(sizes, start=1):
        by_size = evaluation.eval["precision"][:, :, :, a]
        expected = np.where((by_size < 0).any(axis=(0, 1)), np.nan, by_size.mean(axis=(0, 1)))
        np.testing.assert_allclose(result.metrics[metric.name].by_class, expected, atol=1e-12)


@over_seeds(5, 200)
def test_ap_of_all_sizes_is_ap(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    metric = get_metric("ap@area=all")
    result = ours(random_content(seed), tmp_path_factory.mktemp("lvis"), metrics=[metric])
    assert result.metrics[metric.name].value == pytest.approx(result.map, rel=1e-14)


def one_image(**knowledge: list[int]) -> Content:
    """One object, found; a second detection of its class on nothing, and one of another class."""
    image = {"id": 1, "width": 100, "height": 100, "neg_category_ids": [], **knowledge}
    box, elsewhere = [0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 10.0, 10.0]
    truth = {
        "images": [image],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "area": 100.0}],
    }
    rows = [(1, elsewhere, 0.9), (1, box, 0.8), (2, elsewhere, 0.7)]
    return truth, [{"image_id": 1, "category_id": c, "bbox": b, "score": s} for c, b, s in rows]


@pytest.mark.parametrize(
    ("knowledge", "cats", "dogs"),
    [
        ({}, [0, 1], [2]),  # nobody looked for dogs
        ({"neg_category_ids": [2]}, [0, 1], [0]),  # there is no dog
        ({"not_exhaustive_category_ids": [1]}, [2, 1], [2]),  # there may be more cats
    ],
)
def test_what_is_known_of_a_class_decides_what_is_wrong(
    knowledge: dict[str, list[int]], cats: list[int], dogs: list[int], tmp_path: Path
) -> None:
    result = ours(one_image(**knowledge), tmp_path)
    assert [row.verdicts[0].tolist() for row in result.classes] == [cats, dogs]
    plain = ours(one_image(**knowledge), tmp_path, "coco")
    assert [row.verdicts[0].tolist() for row in plain.classes] == [[0, 1], [0]]


def test_a_class_that_may_have_more_objects_forgives_detections_at_every_edge(tmp_path: Path) -> None:
    truth, found = one_image(not_exhaustive_category_ids=[1])
    corners = [[0.0, 0.0, 4.0, 4.0], [90.0, 0.0, 10.0, 10.0], [0.0, 90.0, 10.0, 10.0], [95.0, 95.0, 5.0, 5.0]]
    found += [{**found[0], "bbox": box, "score": 0.95} for box in corners]
    cats = ours((truth, found), tmp_path).classes[0]
    assert (cats.verdicts[:, :-1] == IGNORED).all()  # at all ten thresholds; the last is the object's
    assert cats.ap == 1.0


@pytest.mark.parametrize("knowledge", ["neg_category_ids", "not_exhaustive_category_ids"])
@pytest.mark.parametrize("line", [[50.0, 50.0, 0.0, 10.0], [50.0, 50.0, 10.0, 0.0], [100.0, 100.0, 0.0, 0.0]])
def test_detections_without_area_are_not_counted_whatever_is_known(
    knowledge: str, line: list[float], tmp_path: Path
) -> None:
    truth, found = one_image(**{knowledge: [1, 2]})
    lines = [{**found[0], "bbox": line, "category_id": category, "score": 0.95} for category in (1, 2)]
    without, with_lines = ours((truth, found), tmp_path), ours((truth, found + lines), tmp_path)
    for row, longer in zip(without.classes, with_lines.classes, strict=True):
        np.testing.assert_array_equal(longer.ap, row.ap)
        assert longer.verdicts[0].tolist() == [IGNORED, *row.verdicts[0].tolist()]


def test_an_image_that_says_nothing_was_searched_for_its_own_classes_only(tmp_path: Path) -> None:
    truth, found = one_image(neg_category_ids=[2])
    truth["images"].append({"id": 2, "width": 100, "height": 100})
    found.append({**found[2], "image_id": 2, "score": 0.6})
    dogs = ours((truth, found), tmp_path).classes[1]
    assert dogs.verdicts[0].tolist() == [0, 2]  # no dog in the first; nobody looked for dogs in the second


def test_losses_refuse_it() -> None:
    with pytest.raises(ConfigError, match="federated"):
        sg.MAPLoss(2, LVIS)
