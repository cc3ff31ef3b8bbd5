"""What processes send each other, packed and unpacked in one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepgrad.losses.shards import DTYPES, Sizes, classes_of, pack, sizes_of, unpack
from stepgrad.metric.batch import Batch, make_batch
from tests.train.rank_jobs import Case

KIND = {"ties": True, "difficult": 0.4, "crowd": 0.4}
CASES = {
    "one class each": Case(K=3, kind=KIND),
    "several classes each": Case(K=7, kind=KIND, dtype=torch.float64),
    "fewer classes than processes": Case(K=1, kind=KIND, dtype=torch.float16),
    "boxes per class": Case(K=7, kind=KIND | {"per_class_boxes": True}, dtype=torch.bfloat16),
    "a process without images": Case(K=3, kind=KIND, cuts=(0, 4)),
}


def read(case: Case, wide: bool) -> tuple[list[Batch], Batch]:
    """Each process's batch, and the joined one. Wide boxes need float64."""
    shards, joined = case.shards(), case.joined()
    batches = [make_batch(*shard, case.K) for shard in [*shards, joined]]
    if wide:
        batches = [replace(b, boxes=b.boxes + 1e-12) for b in batches]
    return batches[:-1], batches[-1]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_process_gets_its_classes_of_the_joined_batch(name: str, wide: bool) -> None:
    case = CASES[name].cut((2, 3)) if len(CASES[name].cuts) == 1 else CASES[name]
    batches, joined = read(case, wide)
    world = len(batches)
    sizes = [sizes_of(batch, case.dtype, world) for batch in batches]
    sent = [pack(batch, size, world) for batch, size in zip(batches, sizes, strict=True)]
    for rank in range(world):
        classes = list(classes_of(rank, world, case.K))
        parts = [parts[rank] for parts in sent]
        assert [len(part) for part in parts] == [size.nbytes(rank, len(classes)) for size in sizes]
        if classes:
            assert_classes_of(unpack(parts, sizes, rank, len(classes)), joined, classes)


def assert_classes_of(found: Batch, joined: Batch, classes: list[int]) -> None:
    own = np.isin(joined.object_labels, classes)
    assert np.array_equal(found.offsets, joined.offsets)
    assert np.array_equal(found.scores, joined.scores[:, classes])
    assert found.scores.dtype == joined.scores.dtype
    assert np.array_equal(found.boxes, joined.boxes[:, classes] if joined.boxes_by_class else joined.boxes)
    assert [classes[label] for label in found.object_labels] == joined.object_labels[own].tolist()
    for name in ("object_boxes", "object_images", "difficult", "crowd"):
        assert np.array_equal(getattr(found, name), getattr(joined, name)[own]), name
    assert found.boxes.dtype == np.float64


def test_boxes_of_one_process_by_class_make_those_of_all_so() -> None:
    shared, by_class = Case(K=2).shards()[0], Case(K=2, kind={"per_class_boxes": True}, seed=1).shards()[0]
    batches = [make_batch(*shard, 2) for shard in (shared, by_class)]
    joined = make_batch(*([*a, *b] for a, b in zip(shared, by_class, strict=True)), 2)
    sizes = [sizes_of(batch, torch.float32, 2) for batch in batches]
    sent = [pack(batch, size, 2) for batch, size in zip(batches, sizes, strict=True)]
    for rank in range(2):
        assert_classes_of(unpack([parts[rank] for parts in sent], sizes, rank, 1), joined, [rank])


def test_boxes_travel_in_double_precision_only_if_they_need_it() -> None:
    (batch, _), _ = read(Case(), wide=False)
    narrow = sizes_of(batch, torch.float32, 2)
    wide = sizes_of(replace(batch, boxes=batch.boxes + 1e-12), torch.float32, 2)
    assert wide.nbytes(0, 2) - narrow.nbytes(0, 2) == 4 * 4 * len(batch.boxes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_an_announcement_reads_back_as_it_was_written(flags: tuple[bool, bool], dtype: torch.dtype) -> None:
    sizes = Sizes(3, 40, *flags, dtype, (5, 0, 7))
    assert Sizes.read(sizes.row()) == sizes
