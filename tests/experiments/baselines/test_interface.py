"""What every baseline owes its caller: the laws of a ranking loss, ordinary empties, and errors that name the culprit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from experiments.baselines import BASELINES, make_baseline
from stepgrad.errors import ConfigError, InputError, NonFiniteError
from tests.oracles import baselines as oracle
from tests.scenes import Batch, over_seeds, random_batch

every_baseline = pytest.mark.parametrize("name", BASELINES)
OPTIONS: dict[str, dict[str, Any]] = {  # wide enough for lists of a dozen scores with gaps around 1
    "song": {"eps": 10.0},
    "yue": {"margin": 10.0},
    "taylor": {},
    "ap_loss": {"delta": 2.0},
    "smooth_ap": {"tau": 1.0},
}


def loss_and_gradient(name: str, batch: Batch, **options: Any) -> tuple[float, list[np.ndarray]]:
    scores, boxes, targets = batch.tensors(requires_grad=True)
    loss = make_baseline(name, batch.K, **(OPTIONS[name] | options))(scores, boxes, targets)
    loss.backward()
    return loss.item(), [s.grad.numpy() for s in scores]


def scene(seed: int, **options: Any) -> Batch:
    settings = {"windows": 60, "images": 3, "K": 2, "objects": 18, "difficult": 0.2} | options
    rng = np.random.default_rng(seed)
    while True:
        batch = random_batch(rng, **settings)
        if sum(int((~t["difficult"]).sum()) for t in batch.targets) >= 6:  # so that there is something to rank
            return batch


def assert_same(one: tuple[float, list[np.ndarray]], other: tuple[float, list[np.ndarray]]) -> None:
    assert one[0] == pytest.approx(other[0], abs=1e-11)
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@every_baseline
@over_seeds(ci=3, nightly=50)
def test_order_of_windows_and_images_does_not_matter(name: str, seed: int) -> None:
    batch, rng = scene(seed), np.random.default_rng(seed)
    images = rng.permutation(3)
    orders = [rng.permutation(len(batch.scores[i])) for i in images]
    mixed = Batch(
        [batch.scores[i][o] for i, o in zip(images, orders, strict=True)],
        [batch.boxes[i][o] for i, o in zip(images, orders, strict=True)],
        [batch.targets[i] for i in images],
    )
    value, gradient = loss_and_gradient(name, batch)
    assert any(g.any() for g in gradient)
    assert_same(loss_and_gradient(name, mixed), (value, [gradient[i][o] for i, o in zip(images, orders, strict=True)]))


@every_baseline
@over_seeds(ci=3, nightly=50)
def test_shifting_the_scores_of_a_class_changes_nothing(name: str, seed: int) -> None:
    batch = scene(seed)
    shifted = batch.with_scores([s + np.array([7.0, -64.0]) for s in batch.scores])
    value, gradient = loss_and_gradient(name, batch)
    assert_same(loss_and_gradient(name, shifted), (value, gradient))
    np.testing.assert_allclose(np.concatenate(gradient).sum(axis=0), 0.0, atol=1e-12)


@every_baseline
@over_seeds(ci=3, nightly=50)
def test_windows_on_difficult_objects_might_as_well_be_away(name: str, seed: int) -> None:
    batch = scene(seed, K=1, difficult=0.5)
    for target in batch.targets:
        target["difficult"][:1] = True
    keep = []
    for windows, target in zip(batch.boxes, batch.targets, strict=True):
        labels = [oracle.label_of(w, target["boxes"], target["difficult"], 0.5, None) for w in windows]
        keep.append(np.array([label != oracle.LEFT_OUT for label in labels], dtype=bool))
    assert not all(k.all() for k in keep)
    fewer = replace(
        batch,
        scores=[s[k] for s, k in zip(batch.scores, keep, strict=True)],
        boxes=[b[k] for b, k in zip(batch.boxes, keep, strict=True)],
    )
    value, gradient = loss_and_gradient(name, batch)
    assert all((g[~k] == 0).all() for g, k in zip(gradient, keep, strict=True))
    assert_same(loss_and_gradient(name, fewer), (value, [g[k] for g, k in zip(gradient, keep, strict=True)]))


@every_baseline
@pytest.mark.parametrize("options", [{}, {"grey_zone": 0.3}, {"match_threshold": 0.7}], ids=str)
def test_loss_is_the_mean_over_classes_of_their_own_losses(name: str, options: dict[str, Any]) -> None:
    batch = scene(4, windows=90, K=3, objects=18)
    parts = []
    for c in range(3):
        targets = [{key: v[t["labels"] == c] for key, v in t.items()} for t in batch.targets]
        targets = [t | {"labels": np.zeros_like(t["labels"])} for t in targets]
        alone = Batch([s[:, c : c + 1] for s in batch.scores], batch.boxes, targets)
        parts.append(loss_and_gradient(name, alone, **options))
        assert parts[-1][0] > 0.0
    joined = [np.concatenate(columns, axis=1) / 3 for columns in zip(*(g for _, g in parts), strict=True)]
    assert_same(loss_and_gradient(name, batch, **options), (sum(v for v, _ in parts) / 3, joined))


@every_baseline
def test_absent_classes_are_skipped_or_count_as_zero(name: str) -> None:
    batch = scene(0, K=1)
    wide = Batch([np.repeat(s, 4, axis=1) for s in batch.scores], batch.boxes, batch.targets)
    value, gradient = loss_and_gradient(name, batch)
    padded = [np.pad(g, ((0, 0), (0, 3))) for g in gradient]
    assert_same(loss_and_gradient(name, wide), (value, padded))
    assert_same(loss_and_gradient(name, wide, absent_classes="zero"), (value / 4, [g / 4 for g in padded]))


@every_baseline
def test_metrics_count_the_windows_and_rank_them(name: str) -> None:
    batch = scene(3, K=1, difficult=0.5)
    loss_fn = make_baseline(name, 1)
    loss_fn(*batch.tensors())
    ranked: dict[str, list[float]] = {oracle.POSITIVE: [], oracle.NEGATIVE: [], oracle.LEFT_OUT: []}
    for image, window, c in batch.windows():
        target = batch.targets[image]
        label = oracle.label_of(batch.boxes[image][window], target["boxes"], target["difficult"], 0.5, None)
        ranked[label].append(batch.scores[image][window, c])
    positives, negatives = ranked[oracle.POSITIVE], ranked[oracle.NEGATIVE]
    assert loss_fn.metrics["positives"] == len(positives)
    assert loss_fn.metrics["negatives"] == len(negatives)
    assert loss_fn.metrics["left_out"] == len(ranked[oracle.LEFT_OUT]) > 0
    assert loss_fn.metrics["map"] == pytest.approx(oracle.average_precision(positives, negatives))


@every_baseline
def test_following_the_gradient_of_free_scores_raises_average_precision(name: str) -> None:
    batch = scene(5, windows=60, objects=15)
    scores, boxes, targets = batch.with_scores([s / 10 for s in batch.scores]).tensors(requires_grad=True)
    loss_fn = make_baseline(name, 2, **OPTIONS[name])
    loss_fn(scores, boxes, targets)
    before = loss_fn.metrics["map"]
    for _ in range(40):
        gradients = torch.autograd.grad(loss_fn(scores, boxes, targets), scores)
        scores = [(s - 0.1 * g.sign()).detach().requires_grad_() for s, g in zip(scores, gradients, strict=True)]
    assert before < 0.3
    assert loss_fn.metrics["map"] > 0.75  # 1 for all but "song", whose positive update leaves wrong pairs alone


def test_ap_loss_can_rank_all_classes_in_one_list() -> None:
    batch = scene(1)
    loss_fn = make_baseline("ap_loss", 2, lists="all", interpolated=False)
    scores, boxes, targets = batch.tensors(requires_grad=True)
    loss = loss_fn(scores, boxes, targets)
    loss.backward()
    lists: dict[str, list[tuple[float, float]]] = {oracle.POSITIVE: [], oracle.NEGATIVE: [], oracle.LEFT_OUT: []}
    for image, window, c in batch.windows():
        target = batch.targets[image]
        own = target["labels"] == c
        label = oracle.label_of(batch.boxes[image][window], target["boxes"][own], target["difficult"][own], 0.5, None)
        lists[label].append((float(scores[image][window, c].detach()), float(scores[image].grad[window, c])))
    positives, negatives = ([s for s, _ in lists[kind]] for kind in (oracle.POSITIVE, oracle.NEGATIVE))
    value, *expected = oracle.error_driven(positives, negatives, 1.0, False)
    assert loss.item() == pytest.approx(value)
    for kind, gradient in zip((oracle.POSITIVE, oracle.NEGATIVE), expected, strict=True):
        np.testing.assert_allclose([g for _, g in lists[kind]], gradient, atol=1e-14)


BOX, FAR = [0.0, 0.0, 8.0, 8.0], [50.0, 50.0, 58.0, 58.0]


def image(
    windows: list[list[float]], objects: list[list[float]], difficult: bool = False
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    target = {"boxes": torch.tensor(objects).reshape(-1, 4), "labels": torch.zeros(len(objects), dtype=torch.long)}
    target["difficult"] = torch.full((len(objects),), difficult)
    return torch.arange(2.0 * len(windows)).reshape(-1, 2), torch.tensor(windows).reshape(-1, 4), target


EMPTIES: dict[str, list[Any]] = {
    "no images": [],
    "an image without windows or objects": [image([], [])],
    "objects but no windows": [image([], [BOX])],
    "windows but no objects": [image([BOX, FAR], [])],
    "no window reaches an object": [image([BOX], [FAR])],
    "no negatives": [image([BOX], [BOX])],
    "only difficult objects": [image([BOX, FAR], [BOX], difficult=True)],
    "windows in one image, objects in the other": [image([BOX], []), image([], [BOX])],
}


@every_baseline
@pytest.mark.parametrize("case", EMPTIES.values(), ids=EMPTIES.keys())
@pytest.mark.parametrize("absent", ["zero", "skip"])
def test_empty_lists_have_zero_loss_on_the_graph(name: str, case: list[Any], absent: str) -> None:
    scores = [s.clone().requires_grad_() for s, _, _ in case]
    loss_fn = make_baseline(name, 2, absent_classes=absent)
    loss = loss_fn(scores, [b for _, b, _ in case], [t for _, _, t in case])
    assert loss.shape == ()
    assert loss.item() == 0.0
    loss.backward()
    assert all((s.grad == 0).all() for s in scores)
    assert 0.0 <= loss_fn.metrics["map"] <= 1.0


@every_baseline
def test_gradient_has_the_dtype_of_the_scores_and_follows_the_outer_one(name: str) -> None:
    batch = scene(2)
    _, gradient = loss_and_gradient(name, batch)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):  # multiples of 1/8: all exact
        scores, boxes, targets = batch.tensors(dtype, requires_grad=True)
        loss = make_baseline(name, 2, **OPTIONS[name])(scores, boxes, targets)
        assert loss.dtype == torch.float32
        (3.0 * loss).backward()
        for s, g in zip(scores, gradient, strict=True):
            assert s.grad.dtype == dtype
            np.testing.assert_allclose(s.grad.double().numpy(), 3.0 * g, atol=3.0 * tolerance)


@every_baseline
def test_loss_without_a_graph_has_the_same_value(name: str) -> None:
    batch = scene(2)
    value, _ = loss_and_gradient(name, batch)
    loss_fn = make_baseline(name, 2, **OPTIONS[name])
    assert loss_fn(*batch.tensors()).item() == value
    with torch.no_grad():
        assert loss_fn(*batch.tensors(requires_grad=True)).item() == value


@pytest.mark.parametrize("name", sorted(set(BASELINES) - {"yue"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("equal", [False, True])
def test_extreme_scores_give_a_finite_gradient(name: str, dtype: torch.dtype, equal: bool) -> None:
    batch = scene(2)
    largest = torch.finfo(dtype).max
    scores = [torch.full(s.shape, largest if equal else 0.0, dtype=dtype) for s in batch.scores]
    if not equal:
        scores = [torch.tensor(np.sign(s)).to(dtype) * largest for s in batch.scores]
    scores = [s.requires_grad_() for s in scores]
    loss = make_baseline(name, 2)(scores, *batch.tensors()[1:])
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(s.grad).all() for s in scores)


def test_a_hinge_too_large_for_its_dtype_is_refused() -> None:
    batch = scene(2)
    scores = [torch.tensor(np.sign(s)).float() * 3e38 for s in batch.scores]
    with pytest.raises(NonFiniteError, match="YueAPLoss"):
        make_baseline("yue", 2)(scores, *batch.tensors()[1:])


@every_baseline
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_not_finite_are_refused_with_image_and_index(name: str, bad: float) -> None:
    scores, boxes, targets = scene(0).tensors()
    scores[1][3, 1] = bad
    with pytest.raises(NonFiniteError, match=r"image 1.*\[3, 1\]"):
        make_baseline(name, 2)(scores, boxes, targets)


@every_baseline
def test_malformed_input_is_refused(name: str) -> None:
    scores, boxes, targets = scene(0).tensors()
    loss_fn = make_baseline(name, 2)
    with pytest.raises(InputError, match="image 0"):
        loss_fn([s[:, :1] for s in scores], boxes, targets)
    with pytest.raises(InputError, match="3, 2 and 3"):
        loss_fn(scores, boxes[:2], targets)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("song", {"eps": 0.0}),
        ("song", {"update": "positiv"}),
        ("yue", {"margin": -1.0}),
        ("taylor", {"sigma": float("nan")}),
        ("taylor", {"max_windows": 1}),
        ("ap_loss", {"delta": 0.0}),
        ("ap_loss", {"lists": "classes"}),
        ("smooth_ap", {"tau": float("inf")}),
        *((name, {"match_threshold": 0.0}) for name in BASELINES),
        *((name, {"grey_zone": 0.5}) for name in BASELINES),
        *((name, {"absent_classes": "drop"}) for name in BASELINES),
    ],
    ids=str,
)
def test_impossible_options_are_refused_by_name(name: str, option: dict[str, Any]) -> None:
    ((key, value),) = option.items()
    with pytest.raises(ConfigError, match=key) as caught:
        make_baseline(name, 2, **option)
    assert str(value) in str(caught.value)


def test_unknown_names_and_options_get_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'smooth_ap'"):
        make_baseline("smoothap", 2)
    with pytest.raises(ConfigError, match="Did you mean 'update'"):
        make_baseline("song", 2, updates="positive")
    with pytest.raises(ConfigError, match="FastRCNN"):
        make_baseline("nll", 2)
    with pytest.raises(ConfigError, match="num_classes"):
        make_baseline("song", 0)
