"""Thresholds on disk, and applied to detections of every form."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.deploy.apply import Cuts, predictor_hook
from stepgrad.errors import DataError, InputError
from tests.deploy.test_thresholds import judged, scenes

CUTS = {"dog": 0.5, "cat": None, "bird": 0.2}


def found(scores: list[float], labels: list[int], **more: Any) -> dict[str, Any]:
    boxes = torch.arange(4.0 * len(scores)).reshape(-1, 4)
    return {"boxes": boxes, "scores": torch.tensor(scores), "labels": torch.tensor(labels, dtype=torch.int64), **more}


def test_each_class_has_its_own_threshold_which_itself_passes() -> None:
    kept = sg.apply_thresholds(found([0.5, 0.49, 0.99, 0.2], [0, 0, 1, 2], image_id=7), CUTS)
    assert kept["labels"].tolist() == [0, 2]
    assert kept["boxes"][:, 0].tolist() == [0.0, 12.0]
    assert kept["image_id"] == 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_score_equal_to_the_threshold_passes_in_every_precision(dtype: torch.dtype) -> None:
    scores = torch.tensor([0.3, 0.3001], dtype=dtype)
    threshold = float(scores.min())
    assert len(sg.apply_thresholds({**found([0, 0], [0, 0]), "scores": scores}, {"a": threshold})["labels"]) == 2


def test_lists_and_empty_images_keep_their_form() -> None:
    kept = sg.apply_thresholds([found([], []), found([0.9], [0])], CUTS)
    assert [len(one["labels"]) for one in kept] == [0, 1]
    assert sg.apply_thresholds([], CUTS) == []


def test_labels_beyond_the_classes_are_refused() -> None:
    with pytest.raises(InputError, match=r"labels in \[0, 3\).*but got 1 to 3"):
        sg.apply_thresholds(found([0.9, 0.9], [1, 3]), CUTS)


def test_coco_results_are_cut_by_their_category_ids() -> None:
    rows = [
        {"image_id": 1, "category_id": c, "bbox": [0, 0, 1, 1], "score": s} for c, s in ((7, 0.6), (9, 0.9), (7, 0.4))
    ]
    kept = sg.apply_thresholds(rows, Cuts(CUTS, category_ids=(7, 9, 11)))
    assert kept == rows[:1]
    with pytest.raises(InputError, match="category ids"):
        sg.apply_thresholds(rows, CUTS)
    with pytest.raises(InputError, match="but got 9"):
        sg.apply_thresholds(rows, Cuts(CUTS, category_ids=(7, 8, 11)))


class Picked(SimpleNamespace):
    """Stands for other people's records, which take a mask in brackets."""

    def __getitem__(self, mask: Any) -> Any:
        return np.flatnonzero(np.asarray(mask)).tolist()


def test_supervision_goes_by_names_where_there_are_any() -> None:
    scores, labels = np.array([0.6, 0.6, 0.1]), np.array([5, 6, 5])
    named = Picked(confidence=scores, class_id=labels, data={"class_name": np.array(["dog", "cat", "dog"])})
    assert sg.apply_thresholds(named, CUTS) == [0]
    plain = Picked(confidence=scores, class_id=np.array([2, 1, 2]), data={})
    assert sg.apply_thresholds(plain, CUTS) == [0]
    strange = Picked(confidence=scores[:1], class_id=labels[:1], data={"class_name": np.array(["dgo"])})
    with pytest.raises(InputError, match="Did you mean 'dog'"):
        sg.apply_thresholds(strange, CUTS)


def results(scores: list[float], labels: list[int]) -> Picked:
    boxes = SimpleNamespace(conf=torch.tensor(scores), cls=torch.tensor(labels, dtype=torch.float32))
    return Picked(boxes=boxes, names={0: "bird", 3: "dog"})


def test_ultralytics_results_go_by_the_names_of_the_model() -> None:
    assert sg.apply_thresholds(results([0.3, 0.3, 0.1], [0, 3, 0]), CUTS) == [0]
    predictor = SimpleNamespace(results=[results([0.3], [0])], args=SimpleNamespace(conf=0.1))
    predictor_hook(CUTS)(predictor)
    assert predictor.results == [[0]]
    predictor.args.conf = 0.25
    with pytest.raises(InputError, match=r"conf to be at most the lowest threshold, 0.2"):
        predictor_hook(CUTS)(predictor)


def test_anything_else_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="but got int"):
        sg.apply_thresholds(3, CUTS)
    with pytest.raises(InputError, match="scores and labels"):
        sg.apply_thresholds({"boxes": torch.zeros(0, 4)}, CUTS)
    with pytest.raises(InputError, match="but got float"):
        sg.apply_thresholds(found([], []), 0.5)


@pytest.mark.parametrize("name", ["t.json", "t.yaml"])
def test_files_come_back_and_cut_alike(name: str, tmp_path: Path) -> None:
    made = scenes(1)
    chosen = sg.thresholds(judged(made), "f1")
    chosen.save(tmp_path / name, category_ids=(3, 4))
    preds = [p for p, _ in made]
    for one, other in zip(sg.apply_thresholds(preds, tmp_path / name), chosen.apply_thresholds(preds), strict=True):
        assert torch.equal(one["boxes"], other["boxes"])
    rows = [{"category_id": 3, "score": 2.0}, {"category_id": 3, "score": -1.0}]
    assert sg.apply_thresholds(rows, str(tmp_path / name)) == rows[:1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "expected thresholds"),
        ('{"thresholds": {"dog": "high"}}', "threshold of 'dog' but got 'high'"),
        ('{"thresholds": {"dog": NaN}}', "but got nan"),
        ("{", "cannot be read"),
    ],
)
def test_files_that_hold_no_thresholds_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(DataError, match=said):
        sg.apply_thresholds(found([], []), tmp_path / "t.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        sg.apply_thresholds(found([], []), tmp_path / "none.yaml")
