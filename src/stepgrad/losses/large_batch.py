"""One exact objective over a batch of any size, at the memory of one chunk of it.

A loss on scores needs nothing of the model but the scores. So: score every chunk without a graph, compute the loss and
d(loss)/d(scores) once over all of them, then run each chunk forward again with its graph and back-propagate the stored
gradients. Unlike gradient accumulation, which averages the losses of small batches, this is the gradient of the loss of
the whole batch: for mAP, which ranks all windows of the batch in one list, the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stepgrad.errors import InputError, StepgradError

Chunk = TypeVar("Chunk")
Score = Callable[[Chunk], Sequence[Tensor]]
Context = Callable[[], AbstractContextManager[Any]]


class ReplayError(StepgradError, RuntimeError):
    """A model gave other scores for the same chunk the second time."""


def large_batch(
    score: Score[Chunk],
    chunks: Sequence[Chunk],
    loss_fn: Callable[[list[Tensor]], Tensor],
    *,
    model: nn.Module | None = None,
    backward: Callable[[Tensor], object] | None = None,
    no_sync: Context | None = None,
    tolerance: float | None = None,
) -> Tensor:
    """Add the gradient of `loss_fn` over all chunks to the parameters' `.grad`; returns the loss, detached.

    Args:
        score: a function that scores a chunk and gives one tensor per image. It is called twice per chunk, first without a graph.
        chunks: what `score` takes, in order. A sequence that loads a chunk when it is indexed saves memory.
        loss_fn: the loss of all images' scores, called once. It may depend on parameters through the scores only.
        model: whose buffers (BatchNorm's running statistics) change once, not twice; None: `score`, if it is a module or
            a module's method.
        backward: is called instead of `Tensor.backward`, such as `fabric.backward` or
            `lambda t: scaler.scale(t).backward()`.
        no_sync: a context in which gradients are not exchanged between processes, entered for all chunks but the last;
            None: that of `model` if it is wrapped in DistributedDataParallel.
        tolerance: how far the scores of the second pass may be from those of the first, relative to the chunk's largest;
            None: the square root of the dtype's precision.

    Dropout draws the same numbers in both passes: the random state of the CPU and of the devices in use is kept per
    chunk. Random numbers from elsewhere (NumPy, your own generator) must be fixed by the caller. Layers that mix
    the images of a chunk (BatchNorm in training mode) still see a chunk, not the batch.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> windows = [torch.ones(3, 2), torch.zeros(1, 2), torch.ones(2, 2)]          # a chunk is one image here
    >>> loss = large_batch(lambda w: [layer(w)], windows, lambda scores: torch.cat(scores).sum())
    >>> layer.weight.grad.tolist()
    [[5.0, 5.0]]
    """
    model = model if model is not None else _module_of(score)
    if no_sync is None:
        no_sync = model.no_sync if isinstance(model, DistributedDataParallel) else nullcontext
    devices = _devices(model)
    first = _first_pass(score, chunks, model, no_sync, devices)
    loss, gradients = _loss_and_gradients(loss_fn, [scores for scores, _ in first])
    after = _random_state(devices)
    torch.clear_autocast_cache()  # weights cast without a graph would have none in the second pass either
    for i, ((scores, state), gradients_of_chunk) in enumerate(zip(first, gradients, strict=True)):
        _set_random_state(state)
        with no_sync() if i + 1 < len(chunks) else nullcontext():
            again = _scored(score, chunks[i], i)
            _check_replay(scores, again, i, tolerance)
            _pull(again, gradients_of_chunk, i, backward)
    _set_random_state(after)
    return loss


RandomState = list[tuple[torch.device, Tensor]]


def _first_pass(
    score: Score[Chunk], chunks: Sequence[Chunk], model: nn.Module | None, no_sync: Context, devices: list[torch.device]
) -> list[tuple[list[Tensor], RandomState]]:
    """Scores of every chunk without a graph, and the random state before each."""
    passes = []
    with _unchanged_buffers(model), torch.no_grad(), no_sync():
        for i in range(len(chunks)):
            state = _random_state(devices)
            passes.append(([s.detach() for s in _scored(score, chunks[i], i)], state))
    return passes


def _scored(score: Score[Chunk], chunk: Chunk, i: int) -> list[Tensor]:
    scores = score(chunk)
    if isinstance(scores, Tensor) or not all(isinstance(s, Tensor) for s in scores):
        kind = type(scores).__name__
        raise InputError(f"chunk {i}: expected `score` to give a list of tensors, one per image, but got {kind}.")
    return list(scores)


def _loss_and_gradients(
    loss_fn: Callable[[list[Tensor]], Tensor], chunks: list[list[Tensor]]
) -> tuple[Tensor, list[list[Tensor]]]:
    """The loss and its gradient in every score. Half-precision scores get float32 gradients: small ones stay alive."""
    leaves = [_leaf(s) for scores in chunks for s in scores]
    with torch.enable_grad():
        loss = loss_fn(leaves)
    if loss.numel() != 1:
        raise InputError(f"Expected `loss_fn` to give one number but got shape {tuple(loss.shape)}.")
    _refuse_other_parameters(loss, leaves)
    connected = bool(leaves) and loss.requires_grad
    given = torch.autograd.grad(loss, leaves, materialize_grads=True) if connected else map(torch.zeros_like, leaves)
    flat = iter(given)
    return loss.detach(), [[next(flat) for _ in scores] for scores in chunks]


def _leaf(scores: Tensor) -> Tensor:
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores.detach()
    return wide.requires_grad_()


def _refuse_other_parameters(loss: Tensor, leaves: list[Tensor]) -> None:
    """The second pass goes through the scores only, so whatever else the loss hangs on would get no gradient."""
    known = {id(s) for s in leaves}
    seen = set()
    waiting = [loss.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)  # of a leaf of the graph
        if variable is not None and variable.numel() and id(variable) not in known:
            raise InputError(
                f"Expected `loss_fn` to depend on parameters through the scores only but it also uses one of shape "
                f"{tuple(variable.shape)}; back-propagate that term by itself, without large_batch."
            )
        waiting.extend(following for following, _ in node.next_functions)


def _check_replay(first: list[Tensor], again: list[Tensor], chunk: int, tolerance: float | None) -> None:
    """Raise unless the second pass gave the scores whose gradients are about to be used."""
    if [s.shape for s in first] != [s.shape for s in again]:
        shapes = [[tuple(s.shape) for s in scores] for scores in (first, again)]
        raise ReplayError(f"chunk {chunk}: scored twice, it has shapes {shapes[0]}, then {shapes[1]}. {_WAY_OUT}")
    if not any(s.numel() for s in first):
        return
    before, after = (torch.cat([s.detach().flatten() for s in scores]) for scores in (first, again))
    allowed = tolerance if tolerance is not None else torch.finfo(before.dtype).eps ** 0.5
    difference, largest = torch.stack([(after - before).abs().max(), before.abs().max()]).tolist()
    if not difference <= allowed * largest:
        raise ReplayError(
            f"chunk {chunk}: scored twice, its scores differ by {difference:g} (largest score {largest:g}). {_WAY_OUT}"
        )


_WAY_OUT = (
    "The model draws random numbers from outside torch's generators, or keeps state between calls: fix its seed per "
    "chunk, pass the module that holds the state as `model`, or allow more with `tolerance`."
)


def _pull(
    scores: list[Tensor], gradients: list[Tensor], chunk: int, backward: Callable[[Tensor], object] | None
) -> None:
    """Back-propagate given gradients in the scores, as a product, so that anything that takes a loss can do it."""
    hanging = [(s, g) for s, g in zip(scores, gradients, strict=True) if s.requires_grad]
    if not hanging:
        if any(s.numel() for s in scores):
            raise InputError(
                f"chunk {chunk}: expected scores that depend on parameters but they do not require a gradient; "
                "are all parameters frozen, or is `score` under no_grad or inference_mode?"
            )
        return
    product = torch.stack([(s.to(g.dtype) * g).sum() for s, g in hanging]).sum()
    if backward is None:
        product.backward()
    else:
        backward(product)


def _module_of(score: Any) -> nn.Module | None:
    for candidate in (score, getattr(score, "__self__", None)):
        if isinstance(candidate, nn.Module):
            return candidate
    return None


@contextmanager
def _unchanged_buffers(model: nn.Module | None) -> Iterator[None]:
    """Put the buffers back as they were, so that the second pass starts where the first did."""
    buffers = [] if model is None else [b for b in model.buffers() if b is not None]
    saved = [b.detach().clone() for b in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, saved, strict=True):
                buffer.copy_(value)


def _devices(model: nn.Module | None) -> list[torch.device]:
    """Devices, other than the CPU, on which the model may draw random numbers."""
    if model is not None:
        in_use = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
        return sorted((d for d in in_use if d.type not in ("cpu", "meta")), key=str)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return [] if accelerator is None else [accelerator]


def _random_state(devices: list[torch.device]) -> RandomState:
    of_devices = [(d, _get_device_state(d)) for d in devices]
    return [(torch.device("cpu"), torch.get_rng_state()), *of_devices]


def _get_device_state(device: torch.device) -> Tensor:
    module: Any = torch.get_device_module(device)
    state: Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state


def _set_random_state(states: RandomState) -> None:
    for device, state in states:
        if device.type == "cpu":
            torch.set_rng_state(state)
            continue
        module: Any = torch.get_device_module(device)
        module.set_rng_state(state, *(() if device.type == "mps" else (device,)))
