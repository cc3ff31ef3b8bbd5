"""Truncated SVD of fc6 and fc7, for faster detection (Girshick 2015, Sec. 3.1)."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from stepgrad.detector.fast_rcnn import FastRCNN
from stepgrad.errors import ConfigError, NonFiniteError, whole_number


def compressed(model: FastRCNN, fc6: int | None = 1024, fc7: int | None = 256) -> FastRCNN:
    """A copy of a trained model that detects faster, in evaluation mode; the model itself stays as it is.

    Each layer W (outputs x inputs) becomes two, diag(S) V^T without biases and U with those of W, where U diag(S) V^T are
    the largest singular values of W and their vectors: rank * (inputs + outputs) products per window instead of
    inputs * outputs. No other matrix of that rank is closer to W.

    Args:
        model: a FastRCNN as trained.
        fc6: rank of fc6, the number of singular values to keep; None: unchanged. The default is Girshick's for VGG16.
        fc7: rank of fc7, likewise.

    >>> model = FastRCNN(6, "tiny", hidden=32, shortest_side=None)
    >>> faster = compressed(model, fc6=8, fc7=4)
    >>> sum(p.numel() for p in model.head.parameters()) > 2 * sum(p.numel() for p in faster.head.parameters())
    True
    """
    ranks = {name: rank for name, rank in (("fc6", fc6), ("fc7", fc7)) if rank is not None}
    layers = {name: _layer_to_cut(model, name, rank) for name, rank in ranks.items()}  # all are checked before any work
    # deepcopy takes what the memo holds for these layers, so that the large weights are not copied first
    memo = {id(layer): low_rank(layer, ranks[name]) for name, layer in layers.items()}
    return deepcopy(model, dict(memo)).eval()


def _layer_to_cut(model: FastRCNN, name: str, rank: int) -> nn.Linear:
    """The layer of the head, if the rank makes it smaller."""
    layer = model.head.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise ConfigError(
            f"{name}: expected an uncompressed layer but it is compressed already; compress the original."
        )
    whole_number(f"the rank of {name}", rank, least=1)
    whole = layer.in_features * layer.out_features
    largest = (whole - 1) // (layer.in_features + layer.out_features)
    if rank > largest:
        raise ConfigError(
            f"Expected the rank of {name} to be at most {largest} but got {rank}: above it, two layers of "
            f"{layer.in_features} x {rank} and {rank} x {layer.out_features} weights are no smaller than the one of "
            f"{layer.in_features} x {layer.out_features}."
        )
    return layer


@torch.no_grad()
def low_rank(layer: nn.Linear, rank: int) -> nn.Sequential:
    """Two layers instead of one, by its `rank` largest singular values."""
    weight = layer.weight
    down, up = (factor.to(weight) for factor in factors(weight.cpu(), rank))
    first = _linear(down, None)
    second = _linear(up, None if layer.bias is None else layer.bias.clone())
    return nn.Sequential(first, second)


def factors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(rank, inputs) and (outputs, rank) matrices whose product is the truncated SVD of `weight`, (outputs, inputs).

    U holds the eigenvectors of W W^T, and U^T W is diag(S) V^T. This takes a fraction of the time of an SVD of
    all of W. Squares lose digits of small singular values, so float64 is used; but U is orthonormal whatever they are, and
    nothing is divided by them. Where there are more outputs than inputs, the same goes for the transpose.
    """
    if not weight.isfinite().all():
        raise NonFiniteError("Expected finite weights to compress but some are NaN or infinite.")
    wide = weight.double()
    outputs, inputs = wide.shape
    if outputs > inputs:
        down, up = factors(wide.T, rank)
        return up.T, down.T
    vectors = torch.linalg.eigh(wide @ wide.T).eigenvectors[:, -rank:]  # by increasing eigenvalue
    return vectors.T @ wide, vectors


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight.contiguous())
    layer.bias = None if bias is None else nn.Parameter(bias)
    return layer
