"""The page that compares trainings: its numbers, and how a browser shows it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepgrad.data.base import DetectionDataset
from stepgrad.data.shapes import ShapesDataset
from stepgrad.errors import ConfigError, InputError
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.protocol import COCO
from stepgrad.report import Arm, write_comparison
from stepgrad.report.arms import winner
from tests.report.browser import Browser
from tests.report.runs import CONFIG, detections_of
from tests.report.test_page import (
    NASTY,
    READ_NUMBERS,
    Renamed,
    assert_page_is_sound,
    contrast,
    evidence_of,
    nothing_found,
)
from tests.report.trainings import evaluated, noisy_arm, noisy_detections

PROTOCOLS = ["coco", "voc12"]
NOISES = {"as it came": 0.45, "more cross-entropy": 0.35, "mAP": 0.25}
BEST_ROWS = "[...document.querySelectorAll('tr.best th')].map(c => c.title)"


def write(folder: Path, arms: Sequence[Arm], dataset: DetectionDataset, **changes: Any) -> Path:
    given: dict[str, Any] = {
        "title": "Fine-tuning",
        "sentence": "mAP gained.",
        "reference": max(0, len(arms) - 2),
        "chosen": len(arms) - 1,
        "protocols": PROTOCOLS,
        "config": CONFIG,
    }
    return write_comparison(folder, arms=arms, dataset=dataset, **{**given, **changes})


def numbers_of(page: Path) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads((page.parent / "report.json").read_text(encoding="utf-8"))
    return numbers


@pytest.fixture(scope="module")
def dataset() -> ShapesDataset:
    return ShapesDataset("test", length=16)


@pytest.fixture(scope="module")
def arms(dataset: ShapesDataset) -> list[Arm]:
    return [noisy_arm(dataset, name, noise, PROTOCOLS) for name, noise in NOISES.items()]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, arms: list[Arm], dataset: ShapesDataset) -> Path:
    return write(tmp_path_factory.mktemp("arms"), arms, dataset)


def with_maps(arm: Arm, values: Sequence[float], protocols: Sequence[str] = PROTOCOLS) -> Arm:
    return replace(arm, runs=[dict.fromkeys(protocols, value) for value in values])


def test_every_number_on_the_page_equals_the_json_and_nothing_else_is_asked_for(browser: Browser, page: Path) -> None:
    assert_page_is_sound(browser, page)
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


def test_points_on_the_page_are_a_hundred_times_the_number_to_one_decimal(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = [item for item in browser.run(READ_NUMBERS) if "points" in (item.get("kind") or "")]
    assert len(shown) > 20
    for item in shown:
        assert abs(float(item["text"]) - 100 * float(item["value"])) <= 0.05 * (1 + 1e-9)
        assert item["text"].startswith(("+", "-")) == ("gain" in item["kind"])


def test_means_spreads_and_gains_equal_those_of_numpy(page: Path, arms: list[Arm]) -> None:
    rows = numbers_of(page)["arms"]
    for name in PROTOCOLS:
        maps = np.array([[run[name] for run in arm.runs] for arm in arms])
        gains = maps - maps[1]
        for row, values, gain in zip(rows, maps, gains, strict=True):
            assert row["maps"][name]["mean"] == pytest.approx(values.mean(), rel=1e-12)
            assert row["maps"][name]["sd"] == pytest.approx(values.std(ddof=1), rel=1e-9)
            if row is rows[1]:
                assert row["gains"][name] is None
                continue
            assert row["gains"][name]["each"] == gain.tolist()
            assert row["gains"][name]["mean"] == pytest.approx(gain.mean(), rel=1e-9)
            assert row["gains"][name]["sd"] == pytest.approx(gain.std(ddof=1), rel=1e-9)
            assert (row["gains"][name]["ahead"], row["gains"][name]["seeds"]) == ((gain > 0).sum(), 3)


def test_an_arm_is_marked_only_if_it_beats_each_other_beyond_the_spread_of_the_difference(arms: list[Arm]) -> None:
    rng = np.random.default_rng(0)
    marked = []
    for _ in range(200):
        maps = rng.normal([[0.5], [0.5], [0.5 + 0.1 * rng.random()]], 0.03, (3, int(rng.integers(2, 5))))
        made = [with_maps(arm, values.tolist(), ["coco"]) for arm, values in zip(arms, maps, strict=True)]
        best = int(maps.mean(1).argmax())
        beaten = [(maps[best] - maps[k]).mean() > (maps[best] - maps[k]).std(ddof=1) for k in range(3) if k != best]
        assert winner(made, "coco") == (best if all(beaten) else None)
        marked.append(winner(made, "coco") is not None)
    assert 20 < sum(marked) < 180


def test_only_the_winner_has_a_colour(
    browser: Browser, arms: list[Arm], dataset: ShapesDataset, tmp_path: Path
) -> None:
    cases = {
        "clear": ([[0.3, 0.4], [0.31, 0.41], [0.5, 0.61]], ["mAP"]),
        "within the spread": ([[0.3, 0.4], [0.31, 0.41], [0.30, 0.49]], []),
        "one seed": ([[0.3], [0.4], [0.9]], []),
        "equal": ([[0.5, 0.5]] * 3, []),
    }
    for name, (maps, winners) in cases.items():
        made = [with_maps(arm, values) for arm, values in zip(arms, maps, strict=True)]
        browser.open(write(tmp_path / name, made, dataset, shown=0))
        assert browser.run(BEST_ROWS) == winners, name


def test_gains_pair_the_seeds_that_both_arms_have(arms: list[Arm], dataset: ShapesDataset, tmp_path: Path) -> None:
    values = [[0.1], [0.2, 0.3], [0.25, 0.2, 0.9]]
    made = [with_maps(arm, maps) for arm, maps in zip(arms, values, strict=True)]
    rows = numbers_of(write(tmp_path, made, dataset, shown=0))["arms"]
    assert [row["gains"]["coco"] and row["gains"]["coco"]["seeds"] for row in rows] == [1, None, 2]
    assert rows[2]["gains"]["coco"]["each"] == [0.25 - 0.2, 0.2 - 0.3]
    assert rows[2]["gains"]["coco"]["ahead"] == 1


class Scene(ShapesDataset):
    """Two classes, of which one has objects: three in two pictures."""

    def __init__(self) -> None:
        super().__init__("test", length=2)
        self.class_names = ("cat", "dog")


def found(boxes: list[list[float]], scores: list[float]) -> dict[str, torch.Tensor]:
    labels = torch.zeros(len(boxes), dtype=torch.int64)
    return {"boxes": torch.tensor(boxes).reshape(-1, 4), "scores": torch.tensor(scores), "labels": labels}


A, B, C = [0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0], [40.0, 40.0, 60.0, 60.0]
LOOSE_C, NOWHERE = [40.0, 40.0, 60.0, 52.0], [80.0, 80.0, 90.0, 90.0]  # an overlap of 0.6 with C, and of 0 with all
SCENE = [
    {"boxes": torch.tensor([A, B]), "labels": torch.tensor([0, 0]), "image_id": Scene().target(0)["image_id"]},
    {"boxes": torch.tensor([C]), "labels": torch.tensor([0]), "image_id": Scene().target(1)["image_id"]},
]


def scene_arm(name: str, *detections: dict[str, torch.Tensor]) -> Arm:
    return Arm(name, "", [{"coco": 0.5}], evidence_of(Scene(), list(detections), SCENE))


def test_curves_of_a_tiny_scene_are_those_computed_by_hand(tmp_path: Path) -> None:
    one = scene_arm("one", found([A, NOWHERE], [0.9, 0.8]), found([LOOSE_C], [0.7]))
    none = scene_arm("none", found([], []), found([], []))
    numbers = numbers_of(write(tmp_path, [none, one], Scene(), reference=0, protocols=["coco"]))
    assert [curves["iou"] for curves in numbers["curves"]] == [0.5, 0.75]
    # Precision 1 up to a recall of 1/3 (levels 0 to 33), 2/3 up to 2/3 (34 to 66) where the loose box counts, then 0.
    loose, strict = ([1.0] * 34 + [2 / 3] * 33 + [0.0] * 34), ([1.0] * 34 + [0.0] * 67)
    for curves, expected in zip(numbers["curves"], (loose, strict), strict=True):
        cat, dog = curves["classes"]
        assert cat["precision"] == [[0.0] * 101, expected]
        assert curves["mean"] == [[0.0] * 101, expected]  # the class without objects has no part in the mean
        assert (dog["precision"], dog["aps"], dog["change"]) == ([None, None], [None, None], None)
        assert cat["change"] == pytest.approx(sum(expected) / 101)
    # F1 is largest at 0.7, where all three detections pass: the second image gains an object, the first one and a mistake.
    changed = numbers["changed"]
    assert [(image["change"], image["words"]) for image in changed["better"]] == [
        (2, "1 more found"),
        (1, "1 more found, 1 false alarm more"),
    ]
    assert (changed["worse"], changed["counts"]) == ([], {"better": 2, "worse": 0, "same": 0})


def test_mean_of_a_curve_is_the_ap_of_coco_at_that_threshold(
    page: Path, arms: list[Arm], dataset: ShapesDataset
) -> None:
    numbers = numbers_of(page)
    preds, targets = noisy_detections(dataset, NOISES["mAP"], round(1000 * NOISES["mAP"]))
    result = evaluated(dataset, preds, targets, ["coco"]).compute()
    for curves in numbers["curves"]:
        assert np.mean(curves["mean"][2]) == pytest.approx(result.map_at(curves["iou"]), rel=1e-12)
        for row, of_class in zip(curves["classes"], result.classes, strict=True):
            assert row["aps"][2] == of_class.ap_by_threshold[curves["iou"]]
            assert np.mean(row["precision"][2]) == pytest.approx(row["aps"][2], rel=1e-12)


@pytest.mark.parametrize(
    ("thresholds", "drawn"), [((0.6,), [0.6]), ((0.5, 0.7, 0.9), [0.5, 0.7]), ((0.75, 0.9), [0.75])]
)
def test_curves_are_drawn_at_the_first_threshold_and_the_one_nearest_to_three_quarters(
    arms: list[Arm], dataset: ShapesDataset, tmp_path: Path, thresholds: tuple[float, ...], drawn: list[float]
) -> None:
    protocol = replace(COCO, name="own", match_thresholds=thresholds)
    made = write(tmp_path, [with_maps(arm, [0.5], ["own"]) for arm in arms], dataset, protocols=[protocol], shown=0)
    assert [curves["iou"] for curves in numbers_of(made)["curves"]] == drawn
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {f"precision-recall-{t:g}.svg" for t in drawn}


def overlap(a: Any, b: Any) -> float:
    width, height = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    shared = max(0.0, width) * max(0.0, height)
    return shared / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared)


def outcome(evidence: Evidence, label: int, least: float) -> tuple[Any, Any]:
    """Right and wrong per image with the detections of a class that reach a score: VOC's rule, one after the other."""
    right, wrong = np.zeros(evidence.num_images, dtype=int), np.zeros(evidence.num_images, dtype=int)
    detections, objects, taken = evidence.detections, evidence.objects, set()
    for row in np.argsort(-detections.scores, kind="stable"):
        if detections.labels[row] != label or detections.scores[row] < least:
            continue
        image = detections.images[row]
        rows = np.flatnonzero((objects.images == image) & (objects.labels == label))
        overlaps = [overlap(detections.boxes[row], objects.boxes[k]) for k in rows]
        best = int(np.argmax(overlaps)) if len(rows) else -1
        if best >= 0 and overlaps[best] >= 0.5 and rows[best] not in taken:
            taken.add(rows[best])
            right[image] += 1
        else:
            wrong[image] += 1
    return right, wrong


