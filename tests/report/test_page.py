"""The report as a browser sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepgrad.data.base import DetectionDataset
from stepgrad.data.shapes import ShapesDataset
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.records import Evidence
from stepgrad.report import write_report
from tests.report.browser import Browser
from tests.report.checks import (
    CUT_CELLS,
    NASTY,
    READ_NUMBERS,
    VISIBLE_PANES,
    assert_page_is_sound,
    contrast,
    luminance,
)
from tests.report.runs import (
    CONFIG,
    Renamed,
    detections_of,
    evaluated,
    evidence_of,
    log_lines,
    nothing_found,
    shapes_evidence,
)

PROTOCOLS = ["voc12", "voc07", "coco"]


def report(folder: Path, evidence: Evidence, dataset: DetectionDataset | None, **changes: Any) -> Path:
    given: dict[str, Any] = {"title": "a run", "config": CONFIG, "history": log_lines(), "protocols": PROTOCOLS}
    return write_report(folder, evidence=evidence, dataset=dataset, **{**given, **changes})


def shapes_evaluator(images: int, protocols: Any, **options: Any) -> Evaluator:
    """The evaluator that has seen what `shapes_evidence` has."""
    dataset = ShapesDataset("val", length=images)
    return evaluated(dataset, *detections_of(dataset, np.random.default_rng(0)), protocols, **options)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset, evidence = shapes_evidence()
    return report(tmp_path_factory.mktemp("run"), evidence, dataset)


def test_checks_notice_a_request_a_console_message_and_a_wide_page(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    text = page.read_text(encoding="utf-8")
    for k, fault in enumerate(
        [
            '<img src="missing.png">',
            "<script>console.warn('x')</script>",
            '<div style="width: 500px">wide</div>',
            '<data value="0.5" data-key="/maps/voc12">0.5000</data>',
        ]
    ):
        (tmp_path / str(k)).mkdir()
        (tmp_path / str(k) / "report.json").write_bytes((page.parent / "report.json").read_bytes())
        broken = tmp_path / str(k) / "report.html"
        broken.write_text(text.replace("</main>", f"{fault}</main>"), encoding="utf-8")
        with pytest.raises(AssertionError):
            assert_page_is_sound(browser, broken)


def test_every_number_on_the_page_equals_the_json_and_the_console_stays_silent(browser: Browser, page: Path) -> None:
    assert_page_is_sound(browser, page)
    keys = {item["key"] for item in browser.run(READ_NUMBERS)}
    assert {f"/maps/{name}" for name in PROTOCOLS} <= keys
    assert {"/run/best_step", "/run/seconds", "/mistakes/gains/missed", "/classes/5/ap/coco"} <= keys
    assert {"/confusion/cells/0/count", "/calibration/error", "/sizes/1/ap", "/working/f1", "/scores/hits/15"} <= keys


def test_numbers_equal_those_of_the_evaluator(page: Path) -> None:
    result = shapes_evaluator(24, PROTOCOLS).compute()
    numbers = json.loads((page.parent / "report.json").read_text())
    for name in PROTOCOLS:
        assert numbers["maps"][name] == result[name].map
        assert [row["ap"][name] for row in numbers["classes"]] == [row.ap for row in result[name].classes]
    assert [row["recall"] for row in numbers["classes"]] == [row.recall for row in result.classes]
    assert numbers["dataset"]["objects"] == sum(row.objects for row in result.classes)


@pytest.mark.parametrize("protocol", ["voc07-devkit", "voc12-devkit", "voc07-python"])
def test_inclusive_pixel_protocols_see_continuous_boxes_as_the_evaluator_does(tmp_path: Path, protocol: str) -> None:
    dataset, evidence = shapes_evidence(8)
    made = report(tmp_path, evidence, dataset, protocols=[protocol])
    expected = shapes_evaluator(8, protocol).compute().map
    assert json.loads((made.parent / "report.json").read_text())["maps"] == {protocol: expected}


def test_the_ap_beside_a_curve_is_that_of_the_iou_it_is_drawn_at(browser: Browser, page: Path) -> None:
    rows = shapes_evaluator(24, "coco").compute().classes
    browser.open(page)
    labels = browser.run("[...document.querySelectorAll('#pane3 .panel p')].map(p => p.textContent)")
    assert labels == [f"AP50 {100 * row.ap_by_threshold[0.5]:.1f} AP50:95 {100 * row.ap:.1f}" for row in rows]


METRICS = ["f1", "f1@threshold=0.25", "cost@threshold=0.5,false_alarm=1,miss=10", "recall@precision=0.95"]


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with many tiles."""
    dataset, evidence = shapes_evidence(8)
    folder = tmp_path_factory.mktemp("tiles")
    return report(folder, evidence, dataset, history=[], protocols=["coco"], metrics=METRICS)


