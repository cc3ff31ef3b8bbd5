"""DistributedMAPLoss and its exchanges with threads for processes: the laws of test_distributed.py within seconds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepgrad import processes
from stepgrad.losses.distributed import DistributedMAPLoss
from stepgrad.processes import Channel, RankError, average_gradients, gather_objects, sum_over_processes
from tests.detector.training.rank_jobs import CASES, Case, Pair, one_case
from tests.losses.test_distributed import assert_same_as_one_process, in_one_process
from tests.losses.threads_as_ranks import threads


@pytest.mark.parametrize("name", CASES)
def test_two_threads_give_the_joined_batch_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same_as_one_process(name, threads(2, monkeypatch).run(lambda rank: one_case(rank, CASES[name])))


def test_three_threads_the_second_without_images_give_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = CASES["plain"].cut((2, 2))
    assert_same_as_one_process("plain", threads(3, monkeypatch).run(lambda rank: one_case(rank, cut)))


def test_averaged_gradients_are_those_of_the_joined_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(dtype=torch.float64, options={"l4": 1e-3})
    _, expected, _ = in_one_process(case)

    def gradients(rank: int) -> list[Tensor]:
        scores, boxes, targets = case.shards()[rank]
        leaves = [s.clone().requires_grad_() for s in scores]
        DistributedMAPLoss(case.K, **case.options)(leaves, boxes, targets).backward()
        return [s.grad for s in leaves]

    found = [g for own in threads(2, monkeypatch).run(gradients) for g in own]
    for mine, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, 2 * whole, rtol=0, atol=0)


def test_every_exchange_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = threads(2, monkeypatch).run(lambda rank: one_case(rank, CASES["plain"])["traffic"])
    assert (a.sent, a.received, a.exchanges) == (b.received, b.sent, b.exchanges)
    assert a.exchanges == 6  # announcements, and twice the sizes of what follows
    assert a.sent > 0


def test_what_does_not_fit_is_refused_by_all_and_leaves_them_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = threads(2, monkeypatch).run(lambda rank: Pair(rank, None).disagree())
    assert [kind for kind, _ in first.values()] == ["RankError", "InputError", "InputError", ""]
    assert [kind for kind, _ in second.values()] == ["NonFiniteError", "InputError", "InputError", ""]
    assert "rank 1: image 0: expected finite scores but scores[0, 0] is nan" in first["nan on rank 1"][1]
    assert "rank 0: torch.float32, rank 1: torch.float64" in first["dtypes"][1]
    assert "the same settings" in second["settings"][1]


def test_missing_gradients_count_as_zero_unless_missing_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in threads(2, monkeypatch).run(lambda rank: Pair(rank, None).partial_gradients()):
        both, one, none, double = found
        assert [both.tolist(), one.tolist(), double.tolist()] == [[1.5, 3.0], [2.0, 4.0], [1.0, 1.0]]
        assert none is None


@pytest.mark.parametrize("bucket", [1, 5, 100])
def test_gradients_are_averaged_in_buckets_of_any_size(bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_BUCKET", bucket)
    sums: list[int] = []

    def averaged(rank: int) -> list[Tensor | None]:
        parameters = [nn.Parameter(torch.zeros(2, 2)) for _ in range(4)]
        frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        for i, p in enumerate(parameters):
            p.grad = torch.full((2, 2), float(i + rank))
        average_gradients([*parameters, frozen])
        sums.append(len(processes._buckets(parameters)))
        return [p.grad for p in parameters]

    for found in threads(2, monkeypatch).run(averaged):
        assert [g.tolist() for g in found] == [[[i + 0.5] * 2] * 2 for i in range(4)]
    assert sums == [4 if bucket < 8 else 1] * 2


def test_numbers_and_objects_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(rank: int) -> Any:
        numbers = sum_over_processes([rank, 10.0])
        return processes.rank(), processes.world(), numbers, gather_objects(f"of {rank}")

    found = threads(3, monkeypatch).run(work)
    assert found == [(rank, 3, [3.0, 30.0], ["of 0", "of 1", "of 2"]) for rank in range(3)]


def test_alone_there_is_nothing_to_exchange() -> None:
    assert (processes.rank(), processes.world()) == (0, 1)
    assert sum_over_processes([2, 3.5]) == [2.0, 3.5]
    assert gather_objects("own") == ["own"]


def test_a_world_of_one_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = threads(1, monkeypatch).run(lambda rank: one_case(rank, Case(cuts=())))
    assert found["traffic"].exchanges == 0
    assert torch.equal(found["loss"], in_one_process(Case(cuts=()))[0])


@pytest.mark.parametrize("text", ["connection closed by peer\nand a trace", ""])
def test_a_failed_exchange_says_what_failed_and_the_way_out(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = threads(1, monkeypatch)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(made, "all_reduce", fail)
    (error,) = made.run(lambda _: Channel(None, 7.5).add_up(torch.zeros(1), "adding up"))
    assert isinstance(error, RankError)
    reason = "connection closed by peer" if text else "RuntimeError"
    assert f"rank 0 of 1: adding up failed after 0 s ({reason}). Another process" in str(error)
    assert "timeout=7.5 seconds" in str(error)


@pytest.mark.parametrize(
    ("backend", "accelerator", "device"),
    [("gloo", "cuda", "cpu"), ("mpi", "cuda", "cpu"), ("nccl", "cuda", "cuda"), ("nccl", None, "cpu")],
)
def test_tensors_lie_where_the_backend_wants_them(
    backend: str, accelerator: str | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = torch.device(accelerator) if accelerator else None
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: there)
    assert processes._device_of(backend) == torch.device(device)


def test_without_an_accelerator_tensors_stay_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert processes._device_of("nccl") == torch.device("cpu")