def tallies(evidence: Evidence) -> Any:
    """(3, images) right, wrong and missed, each class cut where its F1 is largest, by trying all scores."""
    total = np.zeros((3, evidence.num_images), dtype=int)
    for label in range(evidence.num_classes):
        objects = np.bincount(evidence.objects.images[evidence.objects.labels == label], minlength=evidence.num_images)
        scores = sorted(set(evidence.detections.scores[evidence.detections.labels == label].tolist()), reverse=True)
        tried = [outcome(evidence, label, least) for least in [math.inf, *scores]]
        f1 = [2 * r.sum() / max(1, r.sum() + w.sum() + objects.sum()) for r, w in tried]
        right, wrong = tried[int(np.argmax(f1))]
        total += np.stack([right, wrong, objects - right])
    return total


@pytest.mark.parametrize("seed", range(4))
def test_changed_pictures_are_those_of_brute_force(seed: int, tmp_path: Path) -> None:
    dataset = ShapesDataset("test", length=14)
    sides = []
    for noise, number in ((0.4, seed), (0.3, seed + 100)):
        preds, targets = noisy_detections(dataset, noise, number)
        plain = [{name: target[name] for name in ("boxes", "labels", "image_id")} for target in targets]
        sides.append(evidence_of(dataset, preds, plain))
    arms = [Arm(name, "", [{"voc12": 0.5}], side) for name, side in zip("ab", sides, strict=True)]
    changed = numbers_of(write(tmp_path, arms, dataset, reference=0, protocols=["voc12"], shown=6))["changed"]
    before, after = (tallies(side) for side in sides)
    grown = (after[0] - after[1] - after[2]) - (before[0] - before[1] - before[2])
    order = sorted(range(14), key=lambda i: (-grown[i], i))
    better = [i for i in order if grown[i] > 0][:3]
    worse = sorted((i for i in order if grown[i] < 0), key=lambda i: (grown[i], i))[:3]
    assert better
    assert worse
    for kind, images in (("better", better), ("worse", worse)):
        assert [image["image"] for image in changed[kind]] == [str(sides[0].image_ids[i]) for i in images]
        for image, i in zip(changed[kind], images, strict=True):
            assert [image["reference"][name] for name in ("right", "wrong", "missed")] == before[:, i].tolist()
            assert [image["chosen"][name] for name in ("right", "wrong", "missed")] == after[:, i].tolist()
            assert image["words"] == words(*(after - before)[:2, i])
    counts = {"better": (grown > 0).sum(), "worse": (grown < 0).sum(), "same": (grown == 0).sum()}
    assert changed["counts"] == counts


