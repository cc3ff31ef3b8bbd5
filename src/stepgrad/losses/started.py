"""A loss that is worked out on the CPU while the rest of a forward pass runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from stepgrad.metric.forms import as_lists
from stepgrad.plain_tensors import joined, outside_graphs

if TYPE_CHECKING:
    from stepgrad.losses.objective import Measured
    from stepgrad.metric.batch import Batch

R = TypeVar("R")


class StartedLoss:
    """A loss whose numbers are on their way: `DetectionLoss.start` makes it, `finish` gives the loss.

    Scores, boxes and targets must not be changed in place before that.
    """

    def __init__(self, loss_fn: Any, call: tuple[Any, ...], more: Mapping[str, Any]) -> None:  # of a `DetectionLoss`
        self.loss_fn = loss_fn
        self.threads = torch.get_num_threads()  # another thread would ask torch for its own
        scores, boxes, _, mask = call
        given = scores if isinstance(scores, (list, tuple)) else [scores]
        self.needed = torch.is_grad_enabled() and any(isinstance(s, Tensor) and s.requires_grad for s in given)
        self.flat: Tensor | None = None
        if any(isinstance(s, Tensor) and s.is_cuda for s in given):
            columns = loss_fn.num_classes
            self.flat = _flat(scores, boxes, columns, mask)
            copies = _CudaCopies(next(s.device for s in given if s.is_cuda))
            there = copies.of(list(call)), copies.of(dict(more))
            copies.end()
            self.future = beside(lambda: self._work(copies, *there))
        else:  # a copy from any other device has ended when this line has; what is left is the work
            batch, self.flat = loss_fn.read(*call, more)
            self.future = beside(lambda: (batch, self._measure(batch)))

    def _work(self, copies: _CudaCopies, call: list[Any], more: dict[str, Any]) -> tuple[Batch, Measured]:
        copies.wait()
        batch, _ = self.loss_fn.read(*call, more)
        return batch, self._measure(batch)

    def _measure(self, batch: Batch) -> Measured:
        return self.loss_fn.objective.measure(batch, self.needed, self.threads)

    @outside_graphs
    def finish(self) -> Tensor:
        """The loss, as the call itself would give it; waits for the numbers if need be, and raises what went wrong with them."""
        batch, measured = self.future.result()
        assert self.flat is not None
        if self.needed:
            self.loss_fn.watch(batch)
        self.loss_fn.metrics = measured.metrics
        return self.loss_fn.objective.as_loss(measured, self.flat, batch.scores)


def beside(work: Callable[[], R]) -> Future[R]:
    """The result of work on a thread of its own. The program does not end before it: a kernel cannot be stopped half-way."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised again where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="stepgrad beside").start()
    return future


def _flat(scores: Any, boxes: Any, num_classes: int, mask: Tensor | None) -> Tensor:
    """The scores as one tensor with their graph, as `DetectionLoss.read` has them."""
    lists, _ = as_lists(scores, boxes, num_classes, mask, width=None)
    return joined(lists)


class _CudaCopies:
    """Copies into pinned memory on a stream of their own: neither the program nor the kernels of other streams wait for them."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        self.event = torch.cuda.Event()

    def of(self, given: Any) -> Any:
        """The same with every tensor of a GPU on the CPU, once `wait` has returned; without graphs."""
        if isinstance(given, dict) or (isinstance(given, Mapping) and not isinstance(given, Tensor)):
            return {key: self.of(value) for key, value in given.items()}
        if isinstance(given, (list, tuple)):
            return [self.of(value) for value in given]
        if not (isinstance(given, Tensor) and given.is_cuda):
            return given.detach() if isinstance(given, Tensor) else given
        source = given.detach()
        with torch.cuda.stream(self.stream):
            held = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            held.copy_(source, non_blocking=True)
            source.record_stream(self.stream)
        return held

    def end(self) -> None:
        """Nothing more will be copied."""
        self.event.record(self.stream)

    def wait(self) -> None:
        """Return when the numbers are there."""
        self.event.synchronize()
