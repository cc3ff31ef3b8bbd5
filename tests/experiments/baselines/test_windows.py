"""Labels of windows, and the average precision of their lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.baselines import windows as labelling
from experiments.baselines.base import average_precision
from experiments.baselines.windows import window_labels
from stepgrad.metric.batch import make_batch
from tests.oracles import baselines as oracle
from tests.scenes import over_seeds, small_batch

NAMES = {labelling.POSITIVE: "positive", labelling.NEGATIVE: "negative", labelling.LEFT_OUT: "left out"}


@over_seeds(ci=25, nightly=1000)
@pytest.mark.parametrize("grey_zone", [None, 0.25])
def test_labels_equal_those_of_one_window_at_a_time(seed: int, grey_zone: float | None) -> None:
    batch = small_batch(np.random.default_rng(seed), crowds=True)
    labels = window_labels(make_batch(*batch.tensors()), 0.5, grey_zone)
    offsets = np.cumsum([0] + [len(s) for s in batch.scores])
    for image, window, c in batch.windows():
        target, own = batch.targets[image], batch.boxes[image][window]
        chosen = target["labels"] == c
        none = np.zeros(len(chosen), dtype=bool)
        ignored = target.get("difficult", none) | target.get("iscrowd", none)
        expected = oracle.label_of(
            own[c] if own.ndim == 2 else own, target["boxes"][chosen], ignored[chosen], 0.5, grey_zone
        )
        assert NAMES[labels[offsets[image] + window, c]] == expected


def test_an_overlap_of_exactly_the_threshold_is_positive() -> None:
    scores, boxes = torch.zeros(1, 1), torch.tensor([[0.0, 0.0, 10.0, 5.0]])
    target = {"boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0]]), "labels": torch.tensor([0])}
    batch = make_batch([scores], [boxes], [target])
    assert window_labels(batch, 0.5).item() == labelling.POSITIVE
    assert window_labels(batch, 0.5 + 1e-12).item() == labelling.NEGATIVE
    assert window_labels(batch, 0.5 + 1e-12, grey_zone=0.5).item() == labelling.LEFT_OUT


@over_seeds(ci=20, nightly=500)
def test_average_precision_equals_walking_down_the_list(seed: int) -> None:
    rng = np.random.default_rng(seed)
    positives, negatives = (rng.integers(-4, 5, size=rng.integers(low, 9)).astype(float) for low in (1, 0))
    found = average_precision(torch.tensor(positives), torch.tensor(negatives))
    assert float(found) == pytest.approx(oracle.average_precision(positives, negatives), abs=1e-14)
