"""The built-in set: the same everywhere, hard in the ways it says it is."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from stepgrad.data import ShapesDataset, load_proposals, recall
from stepgrad.data.shapes.draws import Draws
from stepgrad.data.shapes.outlines import CLASSES, LOOK_ALIKES
from stepgrad.data.shapes.scene import draw_scene

DIGEST = "314cd2f32fe1edfddf6bead534f876d9d362e8877ea1c4fcc77b010b6d1d4de4"


def digest(dataset: ShapesDataset) -> str:
    total = hashlib.sha256()
    for index in range(len(dataset)):
        scene = dataset.scene(index)
        for array, dtype in ((scene.image, "u1"), (scene.boxes, "<f8"), (scene.labels, "<i8"), (scene.difficult, "u1")):
            total.update(np.ascontiguousarray(array.astype(dtype)).tobytes())
        total.update(dataset.windows(index).numpy().astype("<f4").tobytes())
    return total.hexdigest()


def test_pictures_objects_and_windows_are_the_same_bits_on_every_machine() -> None:
    assert digest(ShapesDataset("train", length=20)) == DIGEST


def test_each_picture_is_drawn_by_itself() -> None:
    dataset = ShapesDataset("val", length=30)
    alone = draw_scene.__wrapped__(dataset._key(17), dataset.size)  # past the cache, without those before it
    assert np.array_equal(dataset.scene(17).image, alone.image)
    assert np.array_equal(ShapesDataset("val", length=500).scene(17).image, alone.image)


def test_splits_and_seeds_share_no_picture() -> None:
    sets = [ShapesDataset(split, length=10, seed=seed) for split in ("train", "val", "test") for seed in (0, 1)]
    prints = {dataset.fingerprint(index) for dataset in sets for index in range(10)}
    assert len(prints) == 60


@pytest.fixture(scope="module")
def targets() -> list:
    dataset = ShapesDataset("train")
    return [dataset.target(index) for index in range(300)]


def test_there_are_two_to_six_objects_an_image(targets: list) -> None:
    counts = [len(target["labels"]) for target in targets]
    assert set(counts) == {2, 3, 4, 5, 6}


def test_all_six_classes_are_about_as_frequent(targets: list) -> None:
    counts = np.bincount(torch.cat([target["labels"] for target in targets]).numpy(), minlength=6)
    assert len(counts) == 6 == len(CLASSES)
    assert counts.min() > 0.7 * counts.mean()


def test_objects_span_a_wide_range_of_scales(targets: list) -> None:
    sides = torch.cat([target["area"] for target in targets]).sqrt().numpy()
    small, large = np.percentile(sides, [5, 95])
    assert large / small > 5
    assert sides.min() >= 4


def test_some_objects_are_mostly_hidden_and_marked_difficult(targets: list) -> None:
    share = torch.cat([target["difficult"] for target in targets]).float().mean()
    assert 0.02 < share < 0.2


def test_boxes_lie_inside_the_image_on_whole_pixels(targets: list) -> None:
    boxes = torch.cat([target["boxes"] for target in targets])
    assert boxes.min() >= 0
    assert boxes.max() <= 160
    assert torch.equal(boxes, boxes.round())
    assert (boxes[:, 2:] > boxes[:, :2]).all()


def test_objects_overlap(targets: list) -> None:
    from torchvision.ops import box_iou

    overlapping = sum(bool((box_iou(t["boxes"], t["boxes"]).fill_diagonal_(0) > 0.1).any()) for t in targets)
    assert overlapping > 0.2 * len(targets)


def test_colour_says_nothing_about_the_class() -> None:
    """The mean colour of an object's box predicts its class no better than chance does."""
    dataset = ShapesDataset("train", length=300)
    colours, labels = [], []
    for image, target in (dataset[index] for index in range(len(dataset))):
        for (x1, y1, x2, y2), label in zip(target["boxes"].int().tolist(), target["labels"].tolist(), strict=True):
            colours.append(image[:, y1:y2, x1:x2].float().mean(dim=(1, 2)))
            labels.append(label)
    x, y = torch.stack(colours), torch.tensor(labels)
    nearest = torch.cdist(x, x).fill_diagonal_(torch.inf).argmin(dim=1)
    assert (y[nearest] == y).float().mean() < 0.25  # chance is 1/6


def test_every_class_has_a_look_alike_that_is_not_it() -> None:
    axis = np.linspace(-1, 1, 41)
    u, v = np.meshgrid(axis, axis)
    masks = {name: outline(u, v) for name, outline in CLASSES.items()}
    for mask in masks.values():
        shares = [(mask & alike(u, v)).sum() / (mask | alike(u, v)).sum() for alike in LOOK_ALIKES]
        assert 0.4 < max(shares) < 0.95


def test_built_in_windows_cover_most_objects_but_not_exactly() -> None:
    dataset = ShapesDataset("val", length=100)
    windows = load_proposals("built-in", dataset)
    measured = recall(windows, dataset)
    assert measured.recall[0] > 0.95
    assert 0.5 < measured.recall[1] < 0.95
    assert 150 < measured.windows.mean() < 500


def test_built_in_windows_surround_decoys_as_well_as_objects() -> None:
    """Otherwise the number of windows at a place would give the objects away."""
    from torchvision.ops import box_iou

    dataset = ShapesDataset("val", length=60)
    around = {"objects": [], "decoys": []}
    for index in range(len(dataset)):
        scene, windows = dataset.scene(index), dataset.windows(index)
        for kind, boxes in (("objects", scene.boxes), ("decoys", scene.decoys)):
            near = box_iou(torch.from_numpy(boxes).float(), windows) > 0.5
            around[kind] += near.sum(dim=1).tolist()
    assert np.mean(around["objects"]) < 1.3 * np.mean(around["decoys"])


def test_windows_are_sorted_unique_and_inside() -> None:
    windows = ShapesDataset("val").windows(3)
    assert torch.equal(torch.unique(windows, dim=0), windows)
    assert windows.min() >= 0
    assert windows.max() <= 160


@pytest.mark.parametrize("size", [64, 100, 320])
def test_other_sizes_work_too(size: int) -> None:
    dataset = ShapesDataset("test", length=5, size=size)
    for index in range(5):
        image, target = dataset[index]
        assert image.shape == (3, size, size)
        assert target["boxes"].max() <= size
        assert len(target["labels"]) >= 1
        assert dataset.windows(index).max() <= size


def test_draws_use_the_raw_words_of_pcg64() -> None:
    words = np.random.PCG64(np.random.SeedSequence((1, 2))).random_raw(2)
    draws = Draws(1, 2)
    assert draws.unit() == (int(words[0]) >> 11) * 2.0**-53
    assert draws.integer(0, 1000) == int(words[1]) % 1000


def test_directions_are_unit_vectors_all_around() -> None:
    draws = Draws(5)
    found = np.array([draws.direction() for _ in range(400)])
    assert np.allclose((found**2).sum(axis=1), 1, atol=1e-15)
    quadrants = set(map(tuple, np.sign(found).astype(int).tolist()))
    assert quadrants == {(1, 1), (1, -1), (-1, 1), (-1, -1)}