def test_every_f1_says_its_mean_its_iou_and_its_scores_and_the_terminal_says_the_same(
    browser: Browser, tiled: Path
) -> None:
    printed = str(shapes_evaluator(8, "coco", metrics=METRICS).compute().with_intervals()).splitlines()
    browser.open(tiled)
    tiles = browser.run(
        """[...document.querySelectorAll('.headline div')].map(tile => ['dt', 'data', 'small'].map(
          part => tile.querySelector(part)?.textContent))"""
    )
    named = {name: f"{name} {value} ({how})" for name, value, how in tiles}
    for name in METRICS:
        assert named[name] in printed
    f1s = [how for name, _, how in tiles if "f1" in name.lower()]
    assert len(f1s) == 3
    assert len(set(f1s)) == 3
    assert all("class" in how and "IoU" in how and re.search("score|threshold", how) for how in f1s)


@pytest.mark.parametrize("width", [1400, 700, 390])
def test_tiles_leave_no_gap_and_no_word_in_them_is_broken(browser: Browser, tiled: Path, width: int) -> None:
    browser.open(tiled, width=width)
    edges = browser.run(
        """(() => { const ends = {}, all = document.querySelector('.headline').getBoundingClientRect();
          for (const tile of document.querySelectorAll('.headline div')) {
            const place = tile.getBoundingClientRect(); ends[place.top] = place.right; }
          return Object.values(ends).map(end => all.right - end); })()"""
    )
    assert all(gap == pytest.approx(1, abs=0.5) for gap in edges)  # the border
    lines = browser.run(
        """[...document.querySelectorAll('.headline dt')].flatMap(name => [...name.childNodes]).filter(
          node => node.nodeType === 3 && !node.data.includes(' ')).map(node => {
            const range = document.createRange(); range.selectNode(node);
            return [...range.getClientRects()].length; })"""
    )
    assert len(lines) > 10
    assert set(lines) == {1}


