"""The report as a browser sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepgrad.data.base import DatasetTarget, DetectionDataset
from stepgrad.data.shapes import ShapesDataset
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.records import Evidence
from stepgrad.report import ComparisonRow, write_report
from stepgrad.report.page import look_up, number_text
from tests.report.browser import Browser
from tests.report.runs import CONFIG, detections_of, log_lines, shapes_evidence

PROTOCOLS = ["voc12", "voc07", "coco"]
ROWS = [
    ComparisonRow("nll", "then stop", {"voc12": 0.4121, "coco": 0.2}, 200, 80.25),
    ComparisonRow("nll, whole budget", "", {"voc12": 0.4432, "coco": float("nan")}, 320, 131.0),
    ComparisonRow("nll-then-map", "", {"voc12": 0.4871, "coco": 0.25}, 320, 4000.0),
]
READ_NUMBERS = """[...document.querySelectorAll("[data-key]")].map(e => ({
  key: e.dataset.key, kind: e.dataset.kind, text: e.textContent,
  value: e.dataset.value ?? e.getAttribute("value"), tag: e.tagName.toLowerCase()}))"""
NASTY = [
    '<script>alert("x")</script>',
    "a & b",
    "\"quoted\" 'name'",
    "{{ 7 * 7 }}",
    "\x00\x1b[31m",
    "\N{SNOWMAN} 日本 \udc80",
]


def report(folder: Path, evidence: Evidence, dataset: DetectionDataset | None, **changes: Any) -> Path:
    given: dict[str, Any] = {
        "title": "a run",
        "config": CONFIG,
        "history": log_lines(),
        "protocols": PROTOCOLS,
        "comparison": ROWS,
    }
    return write_report(folder, evidence=evidence, dataset=dataset, **{**given, **changes})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset, evidence = shapes_evidence()
    return report(tmp_path_factory.mktemp("run"), evidence, dataset)


class Renamed(ShapesDataset):
    """The same images under other ids and other names of classes."""

    def __init__(self, names: list[str], ids: list[str]) -> None:
        super().__init__("val", length=len(ids))
        self.class_names = tuple(names)
        self.named = ids

    def target(self, index: int) -> DatasetTarget:
        target = super().target(index)
        target["image_id"] = self.named[index]
        target["labels"] %= len(self.class_names)
        return target

    def index_of(self, image_id: str | int) -> int:
        return self.named.index(str(image_id))


def evidence_of(dataset: DetectionDataset, preds: list[Any], targets: list[Any]) -> Evidence:
    evaluator = Evaluator(len(dataset.class_names), "voc12", dataset.class_names, boxes="continuous")
    evaluator.update(preds, targets)
    return evaluator.evidence()


def assert_page_is_sound(browser: Browser, page: Path) -> None:
    """No complaint, no request for anything else, nothing wider than a narrow window, every number as in the JSON."""
    browser.open(page, width=420)
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= 420
    numbers = json.loads((page.parent / "report.json").read_text(encoding="utf-8"))
    shown = browser.run(READ_NUMBERS)
    assert len(shown) > 5
    for item in shown:
        value = look_up(numbers, item["key"])
        if item["value"] is None:
            assert (value, item["text"]) == (None, "–"), item
            continue
        assert float(item["value"]) == value, item
        if item["tag"] == "data":
            assert item["text"] == number_text(value, item["kind"]), item


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
    assert {
        "/run/best_step",
        "/run/seconds",
        "/comparison/2/gain",
        "/mistakes/gains/missed",
        "/classes/5/ap/coco",
    } <= keys
    assert {"/confusion/cells/0/count", "/calibration/error", "/sizes/1/ap", "/working/f1", "/scores/hits/15"} <= keys


def test_rounded_text_is_the_number_itself_to_the_last_digit_shown(browser: Browser, page: Path) -> None:
    browser.open(page)
    scores = [item for item in browser.run(READ_NUMBERS) if item.get("kind") in ("points", "gain", "hundredths")]
    assert len(scores) > 30
    for item in scores:
        half = 0.5 * 10.0 ** -len(item["text"].split(".")[1])
        unit = 1 if item["kind"] == "hundredths" else 100
        assert abs(float(item["text"]) - unit * float(item["value"])) <= half * (1 + 1e-9)


def test_every_map_on_the_page_is_in_per_cent_with_one_decimal(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = [item for item in browser.run(READ_NUMBERS) if re.search("/maps?/|/ap/|/gains?/|/gain$", item["key"])]
    assert len(shown) > 30
    assert [item for item in shown if not re.fullmatch(r"[+-]?\d{1,3}\.\d|–", item["text"])] == []


def test_numbers_equal_those_of_the_evaluator(page: Path) -> None:
    dataset = ShapesDataset("val", length=24)
    evaluator = Evaluator(len(dataset.class_names), PROTOCOLS, dataset.class_names, boxes="continuous")
    evaluator.update(*detections_of(dataset, np.random.default_rng(0)))
    result, numbers = evaluator.compute(), json.loads((page.parent / "report.json").read_text())
    for name in PROTOCOLS:
        assert numbers["maps"][name] == result[name].map
        assert [row["ap"][name] for row in numbers["classes"]] == [row.ap for row in result[name].classes]
    assert [row["recall"] for row in numbers["classes"]] == [row.recall for row in result.classes]
    assert numbers["dataset"]["objects"] == sum(row.objects for row in result.classes)


@pytest.mark.parametrize("protocol", ["voc07-devkit", "voc12-devkit", "voc07-python"])
def test_inclusive_pixel_protocols_see_continuous_boxes_as_the_evaluator_does(tmp_path: Path, protocol: str) -> None:
    dataset, evidence = shapes_evidence(8)
    evaluator = Evaluator(len(dataset.class_names), protocol, boxes="continuous")
    evaluator.update(*detections_of(dataset, np.random.default_rng(0)))
    made = report(tmp_path, evidence, dataset, protocols=[protocol])
    assert json.loads((made.parent / "report.json").read_text())["maps"] == {protocol: evaluator.compute().map}


def test_the_ap_beside_a_curve_is_that_of_the_iou_it_is_drawn_at(browser: Browser, page: Path) -> None:
    dataset = ShapesDataset("val", length=24)
    evaluator = Evaluator(len(dataset.class_names), "coco", dataset.class_names, boxes="continuous")
    evaluator.update(*detections_of(dataset, np.random.default_rng(0)))
    rows = evaluator.compute().classes
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
    dataset = ShapesDataset("val", length=8)
    evaluator = Evaluator(len(dataset.class_names), "coco", dataset.class_names, boxes="continuous", metrics=METRICS)
    evaluator.update(*detections_of(dataset, np.random.default_rng(0)))
    printed = str(evaluator.compute()).splitlines()
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


@pytest.mark.parametrize("width", [1400, 1000, 700, 390, 320])
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


CUT_CELLS = """[...document.querySelectorAll('.card.scroll')].flatMap(card => {
  const more = card.scrollWidth > card.clientWidth, style = getComputedStyle(card);
  if (more && !style.backgroundAttachment.includes('local')) return ['no mark: ' + card.textContent];
  return [...card.querySelectorAll('th small')].filter(cell => {
    const [inner, outer] = [cell, cell.closest('th')].map(part => part.getBoundingClientRect());
    return cell.scrollWidth > cell.clientWidth || inner.right > outer.right || outer.right > card.getBoundingClientRect().right;
  }).map(cell => cell.textContent); })"""


def test_on_a_phone_no_explanation_is_cut_and_wide_tables_are_marked(browser: Browser, page: Path) -> None:
    browser.open(page, width=390)
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 420, 320])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int, scheme: str) -> None:
    browser.open(page, width=width, scheme=scheme)
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_text_stands_out_from_its_background_in_both_themes(browser: Browser, page: Path) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        browser.open(page, scheme=scheme)
        for selector in (".lead", "h2", "td data", "figcaption", ".headline .main dd", "svg text.tick"):
            name = "fill" if selector.startswith("svg") else "color"
            colour = browser.run(f"getComputedStyle(document.querySelector({selector!r})).{name}")
            card = browser.run("getComputedStyle(document.querySelector('.card')).backgroundColor")
            assert contrast(colour, card) >= 4.5, (scheme, selector)
        grounds[scheme] = luminance(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert grounds["dark"] < 0.1 < 0.8 < grounds["light"]


COLOURS_OF_CELLS = """[...document.querySelectorAll('.matrix td[class]')].map(cell => {
  const paper = new OffscreenCanvas(1, 1).getContext('2d'), style = getComputedStyle(cell);
  return [style.color, style.backgroundColor].map(colour => {  // whatever way it is written
    paper.fillStyle = colour;
    paper.fillRect(0, 0, 1, 1);
    return `rgb(${paper.getImageData(0, 0, 1, 1).data.slice(0, 3).join(', ')})`;
  });
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_counts_in_the_shaded_cells_of_confused_classes_can_be_read(browser: Browser, page: Path, scheme: str) -> None:
    browser.open(page, scheme=scheme)
    cells = browser.run(COLOURS_OF_CELLS)
    assert len(cells) > 15
    assert min(contrast(text, ground) for text, ground in cells) >= 4.5


def luminance(colour: str) -> float:
    """Relative luminance of rgb(r, g, b) (WCAG 2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


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
    visible = "[...document.querySelectorAll('.pane')].map(p => p.offsetHeight > 0)"
    assert browser.run(visible) == [True, False, False, False]
    assert browser.run(f"document.querySelector('label[for=pick3]').click(); {visible}") == [False, False, True, False]
    assert browser.run(f"document.querySelector('label[for=pick0]').click(); {visible}") == [False, False, False, True]


def test_every_picture_decodes(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("for (const image of document.images) image.loading = 'eager'")
    sizes = browser.run("Promise.all([...document.images].map(i => i.decode().then(() => i.naturalWidth)))")
    assert len(sizes) == 24
    assert min(sizes) > 0


def test_names_and_ids_with_markup_and_control_characters_stay_text(browser: Browser, tmp_path: Path) -> None:
    ids = [f"{name} {k}" for k, name in enumerate(NASTY)]
    dataset = Renamed(NASTY, ids)
    evidence = evidence_of(dataset, *detections_of(dataset, np.random.default_rng(1)))
    made = report(
        tmp_path,
        evidence,
        dataset,
        title="</title><b>&amp;",
        config={NASTY[0]: {"x": NASTY[2]}},
        comparison=[ComparisonRow(NASTY[0], NASTY[1], {"voc12": 0.1})],
    )
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


def nothing_found(dataset: DetectionDataset) -> list[Any]:
    none = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}
    return [none] * len(dataset)


def test_empty_is_ordinary(browser: Browser, tmp_path: Path) -> None:
    dataset = ShapesDataset("val", length=4)
    preds, targets = detections_of(dataset, np.random.default_rng(0))
    without = [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}] * 4
    cases: dict[str, dict[str, Any]] = {
        "no detections": {"evidence": evidence_of(dataset, nothing_found(dataset), targets)},
        "no objects": {"evidence": evidence_of(dataset, preds, without)},
        "neither": {"evidence": evidence_of(dataset, nothing_found(dataset), without)},
        "no images": {"evidence": evidence_of(dataset, [], [])},
        "no log": {"evidence": evidence_of(dataset, preds, targets), "history": [], "config": {}, "comparison": []},
        "no mAP phase": {"evidence": evidence_of(dataset, preds, targets), "history": log_lines(map_steps=0)},
        "no validation": {
            "evidence": evidence_of(dataset, preds, targets),
            "history": [line for line in log_lines() if line["kind"] != "val"],
        },
        "one step": {"evidence": evidence_of(dataset, preds, targets), "history": log_lines(4, 0)[:2]},
        "no picture": {"evidence": evidence_of(dataset, preds, targets), "dataset": None},
    }
    for name, changes in cases.items():
        made = report(tmp_path / name, **{"comparison": [], "dataset": dataset, **changes})
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


def test_same_run_gives_the_same_bytes(page: Path, tmp_path: Path) -> None:
    dataset, evidence = shapes_evidence()
    again = report(tmp_path, evidence, dataset)
    assert again.read_bytes() == page.read_bytes()
    assert sorted(p.name for p in (tmp_path / "plots").iterdir()) == [
        "gradient-sums.svg",
        "loss-1-nll.svg",
        "loss-2-map.svg",
        "map.svg",
        "nonzero.svg",
    ]


def test_plots_are_pictures_by_themselves(browser: Browser, page: Path) -> None:
    for plot in sorted((page.parent / "plots").iterdir()):
        browser.open(plot)
        assert browser.complaints() == []
        assert browser.run("document.documentElement.tagName") == "svg"
        stroke = browser.run("getComputedStyle(document.querySelector('path')).stroke")
        assert stroke.startswith("rgb("), plot.name
