"""The browser over all images, in a real one: the slider, layers, filters, order, zoom and names."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from stepgrad.deploy.cut_files import read_cuts
from stepgrad.evaluation.errors_by_type import LEFT_OUT, RIGHT, TYPES
from stepgrad.metric.protocol import get_protocol
from stepgrad.report import image_data, pictures, write_report
from stepgrad.report.confusion import confusion
from stepgrad.report.findings import Findings
from tests.report.browser import Browser
from tests.report.runs import shapes_evidence

IMAGES = 30  # more than are shown at first
SET = """async (id, value) => {
  const input = document.getElementById(id);
  input.value = value;
  input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input"));
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""
LAYER = """(name, on) => {
  const input = document.querySelector(`[name=layer][value=${name}]`);
  input.checked = on;
  input.dispatchEvent(new Event("change"));
}"""
RATES = """['precision', 'recall', 'f1', 'count-right', 'count-wrong', 'count-missed'].map(
  id => document.getElementById(id).textContent)"""
DRAWN = "['right', 'wrong', 'missed'].map(kind => document.querySelectorAll(`#gallery .mark.${kind}`).length)"
SHOWN = "[...document.querySelectorAll('#gallery figcaption b span:first-child')].map(s => s.textContent)"
COUNTS = "[...document.querySelectorAll('#gallery figcaption')].map(c => c.lastChild.textContent)"


@pytest.fixture(scope="module")
def findings() -> Findings:
    return Findings.of(shapes_evidence(IMAGES)[1], get_protocol("voc12"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("images"))


def write(folder: Path, images: int = IMAGES, clutter: int = 3) -> Path:
    dataset, evidence = shapes_evidence(images, clutter=clutter)
    given: dict[str, Any] = {"title": "images", "config": {}, "history": [], "protocols": ["voc12"]}
    return write_report(folder, evidence=evidence, dataset=dataset, **given)


def reaching(findings: Findings, level: int | None) -> NDArray[np.bool_]:
    """Detections with the score of a level; None: with that of their class's best F1."""
    scores, labels = findings.evidence.detections.scores, findings.evidence.detections.labels
    if level is not None:
        return scores >= findings.values[level]
    least = [np.inf if cut.threshold is None else cut.threshold for cut in findings.cuts]
    return scores >= np.array(least)[labels]


def marks_by_image(findings: Findings, level: int | None, label: int | None = None) -> list[Counter[str]]:
    """Kinds of marks on each image, counted one by one."""
    passing = reaching(findings, level)
    evidence, mistakes = findings.evidence, findings.mistakes
    images: list[Counter[str]] = [Counter() for _ in range(evidence.num_images)]
    found = set()
    for row, kind in enumerate(mistakes.of_detections.tolist()):
        if kind == LEFT_OUT or not passing[row]:
            continue
        if kind == RIGHT:
            found.add(int(mistakes.touched[row]))
        if label is None or evidence.detections.labels[row] == label:
            images[evidence.detections.images[row]]["right" if kind == RIGHT else TYPES[kind]] += 1
    for row in np.flatnonzero(mistakes.of_objects != LEFT_OUT).tolist():
        if row not in found and (label is None or evidence.objects.labels[row] == label):
            images[evidence.objects.images[row]]["missed"] += 1
    return images


def layers(counts: Counter[str]) -> tuple[int, int, int]:
    right, missed = counts["right"], counts["missed"]
    return right, counts.total() - right - missed, missed


def show_all(browser: Browser) -> None:
    browser.run("document.getElementById('more').hidden || document.getElementById('more').click()")


@pytest.mark.parametrize("label", [None, 2])
def test_the_slider_sets_precision_recall_f1_and_the_boxes_drawn(
    browser: Browser, page: Path, findings: Findings, label: int | None
) -> None:
    browser.open(page)
    if label is not None:
        browser.run(f"({SET})('of-class', '{label}')")
    for level in (0, 20, 50, 80, 100, None):
        if level is None:
            browser.run("document.getElementById('own').click()")
        else:
            browser.run(f"({SET})('threshold', '{level}')")
        show_all(browser)
        right, wrong, missed = layers(sum(marks_by_image(findings, level, label), Counter()))
        share = lambda part, whole: f"{100 * part / whole:.1f}" if whole else "–"  # noqa: E731
        assert browser.run(RATES) == [
            share(right, right + wrong),
            share(right, right + missed),
            share(2 * right, 2 * right + wrong + missed),
            *map(str, (right, wrong, missed)),
        ]
        assert browser.run(DRAWN) == [right, wrong, missed]
    assert browser.complaints() == []


def test_it_opens_with_each_class_at_its_best_f1_and_the_worst_images_first(
    browser: Browser, page: Path, findings: Findings
) -> None:
    browser.open(page)
    assert browser.run("document.getElementById('own').checked")
    marks = [layers(counts) for counts in marks_by_image(findings, None)]

    def goodness(image: str) -> float:
        right, wrong, missed = marks[int(image)]
        return 2 * right / (2 * right + wrong + missed) if right + wrong + missed else 2.0

    show_all(browser)
    shown = [goodness(image) for image in browser.run(SHOWN)]
    assert len(shown) == IMAGES
    assert shown == sorted(shown)
    browser.run(f"({SET})('order', 'given')")
    show_all(browser)
    assert browser.run(SHOWN) == [str(image) for image in range(IMAGES)]
    assert browser.run(COUNTS) == [f"{right} right · {wrong} wrong · {missed} missed" for right, wrong, missed in marks]


CELLS = """Object.fromEntries([...document.querySelectorAll('[data-pair]')].filter(cell => cell.textContent)
  .map(cell => [cell.dataset.pair, Number(cell.textContent)]))"""


def confused(findings: Findings, passing: NDArray[np.bool_]) -> dict[str, int]:
    cells = confusion(findings.cut_at(passing))["cells"]
    word = lambda label: "" if label is None else str(label)  # noqa: E731
    return {f"{word(cell['object'])}>{word(cell['detection'])}": cell["count"] for cell in cells}


def test_confused_classes_follow_the_scores_that_are_set(browser: Browser, page: Path, findings: Findings) -> None:
    browser.open(page)
    own = reaching(findings, None)
    assert browser.run(CELLS) == confused(findings, own)
    for level in (0, 35, 60, 100):
        browser.run(f"({SET})('threshold', '{level}')")
        assert browser.run(CELLS) == confused(findings, reaching(findings, level))
    browser.run("document.getElementById('own').click()")
    assert browser.run(CELLS) == confused(findings, own)
    browser.run(f"({SET})('of-class', '2')")
    browser.run(f"({SET})('threshold', '25')")
    of_class = findings.evidence.detections.labels == 2
    assert browser.run(CELLS) == confused(findings, np.where(of_class, reaching(findings, 25), own))
    assert browser.complaints() == []


def test_exported_scores_are_those_that_are_set(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.open(page)
    classes = json.loads(page.with_suffix(".json").read_text())["classes"]
    own = {row["name"]: row["threshold"] for row in classes}
    file = "decodeURIComponent(document.getElementById('download').href.split(',').slice(1).join(','))"

    def saved() -> Any:
        (tmp_path / "thresholds.json").write_text(browser.run(file))
        return read_cuts(tmp_path / "thresholds.json")["thresholds"]

    assert saved() == own == yaml.safe_load(browser.run(file))["thresholds"]
    browser.run(f"({SET})('of-class', '1')")
    browser.run(f"({SET})('threshold', '42')")
    assert saved() == {**own, classes[1]["name"]: 0.42}
    assert browser.run("document.getElementById('thresholds').textContent") == browser.run(file)
    browser.run(f"({SET})('of-class', '')")
    assert not browser.run("document.getElementById('own').checked")
    browser.run("document.getElementById('own').click()")
    assert saved() == own


@pytest.mark.parametrize("kind", ["", "wrong", "right", *TYPES])
def test_filters_leave_the_images_that_have_such_a_mistake_of_that_class(
    browser: Browser, page: Path, findings: Findings, kind: str
) -> None:
    browser.open(page)
    browser.run(f"({SET})('threshold', '15')")
    browser.run(f"({SET})('order', 'given')")
    for label in (None, 1):
        browser.run(f"({SET})('of-class', '{'' if label is None else label}')")
        browser.run(f"({SET})('of-kind', '{kind}')")
        show_all(browser)
        expected = [
            str(image)
            for image, counts in enumerate(marks_by_image(findings, 15, label))
            if (
                counts["box"] or counts.total() - counts["right"] - counts["missed"]
                if kind == "wrong"
                else counts[kind]
            )
            or (kind == "" and (label is None or counts))
        ]
        assert browser.run(SHOWN) == expected


def test_a_layer_that_is_switched_off_is_not_drawn(browser: Browser, page: Path) -> None:
    browser.open(page)
    before = browser.run(DRAWN)
    assert min(before) > 0
    for k, name in enumerate(["right", "wrong", "missed"]):
        browser.run(f"({LAYER})('{name}', false)")
        assert browser.run(DRAWN) == [0 if j == k else count for j, count in enumerate(before)]
        browser.run(f"({LAYER})('{name}', true)")


def test_part_of_a_name_finds_images(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run(f"({SET})('find', '29')")
    assert browser.run(SHOWN) == ["29"]
    browser.run(f"({SET})('find', 'no such image')")
    assert browser.run(SHOWN) == []
    assert "No image" in browser.run("document.getElementById('shown').textContent")


@pytest.mark.parametrize("width", [1280, 390])
def test_an_image_opens_zooms_and_gives_way_to_the_next(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    first, second = browser.run(SHOWN)[:2]
    name, wide = "document.getElementById('viewer-name').textContent", "document.getElementById('stage').clientWidth"
    browser.run("document.querySelector('#gallery .open').click()")
    assert browser.run(name) == f"image {first}"
    before = browser.run(wide)
    browser.run("document.getElementById('larger').click()")
    assert browser.run(wide) == pytest.approx(1.5 * before, abs=1)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.images[0].decode().then(() => document.images[0].naturalWidth)") > 0
    browser.run("document.getElementById('smaller').click()")
    assert browser.run(wide) == pytest.approx(before, abs=1)
    press = "key => document.getElementById('viewer').dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))"
    browser.run(f"({press})('ArrowRight')")
    assert browser.run(name) == f"image {second}"
    browser.run(f"({press})('ArrowLeft')")
    assert browser.run(name) == f"image {first}"
    browser.run(f"({press})('Escape')")
    assert browser.run("document.getElementById('viewer').offsetHeight") == 0
    assert browser.complaints() == []


def test_names_on_a_dense_picture_cover_neither_names_nor_small_boxes_and_the_list_has_them_all(
    browser: Browser, tmp_path: Path
) -> None:
    browser.open(write(tmp_path, images=2, clutter=60))
    browser.run(f"({SET})('threshold', '0')")
    browser.run("document.querySelector('#gallery .open').click()")
    rectangles = """[...document.querySelectorAll('#stage .name rect')].map(r => {
      const [x, y, w, h] = ['x', 'y', 'width', 'height'].map(name => Number(r.getAttribute(name)));
      return [x, y, x + w, y + h]; })"""
    names = browser.run(rectangles)
    boxes = browser.run(rectangles.replace(".name rect", ".mark .halo"))
    marks = browser.run("document.querySelectorAll('#stage .mark').length")
    assert 0 < len(names) < marks == browser.run("document.querySelectorAll('#marks li').length")
    for k, a in enumerate(names):
        small = [b for b in boxes if (b[2] - b[0]) * (b[3] - b[1]) < 3 * (a[2] - a[0]) * (a[3] - a[1])]
        for b in names[:k] + small:
            assert min(a[2], b[2]) - max(a[0], b[0]) < 1e-6 or min(a[3], b[3]) - max(a[1], b[1]) < 1e-6
    for _ in range(3):
        browser.run("document.getElementById('larger').click()")
    assert len(browser.run(rectangles)) > len(names)  # there is more room now
    browser.run("document.getElementById('labels').click()")
    assert browser.run(rectangles) == []


def test_many_pictures_lie_in_a_folder_beside_the_page_and_load_when_they_are_seen(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = write(tmp_path / "inside")
    assert not (tmp_path / "inside/report_images").exists()
    monkeypatch.setattr(pictures, "INSIDE_BYTES", 20_000)
    page = write(tmp_path / "a #1%")
    assert page.stat().st_size < inside.stat().st_size
    assert len(list((page.parent / "report_images").iterdir())) == IMAGES
    browser.open(page)
    browser.run("document.images[0].decode()")
    assert browser.complaints() == []
    asked = browser.requests()
    assert asked[0] == page.resolve().as_uri()
    assert all(url.startswith(f"{page.parent.resolve().as_uri()}/report_images/") for url in asked[1:])
    assert 0 < len(asked) - 1 <= 24


def test_boxes_that_have_no_room_are_counted_and_the_page_says_so(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_data, "MOST_BOXES", 50)
    browser.open(write(tmp_path))
    browser.run(f"({SET})('threshold', '0')")
    show_all(browser)
    right, wrong, _ = browser.run(DRAWN)
    counted = browser.run(RATES)
    assert 0 < right + wrong < int(counted[3]) + int(counted[4])
    assert not browser.run("document.getElementById('uncounted').hidden")
    browser.run("document.getElementById('own').click()")  # scores of the best F1: every box is there
    show_all(browser)
    assert browser.run(DRAWN) == [int(count) for count in browser.run(RATES)[3:]]
    assert browser.run("document.getElementById('uncounted').hidden")
    assert "counted but not drawn" in browser.run("document.getElementById('images').textContent")
