"""What holds for every batch: bounds, perfection, monotonicity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import stepgrad as sg
from stepgrad.metric.protocol import VOC12
from stepgrad.reference.average_precision import interpolated
from stepgrad.reference.class_ap import judged_detections, kept_windows, ranks_of_true_positives
from stepgrad.reference.matching import TRUE
from stepgrad.reference.mean_ap import scene_of
from tests.metric.test_invariances import OPTIONS, ap, batches
from tests.oracles.options import Options
from tests.scenes import Batch, over_seeds, random_batch

often = settings(max_examples=200, deadline=None, derandomize=True, database=None)


@often
@given(batch=batches(ties=True), options=OPTIONS)
def test_ap_lies_between_zero_and_one(batch: Batch, options: dict) -> None:
    assert all(0.0 <= v <= 1.0 for v in ap(batch, options))


@often
@given(batch=batches(ties=True), options=OPTIONS)
def test_area_ap_is_one_exactly_when_every_object_precedes_every_false_positive(batch: Batch, options: dict) -> None:
    options = options | {"protocol": "voc12"}
    values = ap(batch, options)
    for c in range(batch.K):
        scene = scene_of(batch, c, Options(**options), options["match_threshold"])
        scores = batch.column(c)
        judged = judged_detections(scene, scores, kept_windows(scene, scores))
        ranks = ranks_of_true_positives([v for _, _, v in judged])
        perfect = scene.P > 0 and ranks == tuple(range(1, scene.P + 1))
        assert (values[c] == 1.0) == perfect


@over_seeds(20, 300)
def test_dropping_any_object_that_was_missed_never_lowers_ap(seed: int) -> None:
    batch = random_batch(np.random.default_rng([seed, 6]), windows=10, objects=8)
    missed = np.array([[900.0, 900.0, 910.0, 910.0]])
    (target,) = batch.targets
    more = {"boxes": np.concatenate([target["boxes"], missed]), "labels": np.append(target["labels"], 0)}
    options = {"protocol": "voc12", "nms_threshold": 0.3}
    assert ap(replace(batch, targets=[more]), options)[0] <= ap(batch, options)[0]


@over_seeds(20, 300)
def test_oracle_matches_never_outnumber_objects_and_the_envelope_never_rises(seed: int) -> None:
    batch = random_batch(np.random.default_rng([seed, 7]), windows=30, images=2, objects=8, ties=True, difficult=0.2)
    scene = scene_of(batch, 0, Options(), 0.5)
    judged = judged_detections(scene, batch.column(0), kept_windows(scene, batch.column(0)))
    ranks = ranks_of_true_positives([v for _, _, v in judged])
    assert sum(v == TRUE for _, _, v in judged) == len(ranks) <= scene.P
    envelope = interpolated(ranks)
    assert envelope == sorted(envelope, reverse=True)


@over_seeds(20, 300)
def test_recall_never_exceeds_one_so_repeating_every_window_never_raises_ap(seed: int) -> None:
    batch = random_batch(np.random.default_rng([seed, 8]), windows=12, images=2, objects=8)
    options = {"protocol": "voc12", "nms_threshold": None}
    repeated = replace(
        batch,
        scores=[np.repeat(s, 2, axis=0) for s in batch.scores],
        boxes=[np.repeat(b, 2, axis=0) for b in batch.boxes],
    )
    assert ap(repeated, options)[0] <= ap(batch, options)[0]


@pytest.mark.parametrize("duplicates", ["best", "best_free"])
def test_one_object_gives_one_true_positive_however_often_it_is_detected(duplicates: str) -> None:
    protocol = replace(VOC12, name="d", duplicates=duplicates)  # type: ignore[arg-type]
    box = torch.tensor([[0.0, 0.0, 8.0, 8.0]])
    targets = [{"boxes": torch.cat([box, box + 100]), "labels": torch.tensor([0, 0])}]
    scores, boxes = torch.arange(5.0).reshape(5, 1), torch.cat([box] * 4 + [box + 100])
    # the far object comes first; the near one is found at rank 2, its three repetitions after that
    result = sg.mean_average_precision([scores], [boxes], targets, protocol=protocol, nms_threshold=None)
    assert float(result.map) == 1.0
    scores = scores.flip(0)  # now four detections of the near object come first: the far one has rank 5
    result = sg.mean_average_precision([scores], [boxes], targets, protocol=protocol, nms_threshold=None)
    assert float(result.map) == (1 + 2 / 5) / 2
