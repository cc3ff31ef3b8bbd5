"""Batches whose overlaps follow from no boxes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.scenes import Batch


def any_tables(rng: np.random.Generator, batch: Batch) -> Batch:
    """Overlaps and likeness that no boxes have: multiples of a tenth, so that thresholds are met exactly and ties are common."""
    tables = [
        rng.integers(0, 11, (len(s), len(t["labels"]))) / 10 for s, t in zip(batch.scores, batch.targets, strict=True)
    ]
    likeness = [np.maximum(table, table.T) for table in (rng.integers(0, 8, (len(s),) * 2) / 10 for s in batch.scores)]
    return replace(batch, overlaps=tables, likeness=likeness)
