"""dmAP/dscores against the definitions: every estimator, every way through NMS, both balances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.metric.protocol import PROTOCOLS
from stepgrad.reference.class_ap import class_ap
from stepgrad.reference.map_loss import balanced, batch_gradient
from stepgrad.reference.mean_ap import batch_map, scene_of
from tests.oracles.options import Options
from tests.scenes import Array, Batch, over_seeds, random_batch, small_batch


def library_gradient(batch: Batch, options: Options) -> list[Array]:
    return [g.numpy() for g in sg.map_pseudogradient(*batch.tensors(), **options.for_gradient())]


def assert_close(ours: Sequence[Array], expected: Sequence[Array]) -> None:
    """Equal up to rounding of the divisions; where the definition is silent (nan), finite."""
    for g, e in zip(ours, expected, strict=True):
        assert g.shape == e.shape
        assert np.isfinite(g).all()
        silent = np.isnan(e)
        np.testing.assert_allclose(g[~silent], e[~silent], rtol=1e-12, atol=1e-12)


def assert_same_gradient(batch: Batch, options: Options) -> None:
    assert_close(library_gradient(batch, options), batch_gradient(batch, options))


@pytest.mark.parametrize("min_step", [0.0, 0.5])
@pytest.mark.parametrize("through_nms", ["exact", "none"])
@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
@over_seeds(4, 80)
def test_pseudogradient_is_its_definition(seed: int, estimator: str, through_nms: str, min_step: float) -> None:
    rng = np.random.default_rng([seed, 40])
    for protocol in ("voc07", "voc12", "coco"):
        for nms_threshold in (None, 0.3, 0.5):
            options = Options(protocol, nms_threshold, 0.5, through_nms, estimator, 1.0, min_step)
            assert_same_gradient(small_batch(rng, crowds=protocol == "coco"), options)


@pytest.mark.parametrize("rho", [0.125, 0.3, 1.0, 100.0])
@over_seeds(5, 100)
def test_radius_estimator_is_a_central_difference_of_the_whole_metric(seed: int, rho: float) -> None:
    rng = np.random.default_rng([seed, 41])
    for _ in range(4):
        options = Options("voc12", [None, 0.3][rng.integers(2)], 0.5, estimator="radius", radius=rho)
        assert_same_gradient(small_batch(rng), options)


@pytest.mark.parametrize("min_step", [0.0, 0.5])
@pytest.mark.parametrize("estimator", ["mee", "sde"])
@pytest.mark.parametrize("protocol", ["voc07", "voc12"])
@over_seeds(5, 100)
def test_paper_mode_is_its_text(seed: int, protocol: str, estimator: str, min_step: float) -> None:
    rng = np.random.default_rng([seed, 42])
    for nms_threshold in (None, 0.3, 0.3, 0.5):
        options = Options(protocol, nms_threshold, 0.5, "paper", estimator, min_step=min_step)
        assert_same_gradient(small_batch(rng), options)


@over_seeds(15, 300)
def test_to_the_paper_an_object_found_only_beyond_the_limit_of_detections_is_missed(seed: int) -> None:
    rng = np.random.default_rng([seed, 46])
    for limit in (1, 2):
        protocol = replace(PROTOCOLS[str(rng.choice(["voc07", "voc12"]))], max_detections=limit)
        batch = random_batch(rng, windows=12, objects=5)
        assert_same_gradient(batch, Options(protocol, 0.3, 0.5, "paper", "mee", min_step=0.1))


@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
@over_seeds(3, 50)
def test_gradient_of_iou_averaged_ap_is_the_mean_over_thresholds(seed: int, estimator: str) -> None:
    rng = np.random.default_rng([seed, 43])
    for nms_threshold in (None, 0.5):
        options = Options("coco", nms_threshold, None, estimator=estimator, min_step=0.25)
        assert_same_gradient(small_batch(rng, crowds=True), options)


@pytest.mark.parametrize("absent", ["zero", "skip"])
@over_seeds(5, 100)
def test_absent_classes_count_in_the_mean_or_not(seed: int, absent: str) -> None:
    batch = random_batch(np.random.default_rng([seed, 44]), windows=8, images=2, K=4, objects=3, difficult=0.2)
    assert_same_gradient(batch, Options(absent_classes=absent, min_step=0.1))


@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
@over_seeds(5, 100)
def test_balance_scales_both_signs_of_a_class_to_the_smaller_total(seed: int, estimator: str) -> None:
    batch = random_batch(np.random.default_rng([seed, 45]), windows=40, images=3, K=3, objects=12)
    options = Options(estimator=estimator, min_step=0.1)
    raw = library_gradient(batch, options)
    even = library_gradient(batch, options._replace(balance="class"))
    assert_close(even, balanced(raw))
    for c in range(batch.K):
        column = np.concatenate([g[:, c] for g in even])
        assert column.sum() == pytest.approx(0.0, abs=1e-12)
        before = np.concatenate([g[:, c] for g in raw])
        smaller = min(before[before > 0].sum(), -before[before < 0].sum())
        assert column[column > 0].sum() == pytest.approx(smaller, abs=1e-12)


def test_balance_of_one_sign_only_is_zero() -> None:
    rng, found = np.random.default_rng(49), 0
    while found < 3:
        batch = random_batch(rng, windows=4, images=1, objects=3, ties=True)
        raw = library_gradient(batch, Options(min_step=0.1))[0]
        if (raw >= 0).all() != (raw <= 0).all():  # something, all of one sign
            assert (library_gradient(batch, Options(min_step=0.1, balance="class"))[0] == 0).all()
            found += 1


def test_default_of_the_raw_pseudogradient_is_unbalanced() -> None:
    batch = random_batch(np.random.default_rng(46), windows=40, images=3, K=3, objects=12)
    options = {"protocol": "voc12", "nms_threshold": 0.3}
    default = sg.map_pseudogradient(*batch.tensors(), **options)
    explicit = sg.map_pseudogradient(*batch.tensors(), balance="none", **options)
    assert all(torch.equal(a, b) for a, b in zip(default, explicit, strict=True))


@over_seeds(10, 200)
def test_sde_points_to_where_the_metric_really_is(seed: int) -> None:
    """Moving one score just past its nearest step changes mAP by exactly what the steps say."""
    batch = random_batch(np.random.default_rng([seed, 47]), windows=10, images=2, objects=6)
    options = Options("voc12", 0.3)
    steps = sg.map_steps(*batch.tensors(), **options.call())
    scene, scores = scene_of(batch, 0, options, 0.5), batch.column(0)
    for i, b, _ in batch.windows():
        for at, value in ((steps.up_at, steps.up_value), (steps.down_at, steps.down_value)):
            y = float(at[i][b, 0])
            if not np.isfinite(y):
                continue
            moved = [list(s) for s in scores]
            moved[i][b] = y + (1 / 32 if y >= scores[i][b] else -1 / 32)  # scores are multiples of 1/8
            assert class_ap(scene, moved).rounded == float(value[i][b, 0])


def test_gradient_is_divided_by_the_number_of_classes() -> None:
    batch = random_batch(np.random.default_rng(48), windows=20, images=2, objects=8)
    wide = batch.with_scores([np.concatenate([s, s], axis=1) for s in batch.scores])
    options = Options()
    for one, two in zip(library_gradient(batch, options), library_gradient(wide, options), strict=True):
        np.testing.assert_array_equal(two[:, 0], one[:, 0] / 2)
        assert (two[:, 1] == 0).all()
    assert batch_map(wide, options) == batch_map(batch, options) / 2


def test_an_unknown_balance_is_refused() -> None:
    with pytest.raises(ConfigError, match="balance"):
        sg.map_pseudogradient(*random_batch(np.random.default_rng(0)).tensors(), balance="classes")