@pytest.mark.parametrize("width", [390, 320])
def test_on_a_phone_no_explanation_is_cut_and_wide_tables_are_marked(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(CUT_CELLS) == []


def test_precision_recall_and_f1_by_score_are_drawn_for_each_class_with_the_best_f1(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    numbers = json.loads(page.with_suffix(".json").read_text())
    best = browser.run(
        "[...document.querySelectorAll('#pane0 .panel')].map(p => p.querySelector('circle title').textContent)"
    )
    assert best == [f"F1 {100 * row['f1']:.1f} at {row['threshold']:.3g}, the best" for row in numbers["classes"]]
    assert browser.run("document.querySelectorAll('#scores path.arm, #pane0 path.arm').length") == 3 * (1 + len(best))
    for row, right, wrong in zip(
        numbers["classes"], numbers["by_score"]["right"], numbers["by_score"]["wrong"], strict=True
    ):
        at = sum(score <= row["threshold"] for score in numbers["by_score"]["scores"])  # the next level above it
        assert 2 * right[at] / (right[at] + wrong[at] + row["objects"]) <= row["f1"]


COLOURS = """selector => [...document.querySelectorAll(selector)].map(part => {
  const paper = new OffscreenCanvas(1, 1).getContext('2d'), style = getComputedStyle(part);
  const ground = part.matches('.matrix td') ? style : getComputedStyle(document.querySelector('.card'));
  return [part.namespaceURI.endsWith('svg') ? style.fill : style.color, ground.backgroundColor].map(colour => {
    paper.fillStyle = colour;  // whatever way it is written
    paper.fillRect(0, 0, 1, 1);
    return `rgb(${paper.getImageData(0, 0, 1, 1).data.slice(0, 3).join(', ')})`; }); })"""


def test_text_stands_out_from_its_background_in_both_themes(browser: Browser, page: Path) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        browser.open(page, scheme=scheme)
        for selector in (".lead", "h2", "td data", "figcaption", ".main data", "svg .tick", ".matrix td[class]"):
            found = browser.run(f"({COLOURS})({selector!r})")
            assert found, selector
            assert min(contrast(text, ground) for text, ground in found) >= 4.5, (scheme, selector)
        grounds[scheme] = luminance(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert grounds["dark"] < 0.1 < 0.8 < grounds["light"]


def test_heading_sorts_the_classes_and_again_the_other_way_round(browser: Browser, page: Path) -> None:
    browser.open(page)
    read = "[...document.querySelectorAll('#classes tbody tr')].map(r => Number(r.cells[6].textContent))"
    press = "document.querySelectorAll('#classes th button')[6].click()"
    given = browser.run(read)
    assert browser.run(f"{press}; {read}") == sorted(given, reverse=True) != given
    assert browser.run(f"{press}; {read}") == sorted(given)
    names = "[...document.querySelectorAll('#classes tbody th')].map(c => c.textContent)"
    assert browser.run(f"document.querySelector('#classes th button').click(); {names}") == sorted(browser.run(names))


def test_choosing_a_protocol_shows_its_curves_and_hides_the_others(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run(VISIBLE_PANES) == [True, False, False, False]
    for pick, shown in ((3, [False, False, True, False]), (0, [False, False, False, True])):
        assert browser.run(f"document.querySelector('label[for=pick{pick}]').click(); {VISIBLE_PANES}") == shown


def test_names_and_ids_with_markup_and_control_characters_stay_text(browser: Browser, tmp_path: Path) -> None:
    ids = [f"{name} {k}" for k, name in enumerate(NASTY)]
    dataset = Renamed(NASTY, ids)
    evidence = evidence_of(dataset, *detections_of(dataset, np.random.default_rng(1)))
    made = report(tmp_path, evidence, dataset, title="</title><b>&amp;", config={NASTY[0]: {"x": NASTY[2]}})
    assert_page_is_sound(browser, made)
    assert browser.run("document.title") == "</title><b>&amp;"
    names = browser.run("[...document.querySelectorAll('#classes tbody th')].map(c => c.textContent)")
    assert names[:4] == NASTY[:4]
    assert names[5].startswith("\N{SNOWMAN} 日本 ")
    captions = browser.run("document.querySelector('#gallery').textContent")
    assert all(name in captions for name in ids[:4])
    choices = browser.run("[...document.querySelectorAll('#of-class option')].map(o => o.text)")
    assert choices[1:4] == NASTY[:3]
    browser.run("document.querySelector('#gallery .open').click()")
    listed = browser.run("[...document.querySelectorAll('#marks b')].map(b => b.textContent)")
    assert listed
    assert set(listed) <= set(choices)
    assert browser.complaints() == []


def test_empty_is_ordinary(browser: Browser, tmp_path: Path) -> None:
    dataset = ShapesDataset("val", length=4)
    preds, targets = detections_of(dataset, np.random.default_rng(0))
    without = [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}] * 4
    full = evidence_of(dataset, preds, targets)
    cases: dict[str, dict[str, Any]] = {
        "no detections": {"evidence": evidence_of(dataset, nothing_found(dataset), targets)},
        "no objects": {"evidence": evidence_of(dataset, preds, without)},
        "neither": {"evidence": evidence_of(dataset, nothing_found(dataset), without)},
        "no images": {"evidence": evidence_of(dataset, [], [])},
        "no log": {"history": [], "config": {}},
        "no mAP phase": {"history": log_lines(map_steps=0)},
        "no validation": {"history": [line for line in log_lines() if line["kind"] != "val"]},
        "one step": {"history": log_lines(4, 0)[:2]},
        "no picture": {"dataset": None},
    }
    for name, changes in cases.items():
        made = report(tmp_path / name, **{"evidence": full, "dataset": dataset, **changes})
        assert_page_is_sound(browser, made)
    assert browser.run("document.querySelectorAll('#gallery .mark').length") > 0  # the last one: no picture, but boxes
    assert browser.run("document.images.length") == 0


@pytest.mark.parametrize("classes", [1, 80])
def test_few_and_many_classes_fit(browser: Browser, tmp_path: Path, classes: int) -> None:
    ids = [f"img{k}" for k in range(12)]
    dataset = Renamed([f"a rather long name of a class, number {c}" for c in range(classes)], ids)
    found = detections_of(dataset, np.random.default_rng(2), clutter=60)
    made = report(tmp_path, evidence_of(dataset, *found), dataset)
    assert_page_is_sound(browser, made)
    assert made.stat().st_size < 2_000_000
    browser.open(made, width=1280)
    heights = browser.run("[...document.querySelectorAll('#pane1 h3')].map(h => h.offsetHeight)")
    assert len(heights) == classes
    assert max(heights) < 30  # one line each


def test_same_run_gives_the_same_bytes_and_plots_are_pictures_by_themselves(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    dataset, evidence = shapes_evidence()
    assert report(tmp_path, evidence, dataset).read_bytes() == page.read_bytes()
    plots = sorted((tmp_path / "plots").iterdir())
    names = ["gradient-sums.svg", "loss-1-nll.svg", "loss-2-map.svg", "map.svg", "nonzero.svg"]
    assert [plot.name for plot in plots] == names
    for plot in plots:
        browser.open(plot)
        assert browser.complaints() == []
        assert browser.run("document.documentElement.tagName") == "svg"
        assert browser.run("getComputedStyle(document.querySelector('path')).stroke").startswith("rgb("), plot.name
