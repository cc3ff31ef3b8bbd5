"""ScoreMemory: remembered windows count in the ranking, get no gradient, and leave in order."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

import stepgrad as sg
from experiments.score_memory import ScoreMemory
from stepgrad.errors import ConfigError, InputError
from tests.losses.test_map_loss import medium_batch
from tests.scenes import Batch

Part = tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]


def batch_of(seed: int, requires_grad: bool = True) -> Part:
    batch: Batch = medium_batch(seed, windows=24, difficult=0.2)
    return batch.tensors(requires_grad=requires_grad)


def joined(*parts: Part) -> Part:
    return tuple([x for part in parts for x in part[i]] for i in range(3))  # type: ignore[return-value]


def test_the_loss_is_that_of_the_batch_and_the_remembered_images() -> None:
    first, second = batch_of(0), batch_of(1)
    loss_fn, memory = sg.MAPLoss(3), ScoreMemory(10, rescale=False)
    assert torch.equal(memory(loss_fn, *first), loss_fn(*first))
    loss = memory(loss_fn, *second)
    both = joined(batch_of(1), batch_of(0))
    expected = loss_fn(*both)
    assert torch.equal(loss, expected)
    loss.backward()
    expected.backward()
    for mine, other in zip(second[0], both[0], strict=False):
        assert torch.equal(mine.grad, other.grad)
        assert (mine.grad != 0).any()
    assert all(s.grad is None for s in first[0])


def test_rescaled_gradients_grow_with_the_number_of_images_ranked_and_the_value_does_not() -> None:
    values, gradients = [], []
    for rescale in (False, True):
        loss_fn, memory = sg.MAPLoss(3), ScoreMemory(10, rescale=rescale)
        memory(loss_fn, *batch_of(0))
        memory(loss_fn, *batch_of(1))
        scores, boxes, targets = batch_of(2)
        loss = memory(loss_fn, scores, boxes, targets)
        loss.backward()
        values.append(float(loss.detach()))
        gradients.append(torch.cat([s.grad for s in scores]))
    assert values[0] == values[1]
    torch.testing.assert_close(gradients[1], 3 * gradients[0])  # 3 + 3 + 3 images ranked, 3 in the batch


def test_the_oldest_images_are_forgotten_first() -> None:
    loss_fn, memory = sg.MAPLoss(3), ScoreMemory(4, rescale=False)
    memory(loss_fn, *batch_of(0, False))
    memory(loss_fn, *batch_of(1, False))
    assert len(memory) == 4
    scores, boxes, targets = batch_of(0, False)
    rest = (scores[2:], boxes[2:], targets[2:])
    expected = loss_fn(*joined(batch_of(2, False), rest, batch_of(1, False)))
    assert torch.equal(memory(loss_fn, *batch_of(2, False)), expected)


def test_an_image_scored_again_takes_the_place_of_its_old_entry() -> None:
    loss_fn, memory = sg.MAPLoss(3), ScoreMemory(10, rescale=False)
    memory(loss_fn, *batch_of(0, False), ids=["a", "b", "c"])
    scores, boxes, targets = batch_of(1, False)
    old = batch_of(0, False)
    expected = loss_fn(*joined((scores, boxes, targets), (old[0][1:2], old[1][1:2], old[2][1:2])))
    assert torch.equal(memory(loss_fn, scores, boxes, targets, ids=["c", "d", "a"]), expected)
    assert len(memory) == 4


def test_an_image_scored_again_is_the_newest() -> None:
    loss_fn, memory = sg.MAPLoss(3), ScoreMemory(3)
    one = [[x[0]] for x in batch_of(0, False)]
    for name in ("a", "b", "c", "a", "d"):
        memory(loss_fn, *one, ids=[name])
    assert memory.state_dict()["names"] == ["c", "a", "d"]


def test_later_changes_of_the_batch_do_not_reach_the_memory() -> None:
    loss_fn, memory, other = sg.MAPLoss(3), ScoreMemory(10), ScoreMemory(10)
    scores, boxes, targets = batch_of(0, False)
    memory(loss_fn, scores, boxes, targets)
    other(loss_fn, *batch_of(0, False))
    for tensor in (*scores, *boxes):
        tensor.zero_()
    for target in targets:
        target["labels"].zero_()
    assert torch.equal(memory(loss_fn, *batch_of(1)), other(loss_fn, *batch_of(1)))


def test_of_size_nothing_it_is_the_plain_loss() -> None:
    loss_fn, memory = sg.MAPLoss(3), ScoreMemory(0)
    for seed in (0, 1):
        scores, boxes, targets = batch_of(seed)
        memory(loss_fn, scores, boxes, targets).backward()
        reference = batch_of(seed)
        loss_fn(*reference).backward()
        assert all(torch.equal(s.grad, r.grad) for s, r in zip(scores, reference[0], strict=True))
    assert len(memory) == 0


def test_a_restored_memory_goes_on_as_the_old_one() -> None:
    loss_fn, memory, restored = sg.MAPLoss(3), ScoreMemory(5), ScoreMemory(5)
    memory(loss_fn, *batch_of(0, False), ids=["a", "b", "c"])
    memory(loss_fn, *batch_of(1, False))
    state = memory.state_dict()
    plain = json.loads(json.dumps({key: value for key, value in state.items() if key != "tensors"}))
    restored.load_state_dict(plain | {"tensors": state["tensors"]})
    for seed in (2, 3):
        assert torch.equal(restored(loss_fn, *batch_of(seed)), memory(loss_fn, *batch_of(seed)))
    memory.clear()
    assert len(memory) == 0
    assert len(restored) == 5


def test_a_memory_restored_from_tensors_alone_goes_on_as_the_old_one() -> None:
    loss_fn, memory, restored, fresh = sg.MAPLoss(3), ScoreMemory(5), ScoreMemory(5), ScoreMemory(5)
    for seed in (0, 1):
        memory(loss_fn, *batch_of(seed, False))
    assert all(isinstance(value, torch.Tensor) for value in memory.tensors().values())
    restored.load_tensors(memory.tensors())
    fresh.load_tensors({})  # of a file written before there was a memory
    assert (len(restored), len(fresh)) == (5, 0)
    for seed in (2, 3):
        assert torch.equal(restored(loss_fn, *batch_of(seed)), memory(loss_fn, *batch_of(seed)))
    assert restored.state_dict()["names"] == memory.state_dict()["names"]


def test_batches_without_images_are_ordinary() -> None:
    loss_fn, memory = sg.MAPLoss(3), ScoreMemory(5)
    memory(loss_fn, *batch_of(0, False))
    value = memory(loss_fn, [], [], [])
    assert torch.equal(value.detach(), loss_fn(*batch_of(0, False)))


@pytest.mark.parametrize("ids", [["a"], ["a", "b", "a"]])
def test_ids_must_name_every_image_once(ids: list[str]) -> None:
    with pytest.raises(InputError, match=r"ids"):
        ScoreMemory(5)(sg.MAPLoss(3), *batch_of(0), ids=ids)


def test_the_size_must_not_be_negative() -> None:
    with pytest.raises(ConfigError, match=">= 0 but got -1"):
        ScoreMemory(-1)


def test_a_smaller_memory_loads_the_latest_images_of_a_larger_one() -> None:
    box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    target = {"boxes": box, "labels": torch.tensor([0])}
    large, small = ScoreMemory(4), ScoreMemory(2)
    for name in "abcd":
        large(sg.MAPLoss(1), [torch.zeros(1, 1)], [box], [target], ids=[name])
    small.load_state_dict(large.state_dict())
    assert small.state_dict()["names"] == ["c", "d"]