def words(found: int, alarms: int) -> str:
    texts = [f"{abs(found)} {'more' if found > 0 else 'fewer'} found"] if found else []
    if alarms:
        noun = "false alarm" if abs(alarms) == 1 else "false alarms"
        texts.append(f"{abs(alarms)} {noun} {'more' if alarms > 0 else 'fewer'}")
    return ", ".join(texts)


def test_both_kinds_of_changes_are_shown_however_few_are_asked_for(
    arms: list[Arm], dataset: ShapesDataset, tmp_path: Path
) -> None:
    for shown, each in ((0, 0), (1, 1), (2, 1), (4, 2)):
        changed = numbers_of(write(tmp_path / str(shown), arms, dataset, shown=shown))["changed"]
        assert (len(changed["better"]), len(changed["worse"])) == (each, each)
        assert min(changed["counts"]["better"], changed["counts"]["worse"]) >= 2


def test_reference_stands_left_of_the_chosen_arm_and_each_picture_says_what_is_on_it(
    browser: Browser, page: Path
) -> None:
    browser.open(page, width=1200)
    read = """[...document.querySelectorAll(".pair")].map(p => [...p.querySelectorAll("img")].map(
      i => ({alt: i.alt, left: i.getBoundingClientRect().left, top: i.getBoundingClientRect().top})))"""
    pairs = browser.run(read)
    assert len(pairs) == 6
    for left, right in pairs:
        assert left["left"] < right["left"]
        assert left["top"] == right["top"]
        assert left["alt"].startswith("more cross-entropy. ")
        assert right["alt"].startswith("mAP. ")
    sizes = browser.run("Promise.all([...document.images].map(i => i.decode().then(() => i.naturalWidth)))")
    assert min(sizes) > 0


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
        assert len({colour for colour, _ in styles}) == 6
        assert min(contrast(colour, card) for colour, _ in styles) >= 3
        assert styles[11][1] == "none"  # the chosen arm is the solid line
        assert styles[10][1] != "none"


