"""Batches are compared at once: the pairs of all images are those of the tables, image by image, from the lowest threshold on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import InputError
from stepgrad.overlaps import Distance, Keypoints, Masks, Overlap, Own, ProbIoU, Rotated
from stepgrad.overlaps.together import in_stretches
from stepgrad.threads import run_threads
from tests.overlaps.test_kinds import coco_form, oriented, random_masks
from tests.scenes import over_seeds

SIGMAS = [0.05, 0.1, 0.2]
THRESHOLDS = [0.0, 1 / 3, 0.5, 0.6, 0.95, 1.0]
Image = tuple[Any, dict[str, Any]]


def masks_image(rng: np.random.Generator, counts: tuple[int, int], side: int) -> Image:
    """Masks of which some are equal, or share exactly a half, as tensors or as run lengths."""
    masks = random_masks(rng, sum(counts), side, side)
    if sum(counts) > 2:
        masks[0], masks[-1] = False, False
        masks[0, : side // 2], masks[-1, : side - side % 2] = True, True
    windows, objects = masks[: counts[0]], masks[counts[0] :]
    if rng.random() < 0.5:
        return torch.from_numpy(windows), {"masks": torch.from_numpy(objects)}
    return [coco_form(m, True) for m in windows], {"masks": [coco_form(m, bool(rng.integers(2))) for m in objects]}


def poses_image(rng: np.random.Generator, counts: tuple[int, int], side: int) -> Image:
    """Poses near the objects' and far from them, some equal; of one object nothing is labelled."""
    points = rng.integers(0, side, (counts[1], 3, 3)).astype(np.float64)
    points[:, :, 2] = rng.integers(0, 3, (counts[1], 3))
    points[:1, :, 2] = 0
    of = rng.integers(0, max(counts[1], 1), counts[0])
    windows = points[of] if counts[1] else np.zeros((counts[0], 3, 3))
    windows = windows + rng.normal(0, 3, windows.shape) * rng.integers(0, 2, (counts[0], 1, 1))
    low = rng.uniform(0, 5, (counts[1], 2))
    boxes = np.concatenate([low, low + rng.uniform(1, side, (counts[1], 2))], axis=1)
    target = {"keypoints": points, "boxes": boxes, "area": rng.uniform(1, side**2, counts[1])}
    return torch.from_numpy(windows), {key: torch.from_numpy(value) for key, value in target.items()}


def oriented_image(rng: np.random.Generator, counts: tuple[int, int], side: int) -> Image:
    boxes = oriented(rng, sum(counts) + 1)
    return torch.from_numpy(boxes[: counts[0]]), {"boxes": torch.from_numpy(boxes[counts[0] : -1])}


def centres_image(rng: np.random.Generator, counts: tuple[int, int], side: int) -> Image:
    windows, objects = (torch.from_numpy(rng.integers(0, 6, (n, 2))).double() for n in counts)
    return windows, {"boxes": objects}


def own_image(rng: np.random.Generator, counts: tuple[int, int], side: int) -> Image:
    windows, colours = (torch.from_numpy(rng.integers(0, 3, n)) for n in counts)
    return windows, {"colours": colours}


KINDS: list[tuple[Overlap, Callable[..., Image]]] = [
    (Masks(), masks_image),
    (Keypoints(SIGMAS), poses_image),
    (Rotated(), oriented_image),
    (ProbIoU(), oriented_image),
    (Distance(), centres_image),
    (Own(lambda shapes, target: shapes[:, None] == target["colours"][None]), own_image),
]


def some_images(rng: np.random.Generator, make: Callable[..., Image]) -> list[Image]:
    """Images with and without windows and objects; their sizes differ or not."""
    sides = rng.integers(2, 30, 2)
    counts = [(int(n), int(g)) for n, g in rng.integers(0, 7, (int(rng.integers(1, 5)), 2))]
    return [make(rng, count, int(rng.choice(sides))) for count in counts]


@pytest.mark.parametrize(("overlap", "make"), KINDS, ids=lambda kind: getattr(kind, "word", ""))
@over_seeds(15, 1000)
def test_pairs_of_a_batch_are_those_of_the_tables_from_a_threshold_on(
    seed: int, overlap: Overlap, make: Callable[..., Image]
) -> None:
    rng = np.random.default_rng([seed, 90])
    images = some_images(rng, make)
    windows, counts = overlap.windows_of_images([image[0] for image in images], str)
    objects, object_counts = overlap.objects_of_images([image[1] for image in images], str)
    if isinstance(overlap, Own):
        object_counts = np.array([len(image[1]["colours"]) for image in images])
    offsets, first = (np.concatenate([[0], np.cumsum(each)]) for each in (counts, object_counts))
    crowd = rng.random(first[-1]) < 0.3
    least = float(rng.choice(THRESHOLDS))
    expected = {}
    for i, (shapes, target) in enumerate(images):
        if counts[i] and object_counts[i]:
            table = overlap(shapes, target, crowd[first[i] : first[i + 1]]).numpy()
            for (n, g), value in np.ndenumerate(table):
                expected[int(offsets[i]) + n, int(first[i]) + g] = float(value)
    found = overlap.pairs(windows, offsets, objects, first, crowd, least)
    pairs = {(n, g): value for n, g, value in zip(*(column.tolist() for column in found), strict=True)}
    assert len(pairs) == len(found[0])
    assert all(expected[pair] == value for pair, value in pairs.items())
    missing = [value for pair, value in expected.items() if pair not in pairs]
    assert all(value <= 0.0 or value < least for value in missing)
    assert overlap.nearness == "overlap" or not missing


