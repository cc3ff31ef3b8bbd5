"""What processes send each other, sent and joined in one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from stepgrad.losses.shards import Shard
from stepgrad.metric.batch import Batch, make_batch
from stepgrad.processes import _packed, _unpacked
from tests.detector.training.rank_jobs import Case

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


def joined_by(batches: list[Batch], rank: int, K: int) -> Batch:
    """What the process of some classes makes of what all send."""
    classes = range(rank, K, len(batches))
    parts = [Shard(batch, torch.from_numpy(batch.scores)) for batch in batches]
    sent = [_unpacked(_packed(part.for_classes(classes))) for part in parts]
    return parts[0].join(sent, [part.images for part in parts], classes).batch


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


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_process_gets_its_classes_of_the_joined_batch(name: str, wide: bool) -> None:
    case = CASES[name].cut((2, 3)) if len(CASES[name].cuts) == 1 else CASES[name]
    batches, joined = read(case, wide)
    for rank in range(min(len(batches), case.K)):
        assert_classes_of(joined_by(batches, rank, case.K), joined, list(range(rank, case.K, len(batches))))


def test_boxes_of_one_process_by_class_make_those_of_all_so() -> None:
    shared, by_class = Case(K=2).shards()[0], Case(K=2, kind={"per_class_boxes": True}, seed=1).shards()[0]
    batches = [make_batch(*shard, 2) for shard in (shared, by_class)]
    joined = make_batch(*([*a, *b] for a, b in zip(shared, by_class, strict=True)), 2)
    for rank in range(2):
        assert_classes_of(joined_by(batches, rank, 2), joined, [rank])


def test_boxes_travel_in_double_precision_only_if_they_need_it() -> None:
    (batch, _), _ = read(Case(), wide=False)
    wide = replace(batch, boxes=batch.boxes + 1e-12)
    kinds = [Shard(b, torch.zeros(0)).for_classes(range(0, 2, 2))["boxes"].dtype for b in (batch, wide)]
    assert kinds == [np.float32, np.float64]


@pytest.mark.parametrize("boxes_by_class", [False, True])
@pytest.mark.parametrize("windows", [0, 1, 2])
@pytest.mark.parametrize("K", [1, 2, 3, 4])
def test_a_process_with_a_single_window_sends_it_like_any_other(K: int, windows: int, boxes_by_class: bool) -> None:
    corners = torch.tensor([0.0, 0.0, 10.0, 10.0])
    boxes = corners.expand(windows, K, 4) if boxes_by_class else corners.expand(windows, 4)
    target = {"boxes": corners[None], "labels": torch.tensor([K - 1])}
    batch = make_batch([torch.arange(windows * K).reshape(windows, K) / 7.0], [boxes], [target], K)
    assert_classes_of(joined_by([batch], 0, K), batch, list(range(K)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.bool_, np.uint8])
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 4), (0, 4), (2, 0, 4)], ids=str)
def test_named_arrays_read_back_as_they_were_sent(dtype: type, shape: tuple[int, ...]) -> None:
    arrays = {"first": np.arange(np.prod(shape)).reshape(shape).astype(dtype), "second": np.array([7.5])}
    back = _unpacked(_packed(arrays))
    assert list(back) == ["first", "second"]
    assert (back["first"].dtype, back["first"].shape) == (arrays["first"].dtype, shape)
    assert all(np.array_equal(back[name], arrays[name]) for name in arrays)
