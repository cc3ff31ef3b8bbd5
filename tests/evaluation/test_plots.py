"""Precision-recall curves as pictures."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from stepgrad.errors import ConfigError
from stepgrad.evaluation import Evaluator
from stepgrad.files import WriteError
from tests.evaluation.datasets import boxes_at, pred, random_dataset, target


def small_evaluator() -> Evaluator:
    evaluator = Evaluator(3, ["voc12", "coco"], ["cat", "dog", "cow"])
    found = pred(boxes_at(0, 50, 20), [0.9, 0.8, 0.7], [0, 0, 0])
    evaluator.update([found], [target(boxes_at(0, 20, 90), [0, 0, 1])])
    return evaluator


def test_every_class_has_a_panel_with_its_curve_and_envelope() -> None:
    figure = small_evaluator().compute().plot()
    cat, dog, cow = figure.axes
    assert [panel.get_title() for panel in (cat, dog, cow)] == ["cat  83.3", "dog  0.0", "cow  0.0"]
    curve, envelope = (line.get_xydata() for line in cat.get_lines())
    np.testing.assert_allclose(curve, [[0.5, 1.0], [0.5, 0.5], [1.0, 2 / 3]])
    np.testing.assert_allclose(envelope, [[0, 1], [0.5, 1], [0.5, 2 / 3], [1, 2 / 3], [1, 0]])
    assert [text.get_text() for panel in (dog, cow) for text in panel.texts] == ["nothing found", "no objects"]


def test_panel_names_the_ap_at_the_threshold_drawn() -> None:
    evaluator = Evaluator(1, "coco")
    evaluator.update([pred(boxes_at(0, height=6), [0.9])], [target(boxes_at(0))])  # IoU 0.6
    titles = [evaluator.compute().plot(threshold=t).axes[0].get_title() for t in (0.5, 0.6, 0.65, 0.95)]
    assert titles == ["0  100.0", "0  100.0", "0  0.0", "0  0.0"]


def test_area_under_the_drawn_envelope_is_ap() -> None:
    result = random_dataset(np.random.default_rng(4), "difficult").evaluator("voc12").compute()
    rows = [row for row in result.classes if row.objects][:6]
    figure = result.plot(classes=[row.name for row in rows])
    for panel, row in zip(figure.axes, rows, strict=False):
        x, y = panel.get_lines()[1].get_xydata().T
        assert np.sum(np.diff(x) * y[1:]) == pytest.approx(row.ap, abs=1e-12)


def test_threshold_and_classes_can_be_chosen() -> None:
    figure = small_evaluator().compute()["coco"].plot(threshold=0.75, classes=["dog", 0])
    assert [panel.get_title().split()[0] for panel in figure.axes] == ["dog", "cat"]
    assert "curves at IoU 0.75" in figure.get_suptitle()
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("recall", "precision")


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_picture_is_written(tmp_path: Path, suffix: str) -> None:
    small_evaluator().compute().plot(tmp_path / f"curves.{suffix}")
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert (tmp_path / f"curves.{suffix}").read_bytes().startswith(start)


def test_unknown_format_and_no_classes_are_refused(tmp_path: Path) -> None:
    result = small_evaluator().compute()
    with pytest.raises(ConfigError, match=r"curves.doc: expected a name that ends in one of .*'png'"):
        result.plot(tmp_path / "curves.doc")
    with pytest.raises(ConfigError, match="at least one class"):
        result.plot(classes=[])
    assert list(tmp_path.iterdir()) == []


def test_full_disk_keeps_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "curves.png"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="the disk is full"):
        small_evaluator().compute().plot(path)
    assert path.read_bytes() == b"old"