def test_choosing_a_threshold_shows_its_classes(browser: Browser, page: Path) -> None:
    browser.open(page)
    visible = "[...document.querySelectorAll('.pane')].map(p => p.offsetHeight > 0)"
    assert browser.run(visible) == [True, False]
    assert browser.run(f"document.querySelector('label[for=pick2]').click(); {visible}") == [False, True]


@pytest.mark.parametrize("width", [1200, 400, 320])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.querySelector('details').open") is False


def test_page_has_no_script_and_a_heading_for_every_section(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run("document.scripts.length") == 0
    sections = "[...document.querySelectorAll('section')]"
    assert browser.run(f"{sections}.map(s => s.querySelector('h2').textContent)") == [
        "mAP in points",
        "Precision and recall",
        "Pictures that changed",
        "Configuration",
    ]
    charts = "[...document.querySelectorAll('.charts svg')].map(s => s.getAttribute('aria-label'))"
    assert all("more cross-entropy: mAP " in text for text in browser.run(charts))


def test_same_arms_give_the_same_bytes_and_plots_are_pictures(
    browser: Browser, page: Path, arms: list[Arm], dataset: ShapesDataset, tmp_path: Path
) -> None:
    assert write(tmp_path, arms, dataset).read_bytes() == page.read_bytes()
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
    assert "One arm alone has nothing to be compared with." in texts["one arm"]
    assert "ahead in" not in texts["one arm"]
    assert "The chosen arm is the reference" in texts["itself"]
    assert "No run was measured." in texts["no runs"]
    assert "none found" in texts["nothing found"]
    assert "no objects" in texts["no objects"]
    assert "±" not in texts["nothing changed"].split("mAP in points")[1].split("Precision and recall")[0]


def test_hostile_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    ids = [f"{name} {k}" for k, name in enumerate(NASTY)]
    dataset = Renamed(NASTY, ids)
    names = [NASTY[0] + "w" * 3000, NASTY[4], "</svg>" + NASTY[1] + " long words" * 200]
    arms = [replace(noisy_arm(dataset, name, 0.2 + 0.1 * k, PROTOCOLS), note=NASTY[k]) for k, name in enumerate(names)]
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


def test_arms_must_be_judged_on_the_same_images_and_positions_must_be_theirs(
    arms: list[Arm], dataset: ShapesDataset, tmp_path: Path
) -> None:
    others = noisy_arm(ShapesDataset("test", length=5), "fewer", 0.2, PROTOCOLS)
    with pytest.raises(InputError, match=r"same images.*'fewer' are not those of 'as it came'"):
        write(tmp_path, [*arms, others], dataset)
    with pytest.raises(InputError, match="at least one arm"):
        write(tmp_path, [], dataset, reference=0, chosen=0)
    with pytest.raises(ConfigError, match="chosen to be the position of an arm, 0 to 2, but got 3"):
        write(tmp_path, arms, dataset, chosen=3)
    with pytest.raises(ConfigError, match="at least one protocol"):
        write(tmp_path, arms, dataset, protocols=[])
    assert list(tmp_path.iterdir()) == []


def test_page_stays_small_with_many_classes_and_pictures(tmp_path: Path) -> None:
    dataset = Renamed([f"a rather long name of a class, number {c}" for c in range(80)], [f"img{k}" for k in range(24)])
    arms = [noisy_arm(dataset, name, noise, PROTOCOLS, seeds=1) for name, noise in NOISES.items()]
    assert write(tmp_path, arms, dataset, shown=24).stat().st_size < 2_500_000