@pytest.mark.parametrize(("overlap", "make"), KINDS[:-1], ids=lambda kind: getattr(kind, "word", ""))
@over_seeds(15, 1000)
def test_neighbours_of_a_batch_are_those_of_the_tables(seed: int, overlap: Overlap, make: Callable[..., Image]) -> None:
    rng = np.random.default_rng([seed, 91])
    given = [image[0] for image in some_images(rng, make)]
    windows, counts = overlap.windows_of_images(given, str)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    threshold = float(rng.choice(THRESHOLDS[:-1]))
    expected = set()
    for i in range(len(given)):
        own = overlap.take(windows, np.arange(offsets[i], offsets[i + 1]))
        for n in range(counts[i]):
            for m in range(n + 1, counts[i]):
                rows, columns = np.array([n]), np.array([m])
                alike = overlap.of_pairs(own, rows, own, columns, np.zeros(1, dtype=bool))[0]
                if (alike > threshold) if overlap.nearness == "overlap" else (-alike < threshold):
                    expected.add((int(offsets[i]) + n, int(offsets[i]) + m))
    assert {tuple(pair) for pair in overlap.near(windows, offsets, threshold).tolist()} == expected


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_stretches_are_the_whole_in_order(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count in (0, 1, 4, 23):
            spans = in_stretches(lambda span: list(range(*span)), count, fewest=1)
            assert [i for span in spans for i in span] == list(range(count))
    finally:
        torch.set_num_threads(before)


def test_work_on_threads_may_itself_be_split() -> None:
    whole = [[10 * i + j for j in range(8)] for i in range(8)]
    assert run_threads(lambda i: run_threads(lambda j: 10 * i + j, range(8), 2), range(8), 2) == whole


def test_an_image_whose_shapes_are_wrong_is_named_though_images_are_read_together() -> None:
    targets = [{"boxes": torch.ones(1, 5), "labels": torch.tensor([0])} for _ in range(3)]
    wrong = torch.tensor([[0.0, 0, -1, 1, 0]])
    for images, message in (([wrong], "image 2: expected boxes"), ([torch.ones(1, 3)], r"image 2: expected \(n, 5\)")):
        with pytest.raises(InputError, match=message):
            sg.MAPLoss(1, overlap=Rotated())([torch.zeros(1, 1)] * 3, [torch.ones(1, 5)] * 2 + images, targets)
    with pytest.raises(InputError, match="image 1: expected 1 boxes, one per window, but got 2"):
        sg.MAPLoss(1, overlap=Rotated())([torch.zeros(1, 1)] * 2, [torch.ones(1, 5), torch.ones(2, 5)], targets[:2])
    empty = {"masks": torch.zeros(2, 4, 4, dtype=torch.bool), "labels": torch.tensor([0, 0])}
    empty["masks"][0] = True
    masks = [torch.ones(1, 4, 4, dtype=torch.bool)] * 2
    full = {"masks": masks[0], "labels": torch.tensor([0])}
    with pytest.raises(InputError, match="image 1: expected objects with an area but that of object 1 is 0"):
        sg.MAPLoss(1, overlap=Masks())([torch.zeros(1, 1)] * 2, None, [full, empty], masks=masks)


def test_shapes_that_reach_no_threshold_are_no_mistake_of_the_caller() -> None:
    half = torch.zeros(2, 16, 4, 4, dtype=torch.bool)
    half[0, :, :, :2], half[1] = True, True
    target = {"masks": half[0, :1], "labels": torch.tensor([0])}
    scores = torch.zeros(16, 1, requires_grad=True)
    loss_fn = sg.MAPLoss(1, match_threshold=0.9, nms_threshold=None, overlap=Masks())
    loss_fn([scores], None, [target], masks=[half[1]]).backward()  # a warning would be an error
    assert loss_fn.metrics["map"] == 0.0


@pytest.mark.parametrize("text", ["0", "`1", "11O", "oooooooooo1", b"\xff\xff\xff\xff\xff\xff\xff\xff"])
def test_run_lengths_that_are_none_are_refused(text: str | bytes) -> None:
    with pytest.raises(InputError, match="mask 1: expected run lengths that add up"):
        Masks()([{"size": [4, 4], "counts": [16]}, {"size": [4, 4], "counts": text}], [])
    with pytest.raises(InputError, match="one of them is negative"):
        Masks()([{"size": [4, 4], "counts": [18, -2]}], [])
