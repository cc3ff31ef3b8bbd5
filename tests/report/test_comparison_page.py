"""The page that compares trainings, as a browser sees it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from stepgrad.data.shapes import ShapesDataset
from stepgrad.evaluation.records import Evidence
from stepgrad.report import Arm
from tests.report.browser import Browser
from tests.report.checks import CUT_CELLS, NASTY, READ_NUMBERS, VISIBLE_PANES, assert_page_is_sound, contrast
from tests.report.runs import Renamed, detections_of, evidence_of, nothing_found
from tests.report.trainings import NOISES, PROTOCOLS, noisy_arm, numbers_of, with_maps, write

BEST_ROWS = "[...document.querySelectorAll('tr.best th')].map(c => c.title)"


def test_every_number_on_the_page_equals_the_json_and_nothing_else_is_asked_for(
    browser: Browser, compared: Path
) -> None:
    assert_page_is_sound(browser, compared)
    assert browser.run("document.scripts.length") == 0
    keys = {item["key"] for item in browser.run(READ_NUMBERS)}
    wanted = {
        *(f"/arms/{k}/maps/{name}/{what}" for k in range(3) for name in PROTOCOLS for what in ("mean", "sd")),
        *(f"/arms/{k}/gains/{name}/{what}" for k in (0, 2) for name in PROTOCOLS for what in ("mean", "sd", "ahead")),
        *(f"/curves/{t}/maps/{k}" for t in range(2) for k in range(3)),
        *(f"/curves/{t}/classes/{c}/change" for t in range(2) for c in range(6)),
        *("/changed/counts/better", "/changed/better/0/chosen/right", "/changed/worse/0/reference/missed"),
        "/arms/0/seconds",
    }
    assert wanted <= keys
    assert not any(key.startswith("/arms/1/gains") for key in keys)  # the reference gains nothing over itself


def test_only_the_winner_has_a_colour(
    browser: Browser, arms: list[Arm], dataset: ShapesDataset, tmp_path: Path
) -> None:
    cases = {
        "clear": ([[0.3, 0.4], [0.31, 0.41], [0.5, 0.61]], ["mAP"]),
        "within the spread": ([[0.3, 0.4], [0.31, 0.41], [0.30, 0.49]], []),
    }
    for name, (maps, winners) in cases.items():
        made = [with_maps(arm, values) for arm, values in zip(arms, maps, strict=True)]
        browser.open(write(tmp_path / name, made, dataset, shown=0))
        assert browser.run(BEST_ROWS) == winners, name


def test_the_reference_comes_before_the_chosen_arm_and_each_picture_says_what_is_on_it(
    browser: Browser, compared: Path
) -> None:
    browser.open(compared)
    pairs = browser.run(
        "[...document.querySelectorAll('.pair')].map(p => [...p.querySelectorAll('img')].map(i => i.alt))"
    )
    assert len(pairs) == 6
    for left, right in pairs:
        assert left.startswith("more cross-entropy. ")
        assert right.startswith("mAP. ")
    sizes = browser.run("Promise.all([...document.images].map(i => i.decode().then(() => i.naturalWidth)))")
    assert min(sizes) > 0
    charts = "[...document.querySelectorAll('.charts svg')].map(s => s.getAttribute('aria-label'))"
    assert all("more cross-entropy: mAP " in text for text in browser.run(charts))


def test_lines_of_arms_differ_in_colour_and_dashes_and_stand_out_in_both_themes(
    browser: Browser, arms: list[Arm], dataset: ShapesDataset, tmp_path: Path
) -> None:
    many = [replace(arms[k % 3], name=f"arm {k}") for k in range(12)]
    made = write(tmp_path, many, dataset, shown=0)
    read = """[...document.querySelectorAll(".key svg line")].map(
      l => getComputedStyle(l)).map(s => [s.stroke, s.strokeDasharray])"""
    for scheme in ("light", "dark"):
        browser.open(made, scheme=scheme)
        card = browser.run("getComputedStyle(document.querySelector('.card')).backgroundColor")
        styles = browser.run(read)
        assert len({tuple(style) for style in styles}) == 12
        assert min(contrast(colour, card) for colour, _ in styles) >= 3
        assert styles[11][1] == "none"  # the chosen arm is the solid line
        assert styles[10][1] != "none"


def test_choosing_a_threshold_shows_its_classes(browser: Browser, compared: Path) -> None:
    browser.open(compared)
    assert browser.run(VISIBLE_PANES) == [True, False]
    assert browser.run(f"document.querySelector('label[for=pick2]').click(); {VISIBLE_PANES}") == [False, True]


def test_same_arms_give_the_same_bytes_and_plots_are_pictures(
    browser: Browser, compared: Path, arms: list[Arm], dataset: ShapesDataset, tmp_path: Path
) -> None:
    assert write(tmp_path, arms, dataset).read_bytes() == compared.read_bytes()
    plots = sorted((tmp_path / "plots").iterdir())
    assert [plot.name for plot in plots] == ["precision-recall-0.5.svg", "precision-recall-0.75.svg"]
    for plot in plots:
        browser.open(plot)
        assert browser.complaints() == []
        assert browser.run("getComputedStyle(document.querySelector('path')).stroke").startswith("rgb(")


def test_empty_is_ordinary(browser: Browser, tmp_path: Path) -> None:
    dataset = ShapesDataset("val", length=4)
    preds, targets = detections_of(dataset, np.random.default_rng(0))
    without = [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}] * 4
    full = evidence_of(dataset, preds, targets)
    silent = evidence_of(dataset, nothing_found(dataset), targets)
    maps = {"coco": 0.5, "voc12": 0.25}
    none = {"coco": math.nan, "voc12": math.nan}

    def two(runs: list[dict[str, float]], a: Evidence, b: Evidence) -> list[Arm]:
        return [Arm("a", "", runs, a), Arm("b", "", runs, b, 3.0)]

    cases = {
        "nothing changed": two([maps], full, full),
        "nothing found": two([maps, maps], silent, silent),
        "one finds nothing": two([maps], silent, full),
        "no objects": two([none, none], *[evidence_of(dataset, preds, without)] * 2),
        "neither": two([none], *[evidence_of(dataset, nothing_found(dataset), without)] * 2),
        "no images": two([none], *[evidence_of(dataset, [], [])] * 2),
        "no runs": two([], full, silent),
        "a protocol not measured": two([{"coco": 0.5}], full, silent),
        "one arm": two([maps, maps], full, full)[:1],
        "itself": two([maps, maps], full, silent),
    }
    texts = {}
    for name, arms in cases.items():
        made = write(tmp_path / name, arms, dataset, config={}, **{"reference": 1} if name == "itself" else {})
        assert_page_is_sound(browser, made)
        assert browser.run(BEST_ROWS) == []
        texts[name] = browser.run("document.body.innerText")
        assert "nan" not in texts[name].lower().split()
    assert "b does as well as a on every image." in texts["nothing changed"]
    assert "There is only one detector, so there is nothing to compare." in texts["one arm"]
    assert "ahead in" not in texts["one arm"]
    assert "The chosen detector is the reference itself" in texts["itself"]
    assert "No run was measured." in texts["no runs"]
    assert "none found" in texts["nothing found"]
    assert "no objects" in texts["no objects"]
    assert "±" not in texts["nothing changed"].split("mAP in per cent")[1].split("Precision and recall")[0]


def test_detections_that_know_of_no_training_are_not_said_to_have_time_seeds_or_spreads(
    browser: Browser, arms: list[Arm], dataset: ShapesDataset, tmp_path: Path
) -> None:
    files = [Arm(arm.name, arm.note, arm.runs[:1], arm.evidence) for arm in arms]
    page = write(tmp_path, files, dataset, config={})
    browser.open(page)
    text = browser.run("document.querySelector('main').innerText").lower()
    assert not [word for word in ("training", "time", "seed", "ahead in", "–", "deviation", "marked") if word in text]
    assert numbers_of(page)["paired"]["sentence"].lower() in text


def test_on_a_phone_the_tables_of_detectors_are_shown_whole(browser: Browser, compared: Path) -> None:
    browser.open(compared, width=390)
    assert browser.run(CUT_CELLS) == []
    hidden = browser.run(
        """[...document.querySelectorAll('.arms, .costs')].flatMap(table => {
          const card = table.parentElement.getBoundingClientRect();
          return [...table.querySelectorAll('td, td *')].filter(
            part => part.getBoundingClientRect().right > card.right).map(part => part.textContent); })"""
    )
    assert hidden == []


def test_hostile_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    ids = [f"{name} {k}" for k, name in enumerate(NASTY)]
    dataset = Renamed(NASTY, ids)
    names = [NASTY[0] + "w" * 3000, NASTY[4], "</svg>" + NASTY[1] + " long words" * 200]
    arms = [replace(noisy_arm(dataset, name, 0.2 + 0.1 * k), note=NASTY[k]) for k, name in enumerate(names)]
    made = write(
        tmp_path,
        arms,
        dataset,
        title="</title><b>&amp;",
        sentence=NASTY[0],
        config={NASTY[0]: {"x": NASTY[2]}},
    )
    assert_page_is_sound(browser, made)
    assert browser.run("document.title") == "</title><b>&amp;"
    assert browser.run("document.querySelector('.sentence').textContent") == NASTY[0]
    assert browser.run("document.scripts.length") == 0
    panels = browser.run("[...document.querySelectorAll('#pane1 h3 span')].map(c => c.title)")
    assert panels[:4] == NASTY[:4]
    rows = browser.run("[...document.querySelectorAll('.arms tbody th span')].map(c => c.textContent)")
    assert (rows[0], rows[2]) == (names[0], names[2])
    assert max(map(len, browser.run("[...document.querySelectorAll('p, li')].map(e => e.textContent)"))) < 1000
    shown = numbers_of(made)["changed"]
    captions = browser.run("document.querySelector('#changed').textContent")
    written = [image["image"] for kind in ("better", "worse") for image in shown[kind]]
    assert all(f"image {name}" in captions for name in written if name in ids[:4])
    assert written


def test_page_stays_small_with_many_classes_and_pictures(tmp_path: Path) -> None:
    dataset = Renamed([f"a rather long name of a class, number {c}" for c in range(80)], [f"img{k}" for k in range(24)])
    arms = [noisy_arm(dataset, name, noise, seeds=1) for name, noise in NOISES.items()]
    assert write(tmp_path, arms, dataset, shown=24).stat().st_size < 2_500_000
