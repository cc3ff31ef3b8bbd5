"""Equal scores: lower image first, then lower window; the same on every run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.reference.map_loss import batch_steps
from stepgrad.reference.mean_ap import shown_ap
from tests.oracles.options import Options
from tests.scenes import Batch, over_seeds, random_batch


def tied(kind: str, rng: np.random.Generator) -> Batch:
    batch = random_batch(rng, windows=int(rng.integers(2, 13)), images=int(rng.integers(1, 4)), K=2, objects=8)
    if kind == "all equal":
        return batch.with_scores([np.zeros_like(s) for s in batch.scores])
    if kind == "pairs":
        return batch.with_scores([np.floor(s) for s in batch.scores])
    halves = [torch.tensor(1000 + s / 4).half().double().numpy() for s in batch.scores]  # float16 is 0.5 apart there
    return batch.with_scores(halves)


@pytest.mark.parametrize("kind", ["all equal", "pairs", "after a float16 cast"])
@over_seeds(17, 170)
def test_ties_follow_the_documented_order_on_every_run(seed: int, kind: str) -> None:
    rng = np.random.default_rng([seed, 9])
    for _ in range(10):
        batch = tied(kind, rng)
        options = Options(str(rng.choice(["voc07", "voc12", "coco"])), [None, 0.3][rng.integers(2)], 0.5)
        first, second = (sg.mean_average_precision(*batch.tensors(), **options.call()) for _ in range(2))
        np.testing.assert_array_equal(first.ap, shown_ap(batch, options))
        np.testing.assert_array_equal(second.ap, first.ap)


@over_seeds(5, 100)
def test_steps_of_all_equal_scores_lie_at_that_score(seed: int) -> None:
    batch = tied("all equal", np.random.default_rng([seed, 10]))
    options = Options("voc12", 0.3)
    steps = sg.map_steps(*batch.tensors(), **options.call("through_nms"))
    for (i, b, c), expected in batch_steps(batch, options).items():
        assert float(steps.up_at[i][b, c]) == expected.up_at
        assert float(steps.down_at[i][b, c]) == expected.down_at
        assert float(steps.up_at[i][b, c]) in (0.0, np.inf)


def test_order_of_tied_images_decides() -> None:
    box = torch.tensor([[0.0, 0.0, 8.0, 8.0]])
    hit = {"boxes": box, "labels": torch.tensor([0])}
    miss = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    scores = [torch.ones(1, 1), torch.ones(1, 1)]
    options = {"protocol": "voc12", "nms_threshold": 0.3}
    assert float(sg.mean_average_precision(scores, [box, box], [hit, miss], **options).map) == 1.0
    assert float(sg.mean_average_precision(scores, [box, box], [miss, hit], **options).map) == 0.5
