"""Boxes on pictures."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from stepgrad.errors import ConfigError, InputError, NonFiniteError
from stepgrad.report import draw_detections, draw_verdicts
from stepgrad.report.draw import PENS, Verdict

GREY = Image.new("RGB", (200, 160), "#808080")
BOX = [[40.0, 30.0, 150.0, 120.0]]


def row_of(image: Image.Image, colour: str) -> np.ndarray:
    """Where the upper edge of the box has that colour."""
    wanted = Image.new("RGB", (1, 1), colour).getpixel((0, 0))
    return (np.asarray(image)[30] == np.array(wanted)).all(-1)[40:150]


def test_only_the_neighbourhood_of_edges_changes_and_the_picture_given_stays_as_it_was() -> None:
    before = GREY.tobytes()
    drawn = np.asarray(draw_detections(GREY, BOX, [""], line_width=3))
    assert GREY.tobytes() == before
    changed = (drawn != 128).any(-1)
    assert changed[30, 40:150].all()
    assert not changed[36:114, 46:144].any()
    assert not changed[:26].any()


def test_verdicts_differ_in_colour_and_in_the_share_of_the_edge_that_is_drawn() -> None:
    kinds: list[Verdict] = ["right", "wrong", "missed"]
    shares = [row_of(draw_verdicts(GREY, BOX, [""], [kind]), PENS[kind][0]).mean() for kind in kinds]
    assert shares[0] == 1.0
    assert 0.55 < shares[1] < 0.9
    assert 0.2 < shares[2] < 0.55
    assert len({PENS[kind][0] for kind in kinds}) == 3


@pytest.mark.parametrize(
    "box", [[-50, -50, 500, 500], [10, 10, 10, 10], [199, 159, 400, 400], [-30, -30, -10, -10], [0, 0, 200, 160]]
)
def test_boxes_beyond_the_edges_and_without_area_are_drawn_where_they_can_be(box: list[float]) -> None:
    drawn = draw_verdicts(GREY, [box], ["a text far too long for this picture " * 4], ["wrong"])
    assert drawn.size == GREY.size
    assert drawn.tobytes() != GREY.tobytes()


def test_box_of_the_whole_picture_shows_all_four_edges() -> None:
    drawn = np.asarray(draw_detections(GREY, [[0, 0, 200, 160]], [""], "#00ff00", line_width=4))
    green = (drawn == (0, 255, 0)).all(-1)
    assert green[80, :8].any()
    assert green[80, -8:].any()
    assert green[:8, 100].any()
    assert green[-8:, 100].any()


@pytest.mark.parametrize("others", [1, 11])  # one finds another place; of many, some find none and are left out
def test_texts_of_neighbours_do_not_cover_each_other(others: int) -> None:
    boxes = [[40, 60, 100, 120], *[[41, 61, 101, 121]] * others]
    texts, colours = ["first"] + ["other"] * others, ["#ff0000"] + ["#0000ff"] * others
    drawn, apart = (np.asarray(draw_detections(GREY, boxes[:n], texts[:n], colours[:n])) for n in (1 + others, 1))
    red = lambda picture: (picture == (255, 0, 0)).all(-1)[:60]  # noqa: E731
    np.testing.assert_array_equal(red(drawn), red(apart))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_any_mode_becomes_rgb(mode: str) -> None:
    assert draw_detections(Image.new(mode, (40, 40)), [[5, 5, 20, 20]], ["ü 日 \n x"]).mode == "RGB"


def test_nothing_to_draw_gives_a_copy() -> None:
    copy = draw_detections(GREY, np.zeros((0, 4)), [])
    assert copy is not GREY
    assert copy.tobytes() == GREY.tobytes()
    assert draw_verdicts(GREY, [], [], []).tobytes() == GREY.tobytes()


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match=r"shape \(M, 4\)"):
        draw_detections(GREY, [1, 2, 3, 4], ["x"])
    with pytest.raises(InputError, match="texts for 1 boxes but got 2"):
        draw_detections(GREY, BOX, ["a", "b"])
    with pytest.raises(InputError, match="colours for 1 boxes but got 0"):
        draw_detections(GREY, BOX, ["a"], [])
    with pytest.raises(NonFiniteError, match="finite boxes"):
        draw_detections(GREY, [[0, 0, np.nan, 4]], ["a"])
    with pytest.raises(ConfigError, match="Did you mean 'missed'"):
        draw_verdicts(GREY, BOX, ["a"], ["mised"])  # type: ignore[list-item]
