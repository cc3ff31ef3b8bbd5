"""The benchmark of train_for_map compares steps of the same model, and its table admits a broken promise."""

from __future__ import annotations

import pytest

from benchmarks.drop_in import Case, measure, pictures, render
from tests.models.tiny import SIZE, tiny_model


@pytest.mark.parametrize("family", ["faster_rcnn", "retinanet"])
def test_every_way_of_training_is_measured(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.drop_in.CLASSES", 3)
    case = Case(lambda: tiny_model(family), SIZE, 2, target=1000.0, first_label=int(family == "faster_rcnn"))
    row = measure(family, case, rounds=1)
    assert row["ratio"].keys() == {"mix", "replace"}
    assert row["ratio"]["mix"] == row["mix"]["median"] / row["stock"]["median"]
    assert row["anchors"] == (None if family == "faster_rcnn" else (64 + 16) * 6)
    page = render({"command": "x", "machine": {}, "families": [row, {**row, "target": 0.0}]})
    assert [line.endswith("| yes |") for line in page.splitlines()[-2:]] == [True, False]


def test_objects_lie_within_their_pictures() -> None:
    case = Case(lambda: tiny_model("ssd"), SIZE, 3, target=1.0)
    for image, target in zip(*pictures(case), strict=True):
        assert image.shape[-1] == SIZE
        assert (target["boxes"] >= 0).all()
        assert (target["boxes"] <= SIZE).all()
        assert (target["labels"] >= 1).all()
