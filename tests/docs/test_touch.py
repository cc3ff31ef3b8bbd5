"""The page one can touch: its mathematics are the library's, and it does what fingers, keys and buttons ask for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stepgrad as sg
from docs import figure_pr
from docs.touch.build import PAGE, built
from stepgrad.metric.protocol import PROTOCOLS
from tests.docs.touch_scenes import ESTIMATORS, MODES, script, touch_scenes
from tests.docs.touched import Touched
from tests.report.browser import Browser

BOUND = 1e-9
READ_SLOPES = '[...document.querySelectorAll(".row .slope")].map(e => Number(e.textContent.replace("−", "-")))'


def test_the_page_is_what_its_parts_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == built(), "run `python -m docs.touch.build`"


# ---- the mathematics


def test_the_scenes_have_ties_duplicates_cascades_and_difficult_objects() -> None:
    scenes = touch_scenes()
    assert len(scenes) == 200
    for kind in ("has_ties", "has_duplicates", "has_cascade"):
        assert sum(getattr(scene, kind)() for scene in scenes) >= 30, kind
    assert sum(bool(scene.objects["difficult"].any()) for scene in scenes) >= 30
    assert {scene.protocol for scene in scenes} == {"voc07", "voc12", "coco"}


def test_ap_and_slopes_equal_those_of_the_library(browser: Browser) -> None:
    browser.open(PAGE)
    scenes = touch_scenes()
    for mode in MODES:
        answers = json.loads(browser.run(script("Steps.measure", [scene.for_page(mode) for scene in scenes])))
        for seed, (scene, answer) in enumerate(zip(scenes, answers, strict=True)):
            assert answer["ap"] == pytest.approx(scene.ap(), abs=BOUND), seed
            for estimator in ESTIMATORS:
                got = [slopes[estimator] for slopes in answer["slopes"]]
                if (mode, estimator) == ("paper", "radius"):  # which the library refuses
                    assert set(got) == {None}
                else:
                    wanted = scene.slopes(estimator, mode)
                    np.testing.assert_allclose(got, wanted, rtol=0, atol=BOUND, err_msg=f"{seed} {mode} {estimator}")


def test_kept_windows_equal_those_of_the_library(browser: Browser) -> None:
    browser.open(PAGE)
    scenes = [scene for scene in touch_scenes() if scene.nms_threshold is not None]
    answers = json.loads(browser.run(script("Steps.measure", [scene.for_page("none") for scene in scenes])))
    for scene, answer in zip(scenes, answers, strict=True):
        scores, boxes, _ = scene.batch.tensors()
        keep, suppressor = sg.nms(boxes[0], scores[0][:, 0], scene.nms_threshold)
        assert (answer["keep"], answer["suppressor"]) == (keep.tolist(), suppressor.tolist())


@pytest.mark.parametrize("mode", ["exact", "none"])
def test_nearest_steps_equal_those_of_the_library(browser: Browser, mode: str) -> None:
    browser.open(PAGE)
    scenes = [scene for scene in touch_scenes() if scene.protocol != "coco"]
    answers = json.loads(browser.run(script("Steps.mapSteps", [scene.for_page(mode) for scene in scenes])))
    for scene, answer in zip(scenes, answers, strict=True):
        steps = sg.map_steps(
            *scene.batch.tensors(),
            protocol=scene.protocol,
            nms_threshold=scene.nms_threshold,
            through_nms=mode,
        )
        for b, near in enumerate(answer):
            places = [math.inf if near["upAt"] is None else near["upAt"]]
            places += [-math.inf if near["downAt"] is None else near["downAt"]]
            assert places == [steps.up_at[0][b].item(), steps.down_at[0][b].item()]
            values = [near["here"], near["up"], near["down"]]
            wanted = [steps.value.item(), steps.up_value[0][b].item(), steps.down_value[0][b].item()]
            assert values == pytest.approx(wanted, abs=BOUND)


def test_thresholds_are_the_very_floats_of_the_library(browser: Browser) -> None:
    browser.open(PAGE)
    thresholds = browser.run("Object.fromEntries(Object.entries(Steps.PROTOCOLS).map(([n, p]) => [n, p.thresholds]))")
    assert thresholds == {name: list(PROTOCOLS[name].match_thresholds) for name in ("voc07", "voc12", "coco")}


@pytest.mark.parametrize("name", ["voc07", "voc12", "coco"])
def test_recall_levels_are_served_as_in_the_library(browser: Browser, name: str) -> None:
    browser.open(PAGE)
    served = browser.run(f"[...Array(40).keys()].map(P => Steps.levelsServed(P, Steps.PROTOCOLS.{name}))")
    for P, levels in enumerate(served):
        counts, norm = PROTOCOLS[name].level_counts(P)
        assert (levels["counts"], levels["norm"]) == (counts[1:].tolist(), norm)


# ---- the page


@pytest.fixture
def page(browser: Browser) -> Iterator[Touched]:
    """The page; whatever a test does to it, it says nothing on the console and asks for nothing but itself."""
    yield Touched(browser)
    assert browser.complaints() == []
    assert browser.requests() == [PAGE.as_uri()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
def test_numbers_on_the_page_are_those_of_the_library(page: Touched, protocol: str, mode: str) -> None:
    for selector in (f"[name=protocol][value={protocol}]", f"[name=through][value={mode}]"):
        page.click(selector)
    for name in ("meadow", "chain"):
        page.click(f"[data-scene={name}]")
        scene = page.scene(name, protocol)
        assert page.ap == pytest.approx(scene.ap(), abs=BOUND)
        for estimator in ESTIMATORS:
            if (mode, estimator) == ("paper", "radius"):
                continue
            page.click(f"[name=estimator][value={estimator}]")
            shown = page.browser.run(READ_SLOPES)
            assert shown == pytest.approx(scene.slopes(estimator, mode), abs=0.5e-3 * (1 + BOUND))


def test_arrow_keys_change_the_score_of_the_window_in_focus(page: Touched) -> None:
    for slider in (".row[data-window=Q]", "g[data-window=Q]"):
        before = page.windows["Q"]["score"]
        page.focus(slider)
        for key in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowUp", "PageUp"):
            page.press(key)
        assert page.windows["Q"]["score"] == pytest.approx(before + 1.2)
        assert page.browser.run(f"document.activeElement === document.querySelector('{slider}')")
        assert page.ap == pytest.approx(page.scene("meadow").ap(), abs=BOUND)
    page.press("Home")
    assert page.windows["Q"]["score"] == 0
    page.press("End")
    assert page.windows["Q"]["score"] == 13


def test_shift_with_arrow_keys_moves_the_box(page: Touched) -> None:
    x1, y1, x2, y2 = page.windows["N"]["box"]
    page.focus("g[data-window=N]")
    page.press("ArrowRight", shift=True)
    page.press("ArrowUp", shift=True)
    assert page.windows["N"]["box"] == [x1 + 4, y1 - 4, x2 + 4, y2 - 4]


def test_plus_and_minus_change_the_size_of_the_box(page: Touched) -> None:
    x1, y1, x2, y2 = page.windows["N"]["box"]
    page.focus("g[data-window=N]")
    for key in ("-", "-", "+"):
        page.press(key)
    assert page.windows["N"]["box"] == [x1, y1, x2 - 4, y2 - 4]
    for _ in range(100):
        page.press("-")
    left, top, right, bottom = page.windows["N"]["box"]
    assert (left, top) == (x1, y1)
    assert min(right - left, bottom - top) > 0
    assert page.ap == pytest.approx(page.scene("meadow").ap(), abs=BOUND)


def test_tab_reaches_every_window_and_control(page: Touched) -> None:
    names = page.browser.run("""[...document.querySelectorAll("[tabindex], button, input")].filter(e => e.tabIndex >= 0)
        .map(e => e.getAttribute("aria-label") ?? (e.labels?.[0] ?? e).textContent.trim())""")
    assert all(names)
    assert {f"Window {name}" for name in page.windows} <= set(names)
    tree = page.browser.call("Accessibility.getFullAXTree")["nodes"]
    sliders = [node for node in tree if node.get("role", {}).get("value") == "slider"]
    assert len(sliders) == 2 * len(page.windows) + 2
    assert all(node["name"]["value"] for node in sliders)


@pytest.mark.parametrize("selector", [".row[data-window=Q]", "g[data-window=Q]", "#step", "[name=protocol]:checked"])
def test_what_has_the_focus_of_the_keyboard_has_a_ring(page: Touched, selector: str) -> None:
    rings = page.browser.run(f"""(() => {{ const e = document.querySelector("{selector}"); e.focus({{focusVisible: true}});
        return [e, e.firstElementChild, e.nextElementSibling].filter(Boolean)
            .map(e => getComputedStyle(e).outlineStyle); }})()""")
    assert "solid" in rings


def test_a_row_dragged_past_others_changes_ap_in_steps(page: Touched) -> None:
    page.drag(".row[data-window=M] .dot", dx=-130)
    after = page.windows["M"]["score"]
    assert after < page.windows["P"]["score"]
    assert page.ap == pytest.approx(page.scene("meadow").ap(), abs=BOUND)
    assert page.ap > 0.7
    assert page.text("#change").startswith("+")


def test_a_finger_drags_a_row_sideways(page: Touched) -> None:
    before = page.windows["M"]["score"]
    page.drag_with_a_finger(".row[data-window=M] .dot", dx=-130)
    assert page.windows["M"]["score"] < before - 2
    assert page.ap == pytest.approx(page.scene("meadow").ap(), abs=BOUND)


def test_a_window_dragged_off_its_object_no_longer_finds_it(page: Touched) -> None:
    assert "finds a sheep" in page.windows["S"]["text"]
    page.drag("g[data-window=S] .frame", dx=-120, dy=60)
    assert "false alarm" in page.windows["S"]["text"]
    assert page.ap == pytest.approx(page.scene("meadow").ap(), abs=BOUND)


def test_the_corner_of_the_chosen_window_resizes_it(page: Touched) -> None:
    page.focus("g[data-window=S]")
    x1, y1, x2, y2 = page.windows["S"]["box"]
    page.drag(".grip", dx=-40, dy=-30)
    left, top, right, bottom = page.windows["S"]["box"]
    assert (left, top) == (x1, y1)
    assert right < x2 - 30
    assert bottom < y2 - 20


def test_the_point_of_the_chart_drags_the_score(page: Touched) -> None:
    page.drag("#steps .here", dx=-90)
    assert page.windows["M"]["score"] < 7.5
    assert page.ap == pytest.approx(page.scene("meadow").ap(), abs=BOUND)


def test_a_gradient_step_moves_every_score_along_its_slope(page: Touched) -> None:
    before = [window["score"] for window in page.windows.values()]
    slopes = np.array(page.scene("meadow").slopes("radius", "exact"))
    page.click("#step")
    moved = np.array([window["score"] for window in page.windows.values()]) - before
    np.testing.assert_allclose(moved, 0.8 * slopes / np.abs(slopes).max(), rtol=0, atol=BOUND)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradient_steps_lead_to_the_best_ap_and_reset_leads_back(page: Touched, estimator: str) -> None:
    first, windows = page.ap, page.windows
    page.click(f"[name=estimator][value={estimator}]")
    for _ in range(20):
        page.click("#step")
    assert page.ap == 1.0
    page.click("#reset")
    assert (page.ap, {n: w["box"] for n, w in page.windows.items()}) == (
        first,
        {n: w["box"] for n, w in windows.items()},
    )


@pytest.mark.parametrize("case", [*figure_pr.MOVES, figure_pr.Move("f", 6, 7.5, 0.0)], ids=lambda case: case.name)
def test_cases_of_the_paper_change_ap_as_in_its_figure(page: Touched, case: figure_pr.Move) -> None:
    for setting in (
        "[name=protocol][value=coco]",
        "[name=through][value=paper]",
    ):  # the case sees to the protocol itself
        page.click(setting)
    page.click(f"[data-case={case.name}]")
    before = figure_pr.average_precision(figure_pr.RANKED)
    ranked = figure_pr.RANKED
    after = figure_pr.average_precision(ranked[:6] + "FT" + ranked[8:] if case.name == "f" else case.apply(ranked))
    assert page.ap == pytest.approx(after, abs=BOUND)
    assert page.text("#says").startswith(f"({case.name})")
    assert page.text("#says").endswith(
        f"from {before:.3f} to {after:.3f}." if before != after else f"still {after:.3f}."
    )


def test_the_nms_threshold_decides_who_is_kept(page: Touched) -> None:
    page.browser.run("""const range = document.querySelector("#nms"); range.value = 1;
        range.dispatchEvent(new Event("input", {bubbles: true}))""")
    assert page.text("#nms-value") == "off"
    assert not any("suppressed" in window["text"] for window in page.windows.values())
    assert page.ap == pytest.approx(page.scene("meadow", nms=None).ap(), abs=BOUND)


def test_the_paper_s_way_has_no_radius_and_takes_mee(page: Touched) -> None:
    page.click("[name=through][value=paper]")
    chosen = "document.querySelector('[name=estimator]:checked').value"
    assert page.browser.run(chosen) == "mee"
    assert page.browser.run("document.querySelector('[name=estimator][value=radius]').disabled")
    page.click("[name=through][value=exact]")
    assert page.browser.run(chosen) == "radius"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 820, 1280])
def test_nothing_is_wider_than_the_screen(browser: Browser, width: int, scheme: str) -> None:
    page = Touched(browser, width, scheme)
    page.click("[data-case=e]")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.complaints() == []


def test_colours_follow_the_reader_s_scheme(browser: Browser) -> None:
    def brightness(scheme: str) -> int:
        Touched(browser, scheme=scheme)
        colour = browser.run("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.strip("rgb()").split(","))

    assert brightness("dark") < 150 < 600 < brightness("light")


def test_moves_can_be_watched_where_motion_is_welcome(browser: Browser) -> None:
    browser.open(PAGE)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "no-preference"}])
    seen = browser.run("""new Promise(done => {
        const seen = [], row = () => document.querySelector(".row[data-window=N]");
        document.querySelector("[data-case=d]").click();
        const look = () => { seen.push(Number(row().getAttribute("aria-valuenow")));
            seen.at(-1) < 12.5 ? requestAnimationFrame(look) : done(seen); };
        look();
    })""")
    assert seen[0] == 9
    assert seen == sorted(seen)
    assert browser.run("document.querySelector('#says').textContent").endswith("from 0.734 to 0.686.")


def test_the_parts_work_as_they_are_without_being_put_together(browser: Browser) -> None:
    parts = PAGE.parent / "touch"
    browser.open(parts / "page.html")
    assert browser.complaints() == []
    assert {Path(url).name for url in browser.requests()} == {
        "page.html",
        "style.css",
        *(file.name for file in parts.glob("*.js")),
    }
