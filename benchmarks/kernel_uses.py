"""Which kernels are called with which types? Calls everything that calls kernels, and writes src/stepgrad/kernels/uses.json.

    python -m benchmarks.kernel_uses       # after a change to what kernels take, or to who calls which

`stepgrad warmup` compiles what stands in that table, and the first call of a loss compiles its share of it in two processes.
tests/kernels/test_warmup.py fails if the table lacks a kernel.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from numba.core import event
from torch import Tensor

import stepgrad as sg
import stepgrad.kernels
from stepgrad.kernels.dispatch import KernelDispatcher
from stepgrad.kernels.uses import TABLE, Use, describe, write_table
from stepgrad.losses.baselines import make_baseline
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss

WINDOWS = 80  # more than 64, so that windows are ordered in space
METHODS = {
    "radius": {"estimator": "radius"},
    "nearest": {"estimator": "mee"},
    "paper": {"estimator": "mee", "through_nms": "paper"},
}


def scene(dtype: torch.dtype, classes: int = 3, boxes_by_class: bool = False) -> tuple[list[Tensor], list[Tensor], Any]:
    """Two images with windows around objects of every class."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(WINDOWS, 2, generator=generator, dtype=torch.float64) * 100
    boxes = torch.cat([corners, corners + 20 + 20 * torch.rand(WINDOWS, 2, generator=generator)], dim=1)
    scores = 3 * torch.randn(WINDOWS, classes, generator=generator).to(dtype)
    target = {"boxes": boxes[:6], "labels": torch.arange(6) % classes, "difficult": torch.arange(6) == 5}
    windows = boxes[:, None].expand(-1, classes, -1) if boxes_by_class else boxes
    return [scores.clone().requires_grad_() for _ in range(2)], [windows] * 2, [target] * 2


def step(dtype: torch.dtype, options: Mapping[str, Any], **of_scene: Any) -> None:
    """A loss and its gradient."""
    scores, boxes, targets = scene(dtype, **of_scene)
    sg.MAPLoss(scores[0].shape[1], **options)(scores, boxes, targets).backward()


def first_calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """The usual first call for each name that `explain_wait` is given."""
    for dtype in (torch.float32, torch.float64):
        for name, options in METHODS.items():
            yield f"{name} {str(dtype).removeprefix('torch.')}", lambda d=dtype, o=options: step(d, o)


def other_calls() -> Iterator[Callable[[], object]]:
    """What else calls kernels, and what calls them with other types."""
    for dtype in (torch.float32, torch.float64):
        for options in METHODS.values():
            yield lambda d=dtype, o=options: step(d, o, classes=1)
            yield lambda d=dtype, o=options: step(d, o, boxes_by_class=True)
            yield lambda d=dtype, o=options: step(d, {**o, "protocol": "coco", "balance": "class+scale"})
        yield lambda d=dtype: step(d, {"nms_threshold": None})
        yield lambda d=dtype: _evaluate(d)
        yield lambda d=dtype: _rank(d)
        yield lambda d=dtype: _ragged(d)


def _evaluate(dtype: torch.dtype) -> None:
    scores, boxes, targets = scene(dtype)
    plain = [s.detach() for s in scores]
    for protocol in ("voc07", "voc12", "coco"):
        sg.mean_average_precision(plain, boxes, targets, protocol=protocol)
    sg.map_steps(plain, boxes, targets)
    sg.map_pseudogradient(plain, boxes, targets)
    sg.nms(boxes[0], plain[0][:, 0], 0.5)
    evaluator = sg.Evaluator(3, ["voc07", "coco"])
    labels = torch.arange(WINDOWS) % 3
    found = [{"boxes": b, "scores": s[:, 0], "labels": labels} for s, b in zip(plain, boxes, strict=True)]
    evaluator.update(found, targets)
    evaluator.compute()
    sg.layers.NMSLayer(threshold=0.3)(scores[0][:, 0], boxes[0]).sum().backward()
    from stepgrad.metric.detections import suppress_and_rank

    suppress_and_rank(plain[0], boxes[0], 0.3, 50)


def _rank(dtype: torch.dtype) -> None:
    scores, boxes, targets = scene(dtype)
    for estimator in ("mee", "sde", "radius"):
        sg.APLoss(interpolated=True, estimator=estimator)(scores[0][:, 0], torch.arange(WINDOWS) % 2).backward()
        sg.SpearmanLoss(estimator=estimator)(scores[0][:, 0], torch.arange(WINDOWS)).backward()
    for name in ("song", "yue"):
        make_baseline(name, 3)(scores, boxes, targets).backward()


def _ragged(dtype: torch.dtype) -> None:
    scores, boxes, targets = scene(dtype)
    zeros = torch.zeros(WINDOWS, dtype=torch.long)
    for options in METHODS.values():
        pairs = ScoredPairs(scores[0][:, 0].detach().requires_grad_(), boxes[0], zeros, zeros)
        ragged_map_loss(sg.MAPLoss(3, **options), pairs, targets[:1]).backward()


def kernels() -> dict[str, KernelDispatcher]:
    """Every kernel by module and name."""
    folder = Path(stepgrad.kernels.__file__).parent
    modules = [importlib.import_module(f"stepgrad.kernels.{file.stem}") for file in sorted(folder.glob("[a-z]*.py"))]
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, KernelDispatcher) and value.__module__ == module.__name__
    }


def called_by(call: Callable[[], object]) -> set[tuple[str, tuple[Any, ...]]]:
    """The kernels that Python calls in a call, and the types it gives them."""
    for kernel in kernels().values():
        kernel._reset_overloads()
    call()
    return {(name, arguments) for name, kernel in kernels().items() for arguments in kernel.overloads}


@contextmanager
def _timed() -> Iterator[dict[tuple[str, tuple[Any, ...]], float]]:
    """Seconds of compilation; what is compiled on the way to a kernel counts for it."""
    seconds: dict[tuple[str, tuple[Any, ...]], float] = {}

    class Clock(event.Listener):
        def on_start(self, started: Any) -> None:
            started.data["began"] = time.process_time()

        def on_end(self, ended: Any) -> None:
            kernel = ended.data["dispatcher"]
            if isinstance(kernel, KernelDispatcher):
                name = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"
                seconds[name, ended.data["args"]] = time.process_time() - ended.data["began"]

    with event.install_listener("numba:compile", Clock()):
        yield seconds


def main() -> None:
    TABLE.write_text("[]\n", encoding="utf-8")  # nothing is compiled ahead while we look
    needed_by: dict[tuple[str, tuple[Any, ...]], list[str]] = {}
    with _timed() as seconds:
        for name, call in first_calls():
            for found in called_by(call):
                needed_by.setdefault(found, []).append(name)
        for call in other_calls():
            for found in called_by(call):
                needed_by.setdefault(found, [])
    write_table(
        [
            Use(
                name,
                tuple(describe(kind) for kind in arguments),
                tuple(names),
                round(seconds.get((name, arguments), 0.1), 1),
            )
            for (name, arguments), names in needed_by.items()
        ]
    )
    print(f"{len(needed_by)} kernels and types in {TABLE}")


if __name__ == "__main__":
    main()
