"""Endless `shapes`: every image a function of seed and number, none of them held out."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from stepgrad.data import EndlessShapes, FreshImage, ShapesDataset
from stepgrad.errors import ConfigError


def same(one: FreshImage, other: FreshImage) -> bool:
    facts = ("boxes", "labels", "difficult")
    return (
        one.number == other.number
        and torch.equal(one.image, other.image)
        and torch.equal(one.windows, other.windows)
        and all(torch.equal(one.target[name], other.target[name]) for name in facts)
    )


def test_an_image_is_a_function_of_seed_and_number_alone() -> None:
    in_order = [EndlessShapes(seed=5)[number] for number in (0, 1, 10**9)]
    source = EndlessShapes(seed=5)
    backwards = [source[number] for number in (10**9, 1, 0)]
    assert all(same(one, other) for one, other in zip(in_order, reversed(backwards), strict=True))


def test_images_windows_and_objects_are_those_of_the_training_split() -> None:
    fresh, data = EndlessShapes(seed=2, size=96)[7], ShapesDataset("train", seed=2, size=96)
    image, target = data[7]
    assert same(fresh, FreshImage(7, image, data.windows(7), target))


def test_neither_numbers_nor_seeds_nor_held_out_splits_share_an_image() -> None:
    numbers = (0, 1, 2**31, 2**32 - 1)
    fresh = [EndlessShapes(seed)[number].image for seed in (0, 1, 2**32 - 1) for number in numbers]
    held_out = [ShapesDataset(split, seed=seed)[i][0] for split in ("val", "test") for seed in (0, 1) for i in range(2)]
    images = {image.numpy().tobytes() for image in [*fresh, *held_out]}
    assert len(images) == len(fresh) + len(held_out)


def test_steps_share_no_image_and_leave_none_out() -> None:
    numbers = [fresh.number for step in range(3) for fresh in EndlessShapes().batch(step, images=2)]
    assert numbers == list(range(6))


def test_batches_drawn_ahead_are_those_of_their_steps_wherever_they_begin() -> None:
    source = EndlessShapes(seed=1)
    for first in (0, 4):
        for number, found in enumerate(islice(source.batches(first, images=2), 3)):
            expected = source.batch(first + number, images=2)
            assert all(same(one, other) for one, other in zip(found, expected, strict=True))


def test_seeds_and_numbers_beyond_the_words_of_the_generator_are_refused() -> None:
    with pytest.raises(ConfigError, match="below 2\\*\\*32"):
        EndlessShapes(seed=2**32)
    with pytest.raises(ConfigError, match="seed"):
        EndlessShapes(seed=-1)
    for number in (-1, 2**32):
        with pytest.raises(IndexError, match="2\\*\\*32"):
            EndlessShapes()[number]
