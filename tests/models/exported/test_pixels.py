"""From picture to input and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrad.models.exported.layouts import Windows
from stepgrad.models.exported.limits import choose
from stepgrad.models.exported.pixels import DEVIATION, MEAN, prepare
from stepgrad.models.exported.recipe import KERNELS, RESIZES, Recipe
from stepgrad.reference.nms import nms
from tests.models.exported.graphs import picture

SIDES = st.integers(2, 90)


@given(SIDES, SIDES, st.sampled_from(RESIZES), st.sampled_from([(64, 64), (32, 96)]))
def test_the_way_back_puts_the_corners_of_the_picture_where_they_were(
    width: int, height: int, resize: str, size: tuple[int, int]
) -> None:
    """Up to the pixel by which the resized picture is rounded."""
    recipe = Recipe(resize=resize, size=size, pad=7)
    pixels, placed = prepare(picture(width, height), recipe)
    assert pixels.shape == (3, placed.input[1], placed.input[0])
    if resize in ("letterbox", "stretch"):
        assert pixels.shape[1:] == size
    if resize == "rect":
        assert pixels.shape[1] <= size[0]
        assert pixels.shape[2] <= size[1]
    corners = np.array([[0.0, 0.0, width, height]])
    there = corners * np.tile(placed.factors, 2) + np.tile(placed.corner, 2)
    np.testing.assert_allclose(placed.back(there), corners, atol=1e-9)
    assert (there[0, :2] >= 0).all()
    assert (there[0, 2:] <= np.array(placed.input) + 1).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("resize", ["letterbox", "stretch"])
def test_a_box_drawn_in_the_picture_is_at_its_place_in_the_input(kernel: str, resize: str) -> None:
    image = np.zeros((60, 120, 3), dtype=np.uint8)
    image[20:40, 30:90] = 255
    from PIL import Image

    pixels, placed = prepare(Image.fromarray(image), Recipe(resize=resize, size=(64, 64), kernel=kernel, pad=0))
    bright = np.argwhere(pixels[0] > 0.5)
    (y1, x1), (y2, x2) = bright.min(axis=0), bright.max(axis=0) + 1
    back = placed.back(np.array([[x1, y1, x2, y2]], dtype=np.float64))
    pixel = 1 / min(placed.factors)
    np.testing.assert_allclose(back, [[30, 20, 90, 40]], atol=pixel)


def test_numbers_are_scaled_turned_and_normalised() -> None:
    image = picture(8, 8)
    plain = Recipe(size=(8, 8))
    raw, _ = prepare(image, Recipe(size=(8, 8), scale=1.0))
    assert raw.tolist() == np.asarray(image).transpose(2, 0, 1).tolist()
    rgb, _ = prepare(image, plain)
    bgr, _ = prepare(image, Recipe(size=(8, 8), colour="bgr"))
    assert bgr[::-1].tolist() == rgb.tolist()
    normal, _ = prepare(image, Recipe(size=(8, 8), normalise="imagenet"))
    mean, deviation = (np.array(c)[:, None, None] for c in (MEAN, DEVIATION))
    np.testing.assert_allclose(normal, (rgb - mean) / deviation, atol=1e-5)


def slow_linear(values: Any, height: int, width: int) -> Any:
    """One output pixel at a time, between the two nearest pixels each way; centres of pixels lie at a half."""
    h, w = values.shape[:2]
    made = np.zeros((height, width, 3))
    for i in range(height):
        for j in range(width):
            y, x = (i + 0.5) * h / height - 0.5, (j + 0.5) * w / width - 0.5
            y0, x0 = int(np.floor(y)), int(np.floor(x))
            for yy, wy in ((y0, 1 - (y - y0)), (y0 + 1, y - y0)):
                for xx, wx in ((x0, 1 - (x - x0)), (x0 + 1, x - x0)):
                    made[i, j] += wy * wx * values[np.clip(yy, 0, h - 1), np.clip(xx, 0, w - 1)]
    return made


@pytest.mark.parametrize("shape", [(13, 9), (40, 51)])
def test_linear_reads_the_four_nearest_pixels(shape: tuple[int, int]) -> None:
    image = picture(23, 17)
    pixels, _ = prepare(image, Recipe("stretch", shape, scale=1.0))
    expected = slow_linear(np.asarray(image).astype(float), *shape)
    assert np.abs(pixels.transpose(1, 2, 0) - expected).max() <= 0.5 + 1e-3  # rounded to a byte, from single precision


@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([None, 0.3, 0.7]), st.booleans())
def test_detections_are_those_of_plain_nms(seed: int, multi: bool, threshold: float | None, agnostic: bool) -> None:
    random = np.random.default_rng(seed)
    corners = random.integers(0, 12, (15, 2))
    boxes = np.concatenate([corners, corners + random.integers(1, 9, (15, 2))], axis=1).astype(np.float64)
    scores = random.integers(0, 9, (15, 3)) / 10
    recipe = Recipe(min_score=0.15, multi_label=multi, nms=threshold, agnostic=agnostic, max_detections=9)
    pairs = [
        (scores[w, c], w, c)
        for w in range(15)
        for c in range(3)
        if scores[w, c] > 0.15 and (multi or c == int(scores[w].argmax()))
    ]
    pairs.sort(key=lambda pair: (-pair[0], pair[1], pair[2]))
    kept = set()
    for group in [range(3)] if agnostic else [[c] for c in range(3)]:
        rows = [i for i, pair in enumerate(pairs) if pair[2] in group]
        ranked = [-float(i) for i in rows]
        kept |= {rows[k] for k in nms([boxes[pairs[i][1]] for i in rows], ranked, threshold)[0]}
    expected = [pairs[i] for i in sorted(kept)][:9]
    found = choose(Windows(boxes, scores), recipe)
    assert found.scores.tolist() == [pair[0] for pair in expected]
    assert found.labels.tolist() == [pair[2] for pair in expected]
    assert found.boxes.tolist() == [boxes[pair[1]].tolist() for pair in expected]
