"""Which images a step sees, and what they look like in a mirror."""

from __future__ import annotations

import pytest
import torch

from stepgrad.data import ShapesDataset
from stepgrad.errors import ConfigError, DataError
from stepgrad.train.inputs import Order, mirrored, mix, open_data


def test_every_pair_comes_once_an_epoch_and_epochs_differ() -> None:
    order = Order(count=7, flip=True, seed=3)
    epochs = [order.entries(14 * epoch, 14) for epoch in range(3)]
    assert all(len(set(epoch)) == 14 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_sequence_does_not_depend_on_what_was_asked_before() -> None:
    order = Order(count=5, flip=False, seed=1)
    whole = order.entries(0, 23)
    order.entries(17, 3)
    assert [order.entries(i, 1)[0] for i in range(23)] == whole
    assert Order(count=5, flip=False, seed=2).entries(0, 23) != whole


def test_without_flips_nothing_is_mirrored() -> None:
    assert not any(flipped for _, flipped in Order(4, flip=False, seed=0).entries(0, 12))


def test_a_mirror_image_twice_is_the_image() -> None:
    example = open_data("shapes", "val", limit=2).example(1)
    twice = mirrored(mirrored(example))
    assert torch.equal(twice.image, example.image)
    torch.testing.assert_close(twice.windows, example.windows)
    torch.testing.assert_close(twice.target["boxes"], example.target["boxes"])


def test_the_content_of_a_window_moves_with_it() -> None:
    example = open_data("shapes", "val", limit=1).example(0)
    seen = mirrored(example)
    x1, y1, x2, y2 = (int(v) for v in example.windows[0].round())
    u1, _, u2, _ = (int(v) for v in seen.windows[0].round())
    assert torch.equal(seen.image[:, y1:y2, u1:u2], example.image[:, y1:y2, x1:x2].flip(-1))


def test_a_limit_of_windows_keeps_a_fixed_choice_of_them() -> None:
    few = open_data("shapes", "train", limit=3, max_windows=20)
    windows = ShapesDataset("train").windows(2)
    assert few.windows(2).shape == (20, 4)
    assert torch.equal(few.windows(2), open_data("shapes", "train", max_windows=20).windows(2))
    assert all((windows == window).all(dim=1).any() for window in few.windows(2))


def test_facts_are_those_of_the_example() -> None:
    data = open_data("shapes", "val", limit=1)
    windows, target = data.facts(0)
    example = data.example(0)
    assert torch.equal(windows, example.windows)
    assert torch.equal(target["boxes"], example.target["boxes"])


def test_a_part_of_a_split_holds_the_images_of_its_numbers() -> None:
    part, whole = open_data("shapes", "val[3:5]"), open_data("shapes", "val")
    assert len(part) == 2
    assert torch.equal(part.example(1).image, whole.example(4).image)
    assert torch.equal(part.windows(0), whole.windows(3))
    assert part.picture_facts(0) == whole.picture_facts(3)


def test_a_part_beyond_the_images_is_refused() -> None:
    with pytest.raises(DataError, match=r"has 500 images, none of them in 'val\[500:\]'"):
        open_data("shapes", "val[500:]")


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one image"):
        open_data("shapes", "val", limit=0)


def test_seeds_of_neighbouring_steps_and_streams_are_all_different() -> None:
    seeds = {mix(seed, step, stream) for seed in range(4) for step in range(200) for stream in range(4)}
    assert len(seeds) == 4 * 200 * 4
