"""Queries with documents, features and graded relevance, read from svmlight files with query ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stepgrad.errors import DataError

FILES = {split: f"ltr/mslr-msn1-5k/msn1.fold1.{split}.5k.txt" for split in ("train", "test")}


@dataclass(frozen=True)
class Queries:
    """Padded: B queries of up to n documents with F features."""

    features: Tensor  # (B, n, F)
    relevance: Tensor  # (B, n)
    mask: Tensor  # (B, n) True: a document

    def __len__(self) -> int:
        return len(self.mask)

    def pick(self, rows: Tensor) -> Queries:
        """Some of the queries, without columns that are padding for all of them."""
        width = int(self.mask[rows].sum(1).max())
        return Queries(self.features[rows, :width], self.relevance[rows, :width], self.mask[rows, :width])


def read_split(folder: Path, split: str) -> Queries:
    """One split of the excerpt of MSLR-WEB30K."""
    file = folder / FILES[split]
    if not file.is_file():
        raise DataError(f"{file}: not found; set --data or STEPGRAD_DATA to the folder that holds {FILES[split]}")
    labels, queries, features = read_svmlight(file)
    _, first = np.unique(queries, return_index=True)
    return _padded(np.split(labels, np.sort(first)[1:]), np.split(features, np.sort(first)[1:]))


def read_svmlight(file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Relevance (n,), query ids (n,) and features (n, F); the documents of a query must be neighbours."""
    rows = [line.split("#")[0].split() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    labels = np.array([float(row[0]) for row in rows], dtype=np.float32)
    queries = np.array([int(row[1].removeprefix("qid:")) for row in rows])
    pairs = [[field.split(":") for field in row[2:]] for row in rows]
    features = np.zeros((len(rows), max(int(i) for row in pairs for i, _ in row)), dtype=np.float32)
    for out, row in zip(features, pairs, strict=True):
        out[[int(i) - 1 for i, _ in row]] = [float(value) for _, value in row]
    return labels, queries, features


def _padded(labels: list[np.ndarray], features: list[np.ndarray]) -> Queries:
    pad = torch.nn.utils.rnn.pad_sequence
    count = torch.tensor([len(part) for part in labels])
    mask = torch.arange(int(count.max())) < count[:, None]
    return Queries(
        pad([torch.from_numpy(part) for part in features], batch_first=True),
        pad([torch.from_numpy(part) for part in labels], batch_first=True),
        mask,
    )


def standardised(train: Queries, *others: Queries) -> list[Queries]:
    """Features squeezed by sign(x) log(1 + |x|), then scaled to mean 0 and variance 1 over the documents of `train`."""
    squeezed = [q.features.sign() * q.features.abs().log1p() for q in (train, *others)]
    documents = squeezed[0][train.mask]
    mean, spread = documents.mean(0), documents.std(0).clamp(min=1e-6)
    return [
        Queries(((f - mean) / spread).clamp(-5, 5) * q.mask[..., None], q.relevance, q.mask)
        for f, q in zip(squeezed, (train, *others), strict=True)
    ]
