"""What AP must not notice: twelve laws, each on many random batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepgrad as sg
from tests.scenes import Array, Batch, Target, random_batch

Law = Callable[[Batch, np.random.Generator, dict], None]


@st.composite
def batches(draw: st.DrawFn, ties: bool = False) -> Batch:
    """Sizes are drawn, so that failures shrink; contents come from a seed."""
    return random_batch(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        windows=draw(st.integers(0, 14)),
        images=draw(st.integers(1, 3)),
        K=draw(st.integers(1, 3)),
        objects=draw(st.integers(0, 9)),
        ties=ties,
        difficult=draw(st.sampled_from([0.0, 0.3])),
    )


OPTIONS = st.fixed_dictionaries(
    {
        "protocol": st.sampled_from(["voc07", "voc12", "coco"]),
        "nms_threshold": st.sampled_from([None, 0.3, 0.5]),
        "match_threshold": st.sampled_from([0.5, 0.7]),
    }
)


def ap(batch: Batch, options: dict) -> list[float]:
    """AP of each class, 0 for an absent one."""
    return [float(v) for v in sg.mean_average_precision(*batch.tensors(), **options, absent_classes="zero").ap]


def on_boxes(batch: Batch, change: Callable[[Array], Array]) -> Batch:
    targets: list[Target] = [t | {"boxes": change(t["boxes"])} for t in batch.targets]
    return replace(batch, boxes=[change(b) for b in batch.boxes], targets=targets)


def permuting_the_windows_changes_nothing(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    orders = [rng.permutation(len(s)) for s in batch.scores]
    shuffled = replace(
        batch,
        scores=[s[p] for s, p in zip(batch.scores, orders, strict=True)],
        boxes=[b[p] for b, p in zip(batch.boxes, orders, strict=True)],
    )
    assert ap(shuffled, options) == ap(batch, options)


def permuting_the_images_changes_nothing(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    order = rng.permutation(len(batch.scores)).tolist()
    parts = ([part[i] for i in order] for part in (batch.scores, batch.boxes, batch.targets))
    assert ap(Batch(*parts), options) == ap(batch, options)


def an_increasing_map_of_the_scores_changes_nothing(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    for increasing in (np.exp, np.cbrt, lambda s: 3.0 * s - 7.0, lambda s: s**3 / 64):
        assert ap(batch.with_scores([increasing(s) for s in batch.scores]), options) == ap(batch, options)


def mirroring_the_images_changes_nothing(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    assert ap(on_boxes(batch, lambda b: b[..., [2, 1, 0, 3]] * [-1, 1, -1, 1] + [64, 0, 64, 0]), options) == ap(
        batch, options
    )


def transposing_the_images_changes_nothing(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    assert ap(on_boxes(batch, lambda b: b[..., [1, 0, 3, 2]]), options) == ap(batch, options)


def shifting_the_boxes_by_whole_pixels_changes_nothing(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    shift = np.tile(rng.integers(-50, 50, size=2), 2)
    assert ap(on_boxes(batch, lambda b: b + shift), options) == ap(batch, options)


def scaling_the_boxes_by_a_power_of_two_changes_nothing(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    scale = 2.0 ** int(rng.integers(-8, 9))
    assert ap(on_boxes(batch, lambda b: b * scale), options) == ap(batch, options)


def adding_a_class_leaves_the_others_alone(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    wider = batch.with_scores([np.concatenate([s, rng.normal(size=(len(s), 1))], axis=1) for s in batch.scores])
    assert ap(wider, options) == [*ap(batch, options), 0.0]


def adding_a_false_positive_below_all_changes_nothing(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    lowest = min((s.min() for s in batch.scores if s.size), default=0.0) - 1.0
    scores = [np.concatenate([s, np.full((1, s.shape[1]), lowest)]) for s in batch.scores]
    far = np.array([[900.0, 900.0, 910.0, 910.0]])
    more = replace(batch, scores=scores, boxes=[np.concatenate([b, far]) for b in batch.boxes])
    assert ap(more, options) == ap(batch, options)


def duplicating_the_whole_dataset_changes_nothing(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    twice = Batch(batch.scores * 2, batch.boxes * 2, batch.targets * 2)
    assert ap(twice, options) == ap(batch, options)


def renaming_the_classes_permutes_their_ap(batch: Batch, rng: np.random.Generator, options: dict) -> None:
    order = rng.permutation(batch.K)  # column j of the renamed batch is class order[j]
    new_name = np.argsort(order)
    targets: list[Target] = [t | {"labels": new_name[t["labels"]]} for t in batch.targets]
    renamed = replace(batch, scores=[s[:, order] for s in batch.scores], targets=targets)
    assert ap(renamed, options) == [ap(batch, options)[c] for c in order]


def adding_an_image_without_windows_or_objects_changes_nothing(
    batch: Batch, rng: np.random.Generator, options: dict
) -> None:
    nothing: Target = {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, dtype=np.int64)}
    more = Batch([np.zeros((0, batch.K)), *batch.scores], [np.zeros((0, 4)), *batch.boxes], [nothing, *batch.targets])
    assert ap(more, options) == ap(batch, options)


LAWS: list[Law] = [
    permuting_the_windows_changes_nothing,
    permuting_the_images_changes_nothing,
    an_increasing_map_of_the_scores_changes_nothing,
    mirroring_the_images_changes_nothing,
    transposing_the_images_changes_nothing,
    shifting_the_boxes_by_whole_pixels_changes_nothing,
    scaling_the_boxes_by_a_power_of_two_changes_nothing,
    adding_a_class_leaves_the_others_alone,
    adding_a_false_positive_below_all_changes_nothing,
    duplicating_the_whole_dataset_changes_nothing,
    renaming_the_classes_permutes_their_ap,
    adding_an_image_without_windows_or_objects_changes_nothing,
]
law_names = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)


@law_names
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(batch=batches(), seed=st.integers(0, 999), options=OPTIONS)
def test_invariance(law: Law, batch: Batch, seed: int, options: dict) -> None:
    law(batch, np.random.default_rng(seed), options)


@pytest.mark.nightly
@law_names
@settings(max_examples=5000, deadline=None, database=None)
@given(batch=batches(), seed=st.integers(0, 999), options=OPTIONS)
def test_invariance_many_times(law: Law, batch: Batch, seed: int, options: dict) -> None:
    law(batch, np.random.default_rng(seed), options)
