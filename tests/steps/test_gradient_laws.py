"""What every pseudogradient obeys: signs, scaling, equivariance, independence of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepgrad as sg
from stepgrad.reference.matching import best_object
from stepgrad.reference.mean_ap import scene_of
from stepgrad.reference.steps import step_function
from tests.oracles.options import Options
from tests.scenes import Array, Batch, random_batch
from tests.steps.test_pseudogradient import library_gradient

Law = Callable[[Batch, Options, np.random.Generator], None]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    return random_batch(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        windows=draw(st.integers(0, 12)),
        images=draw(st.integers(1, 3)),
        K=draw(st.integers(1, 2)),
        objects=draw(st.integers(0, 8)),
        difficult=draw(st.sampled_from([0.0, 0.3])),
    )


OPTIONS = st.builds(
    Options,
    match_threshold=st.none(),
    absent_classes=st.none(),
    balance=st.just("none"),
    protocol=st.sampled_from(["voc07", "voc12"]),
    nms_threshold=st.sampled_from([None, 0.3, 0.5]),
    through_nms=st.sampled_from(["exact", "none"]),
    estimator=st.sampled_from(["mee", "sde", "radius"]),
    radius=st.sampled_from([0.3125, 2.0625]),  # never lands on another score: those are multiples of 1/8
    min_step=st.sampled_from([0.0, 0.25]),
)


def equal(a: list[Array], b: list[Array]) -> None:
    for left, right in zip(a, b, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-14)


def permuting_windows_permutes_the_gradient(batch: Batch, options: Options, rng: np.random.Generator) -> None:
    orders = [rng.permutation(len(s)) for s in batch.scores]
    shuffled = replace(
        batch,
        scores=[s[p] for s, p in zip(batch.scores, orders, strict=True)],
        boxes=[b[p] for b, p in zip(batch.boxes, orders, strict=True)],
    )
    before = library_gradient(batch, options)
    equal(library_gradient(shuffled, options), [g[p] for g, p in zip(before, orders, strict=True)])


def permuting_images_permutes_the_gradient(batch: Batch, options: Options, rng: np.random.Generator) -> None:
    order = rng.permutation(len(batch.scores)).tolist()
    parts = ([part[i] for i in order] for part in (batch.scores, batch.boxes, batch.targets))
    before = library_gradient(batch, options)
    equal(library_gradient(Batch(*parts), options), [before[i] for i in order])


def adding_a_constant_to_all_scores_changes_nothing(batch: Batch, options: Options, rng: np.random.Generator) -> None:
    shift = float(rng.integers(-64, 64)) / 4
    equal(
        library_gradient(batch.with_scores([s + shift for s in batch.scores]), options),
        library_gradient(batch, options),
    )


def doubling_scores_and_lengths_halves_the_gradient(batch: Batch, options: Options, rng: np.random.Generator) -> None:
    k = 2.0 ** int(rng.integers(-3, 4))
    stretched = options._replace(min_step=k * options.min_step, radius=k * options.radius)
    before = library_gradient(batch, options)
    equal(library_gradient(batch.with_scores([k * s for s in batch.scores]), stretched), [g / k for g in before])


def classes_do_not_see_each_other(batch: Batch, options: Options, rng: np.random.Generator) -> None:
    changed = [s.copy() for s in batch.scores]
    for s in changed:
        s[:, -1] = rng.normal(size=len(s))
    before, after = library_gradient(batch, options), library_gradient(batch.with_scores(changed), options)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a[:, :-1], b[:, :-1])


def windows_without_any_step_have_no_gradient(batch: Batch, options: Options, rng: np.random.Generator) -> None:
    gradient = library_gradient(batch, options)
    for i, b, c in batch.windows():
        scene = scene_of(batch, c, options, 0.5)
        f = step_function(scene, batch.column(c), i, b, fixed_kept=options.through_nms == "none")
        if not f.steps():
            assert gradient[i][b, c] == 0.0


def without_nms_misses_push_down_and_lone_hits_push_up(
    batch: Batch, options: Options, rng: np.random.Generator
) -> None:
    options = options._replace(nms_threshold=None)
    gradient = library_gradient(batch, options)
    for c in range(batch.K):
        for i, image in enumerate(scene_of(batch, c, options, 0.5).images):
            wants = [best_object(o, 0.5, True) for o in image.objects.overlaps]
            for b, o in enumerate(wants):
                if o is None:
                    assert gradient[i][b, c] <= 0.0
                elif image.objects.ignored[o]:
                    assert gradient[i][b, c] == 0.0
                elif wants.count(o) == 1:
                    assert gradient[i][b, c] >= 0.0


def a_balanced_gradient_sums_to_zero_over_each_class(batch: Batch, options: Options, rng: np.random.Generator) -> None:
    gradient = library_gradient(batch, options._replace(balance="class"))
    np.testing.assert_allclose(sum(g.sum(axis=0) for g in gradient), 0.0, atol=1e-12)


def balance_never_turns_a_sign_around(batch: Batch, options: Options, rng: np.random.Generator) -> None:
    raw, even = (library_gradient(batch, options._replace(balance=b)) for b in ("none", "class"))
    for r, e in zip(raw, even, strict=True):
        assert (r * e >= 0).all()
        assert (np.abs(e) <= np.abs(r) * (1 + 1e-12)).all()


def holding_nms_fixed_gives_suppressed_windows_nothing(
    batch: Batch, options: Options, rng: np.random.Generator
) -> None:
    gradient = library_gradient(batch, options._replace(through_nms="none", nms_threshold=0.3))
    scores, boxes, _ = batch.tensors()
    for g, s, b in zip(gradient, scores, boxes, strict=True):
        for c in range(batch.K):
            _, suppressor = sg.nms(b, s[:, c], 0.3)
            assert (g[suppressor.numpy() >= 0, c] == 0).all()


LAWS: list[Law] = [
    permuting_windows_permutes_the_gradient,
    permuting_images_permutes_the_gradient,
    adding_a_constant_to_all_scores_changes_nothing,
    doubling_scores_and_lengths_halves_the_gradient,
    classes_do_not_see_each_other,
    windows_without_any_step_have_no_gradient,
    without_nms_misses_push_down_and_lone_hits_push_up,
    a_balanced_gradient_sums_to_zero_over_each_class,
    balance_never_turns_a_sign_around,
    holding_nms_fixed_gives_suppressed_windows_nothing,
]
law_names = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)


@law_names
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(batch=batches(), options=OPTIONS, seed=st.integers(0, 999))
def test_gradient_law(law: Law, batch: Batch, options: Options, seed: int) -> None:
    law(batch, options, np.random.default_rng(seed))


@pytest.mark.nightly
@law_names
@settings(max_examples=5000, deadline=None, database=None)
@given(batch=batches(), options=OPTIONS, seed=st.integers(0, 999))
def test_gradient_law_many_times(law: Law, batch: Batch, options: Options, seed: int) -> None:
    law(batch, options, np.random.default_rng(seed))
