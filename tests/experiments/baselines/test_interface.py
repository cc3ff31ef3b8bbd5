"""What every baseline owes its caller: the laws of a ranking loss, ordinary empties, and errors that name the culprit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from experiments.baselines import BASELINES, make_baseline
from stepgrad.errors import ConfigError
from tests.scenes import Batch, over_seeds, random_batch

every_baseline = pytest.mark.parametrize("name", BASELINES)
OPTIONS: dict[str, dict[str, Any]] = {  # wide enough for lists of a dozen scores with gaps around 1
    "song": {"eps": 10.0},
    "yue": {"margin": 10.0},
    "taylor": {},
    "ap_loss": {"delta": 2.0},
    "smooth_ap": {"tau": 1.0},
}
Found = tuple[float, list[np.ndarray]]


def loss_and_gradient(name: str, batch: Batch, **options: Any) -> Found:
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


def assert_same(one: Found, other: Found) -> None:
    assert one[0] == pytest.approx(other[0], abs=1e-11)
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@every_baseline
@over_seeds(ci=3, nightly=50)
def test_order_of_windows_and_images_does_not_matter(name: str, seed: int) -> None:
    batch, rng = scene(seed), np.random.default_rng(seed)
    places = [(i, rng.permutation(len(batch.scores[i]))) for i in rng.permutation(3)]
    mixed = Batch(
        [batch.scores[i][o] for i, o in places],
        [batch.boxes[i][o] for i, o in places],
        [batch.targets[i] for i, _ in places],
    )
    value, gradient = loss_and_gradient(name, batch)
    assert any(g.any() for g in gradient)
    assert_same(loss_and_gradient(name, mixed), (value, [gradient[i][o] for i, o in places]))


@every_baseline
@over_seeds(ci=3, nightly=50)
def test_shifting_the_scores_of_a_class_changes_nothing(name: str, seed: int) -> None:
    batch = scene(seed)
    shifted = batch.with_scores([s + np.array([7.0, -64.0]) for s in batch.scores])
    value, gradient = loss_and_gradient(name, batch)
    assert_same(loss_and_gradient(name, shifted), (value, gradient))
    np.testing.assert_allclose(np.concatenate(gradient).sum(axis=0), 0.0, atol=1e-12)


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


BOX, FAR = [0.0, 0.0, 8.0, 8.0], [50.0, 50.0, 58.0, 58.0]


def image(windows: list[list[float]], objects: list[list[float]], difficult: bool = False) -> tuple[Any, ...]:
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
    loss.backward()
    assert loss.item() == 0.0
    assert all((s.grad == 0).all() for s in scores)
    assert 0.0 <= loss_fn.metrics["map"] <= 1.0


@every_baseline
def test_gradient_has_the_dtype_of_the_scores_and_follows_the_outer_one(name: str) -> None:
    batch = scene(2)
    value, gradient = loss_and_gradient(name, batch)
    loss_fn = make_baseline(name, 2, **OPTIONS[name])
    assert loss_fn(*batch.tensors()).item() == value  # without a graph
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):  # multiples of 1/8: all exact
        scores, boxes, targets = batch.tensors(dtype, requires_grad=True)
        loss = loss_fn(scores, boxes, targets)
        assert loss.dtype == torch.float32
        (3.0 * loss).backward()
        for s, g in zip(scores, gradient, strict=True):
            assert s.grad.dtype == dtype
            np.testing.assert_allclose(s.grad.double().numpy(), 3.0 * g, atol=3.0 * tolerance)


def test_unknown_names_and_options_get_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'smooth_ap'"):
        make_baseline("smoothap", 2)
    with pytest.raises(ConfigError, match="Did you mean 'update'"):
        make_baseline("song", 2, updates="positive")
    for name, option in (("song", {"eps": 0.0}), ("ap_loss", {"lists": "classes"}), ("yue", {"grey_zone": 0.5})):
        with pytest.raises(ConfigError, match=f"{next(iter(option))}.*{next(iter(option.values()))}"):
            make_baseline(name, 2, **option)
