"""Scores, relevance, query ids and masks, checked at the door and turned into flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import InputError, NonFiniteError
from stepgrad.losses.ranking.lists import Lists, rank_lists
from stepgrad.plain_tensors import joined, refuse_unreadable

Values = Tensor | Sequence[Tensor]  # of all documents, or of each query's


class Documents(NamedTuple):
    """The documents that count, of all queries."""

    scores: NDArray[np.floating]  # (n,)
    relevance: NDArray[np.float64]
    query: NDArray[np.int64]  # numbered from 0
    ids: NDArray[np.int64]  # (Q,) the caller's query ids, or row numbers
    where: NDArray[np.int64] | None  # (n,) index into the flattened scores; None: all of them

    def lists(self) -> Lists:
        return rank_lists(self.scores, self.relevance, self.query, len(self.ids))


class Input(NamedTuple):
    """What a ranking loss was called with, as tensors."""

    scores: Tensor
    relevance: Tensor
    query: Tensor | None
    mask: Tensor | None
    queries: int | None = None  # how many there are, if they are numbered from 0: some may have no documents


def read_input(scores: Values, relevance: Values, query: Tensor | None = None, mask: Tensor | None = None) -> Input:
    """Lists of 1-d tensors, one per query, as one tensor with query numbers; tensors as they are."""
    if not isinstance(scores, (list, tuple)):
        return Input(scores, relevance, query, mask)  # type: ignore[arg-type]  # whatever is no tensor is refused later
    if not isinstance(relevance, (list, tuple)) or len(relevance) != len(scores):
        came = f"{len(relevance)}" if isinstance(relevance, (list, tuple)) else type(relevance).__name__
        raise InputError(f"Expected relevance as a list of {len(scores)} tensors, as the scores are, but got {came}.")
    if query is not None or mask is not None:
        raise InputError("Expected no query and no mask with lists: each entry is one query, of any length.")
    refuse_unreadable(*scores, *relevance)
    for i, (s, r) in enumerate(zip(scores, relevance, strict=True)):
        if not (isinstance(s, Tensor) and isinstance(r, Tensor)) or s.ndim != 1 or r.shape != s.shape:
            shapes = [tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in (s, r)]
            raise InputError(
                f"query {i}: expected scores and relevance of one shape (documents,) but got {shapes[0]} and {shapes[1]}."
            )
    if not scores:
        return Input(torch.zeros(0, requires_grad=True), torch.zeros(0), torch.zeros(0, dtype=torch.int64), None, 0)
    numbers = np.repeat(np.arange(len(scores)), [len(s) for s in scores])
    return Input(joined(scores), torch.cat(list(relevance)), torch.from_numpy(numbers), None, len(scores))


def read_documents(given: Input, signed: bool) -> Documents:
    """Flatten the input; `signed` allows negative relevance."""
    scores, relevance, query, mask, queries = given
    _check_shapes(scores, relevance, query, mask)
    flat = _plain(scores).reshape(-1)
    labels = relevance.detach().cpu().to(torch.float64).numpy().reshape(-1)
    where = None if mask is None else np.flatnonzero(mask.detach().cpu().numpy().reshape(-1))
    number, ids = _queries(scores, query, where, queries)
    if where is not None:
        flat, labels = flat[where], labels[where]
    _check_values(flat, labels, signed)
    return Documents(flat, labels, number, ids, where)


def _plain(scores: Tensor) -> NDArray[np.floating]:
    scores = scores.detach().cpu()
    return (scores if scores.dtype in (torch.float32, torch.float64) else scores.float()).numpy()


def _queries(
    scores: Tensor, query: Tensor | None, where: NDArray[np.int64] | None, queries: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every document's query, numbered from 0, and the ids by number."""
    if scores.ndim == 2:
        rows, columns = scores.shape
        number = np.repeat(np.arange(rows), columns)
        return number if where is None else number[where], np.arange(rows)
    if query is None:
        return np.zeros(len(scores) if where is None else len(where), dtype=np.int64), np.zeros(1, dtype=np.int64)
    ids = query.detach().cpu().to(torch.int64).numpy()
    if queries is not None:  # numbered already, and some may have no documents
        return ids, np.arange(queries)
    ids = ids if where is None else ids[where]
    if np.all(ids[1:] >= ids[:-1]):  # already in order, as in most files: no sort
        fresh = np.ones(len(ids), dtype=bool)
        fresh[1:] = ids[1:] != ids[:-1]
        return np.cumsum(fresh) - 1, ids[fresh]
    known, number = np.unique(ids, return_inverse=True)
    return number.reshape(-1), known


def _check_shapes(scores: Tensor, relevance: Tensor, query: Tensor | None, mask: Tensor | None) -> None:
    for name, given in (("scores", scores), ("relevance", relevance), ("query", query), ("mask", mask)):
        optional = name in ("query", "mask")
        if not isinstance(given, Tensor) and not (given is None and optional):
            raise InputError(f"Expected {name} to be a tensor but got {type(given).__name__}.")
    refuse_unreadable(scores, relevance, query, mask)
    if scores.ndim not in (1, 2) or not scores.dtype.is_floating_point:
        raise InputError(
            "Expected floating-point scores of shape (documents,) or (queries, documents) but got "
            f"{tuple(scores.shape)} of {scores.dtype}."
        )
    for name, given in (("relevance", relevance), ("query", query), ("mask", mask)):
        if given is not None and given.shape != scores.shape:
            raise InputError(
                f"Expected {name} in the shape {tuple(scores.shape)} of the scores but got {tuple(given.shape)}."
            )
    if query is not None and (scores.ndim == 2 or query.dtype.is_floating_point):
        raise InputError(
            f"Expected query to hold one integer per score of shape (documents,) but got {query.dtype} for scores of "
            f"shape {tuple(scores.shape)}; in a matrix every row is a query and mask= says which documents are real."
        )
    if relevance.is_complex() or (query is not None and query.is_complex()):
        raise InputError("Expected relevance and query to hold real numbers but got complex ones.")
    if mask is not None and mask.dtype != torch.bool:
        raise InputError(f"Expected mask to be of torch.bool, True for real documents, but got {mask.dtype}.")


def _check_values(scores: NDArray[np.floating], relevance: NDArray[np.float64], signed: bool) -> None:
    for name, values in (("scores", scores), ("relevance", relevance)):
        if not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            raise NonFiniteError(
                f"Expected finite {name} but document {at}, not counting masked ones, has {values[at]}; mask=False "
                "leaves a document out."
            )
    if not signed and len(relevance) and relevance.min() < 0.0:
        at = int(np.argmin(relevance))
        raise InputError(
            f"Expected relevance >= 0 but document {at}, not counting masked ones, has {relevance[at]:g}; mask=False "
            "leaves a document out."
        )
