"""large_batch: the gradient of the whole batch's loss from chunks, whatever the chunks and however random the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepgrad as sg
from stepgrad.errors import InputError
from stepgrad.losses.large_batch import ReplayError, _random_state, _set_random_state, large_batch
from tests.detector.training.windows import Windows, made_windows, small_model

IMAGES = 7


def chunked(windows: Windows, size: int) -> list[list[Tensor]]:
    return [windows.features[i : i + size] for i in range(0, len(windows.features), size)]


def score_with(model: nn.Module) -> Callable[[list[Tensor]], list[Tensor]]:
    """Image by image, so that dropout draws the same numbers for an image in whatever chunk it is."""
    return lambda chunk: [model(x) for x in chunk]


def map_loss(windows: Windows) -> Callable[[list[Tensor]], Tensor]:
    loss_fn = sg.MAPLoss(windows.num_classes, l4=1e-4)
    return lambda scores: loss_fn(scores, windows.boxes, windows.targets)


def train_whole(model: nn.Module, windows: Windows, steps: int) -> list[float]:
    """The reference: one graph over all images."""
    torch.manual_seed(5)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = map_loss(windows)(score_with(model)(windows.features))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_chunked(model: nn.Module, windows: Windows, steps: int, size: int, **options: Any) -> list[float]:
    torch.manual_seed(5)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = large_batch(score_with(model), chunked(windows, size), map_loss(windows), model=model, **options)
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_same_parameters(one: nn.Module, other: nn.Module, tolerance: float = 1e-6) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("size", [1, 3, IMAGES])
def test_any_chunks_train_like_the_whole_batch_with_dropout_on(size: int) -> None:
    windows = made_windows(IMAGES, dtype=torch.float64)  # rounding that grows over the steps is not what is tested
    whole = small_model(dropout=0.4).double()
    pieces, before = copy.deepcopy(whole), copy.deepcopy(whole)
    expected = train_whole(whole, windows, steps=20)
    assert train_chunked(pieces, windows, steps=20, size=size) == pytest.approx(expected, abs=1e-11)
    assert_same_parameters(pieces, whole, 1e-11)
    assert any(not torch.allclose(a, b) for a, b in zip(whole.parameters(), before.parameters(), strict=True))


@pytest.mark.parametrize("size", [1, 3, IMAGES])
def test_a_gradient_in_single_precision_is_the_sum_over_images_up_to_its_rounding(size: int) -> None:
    windows, model = made_windows(IMAGES), small_model(dropout=0.4)
    torch.manual_seed(5)
    scores = score_with(model)(windows.features)
    by_score = torch.autograd.grad(map_loss(windows)(scores), scores, retain_graph=True)
    parameters = list(model.parameters())
    by_image = [torch.autograd.grad(s, parameters, g) for s, g in zip(scores, by_score, strict=True)]
    torch.manual_seed(5)
    large_batch(score_with(model), chunked(windows, size), map_loss(windows), model=model)
    roundings = sum(len(s) for s in scores) * torch.finfo(torch.float32).eps  # one a window at most
    for parameter, terms in zip(parameters, zip(*by_image, strict=True), strict=True):
        exact = torch.stack(terms).double()
        assert parameter.grad is not None
        assert ((parameter.grad - exact.sum(0)).abs() <= roundings * exact.abs().sum(0)).all()
    assert any(p.grad is not None and p.grad.any() for p in parameters)


def test_randomness_goes_on_afterwards_as_after_one_pass() -> None:
    windows, model = made_windows(3), small_model(dropout=0.4)
    torch.manual_seed(0)
    score_with(model)(windows.features)
    expected = torch.rand(4)
    torch.manual_seed(0)
    large_batch(score_with(model), chunked(windows, 2), map_loss(windows))
    assert torch.equal(torch.rand(4), expected)


def test_gradients_are_added_to_those_already_there() -> None:
    windows, model = made_windows(3, dtype=torch.float64), small_model().double()
    large_batch(score_with(model), chunked(windows, 2), map_loss(windows))
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    large_batch(score_with(model), chunked(windows, 2), map_loss(windows))
    for p, g in zip(model.parameters(), once, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, 2 * g)


@pytest.mark.parametrize("how", ["module", "method", "model"])
def test_running_statistics_change_once_a_step(how: str) -> None:
    windows = made_windows(4)
    model = Scorer(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, windows.num_classes)))
    reference = copy.deepcopy(model)
    for x in windows.features:
        reference([x])
    score, options = {
        "module": (model, {}),
        "method": (model.forward, {}),
        "model": (lambda chunk: model(chunk), {"model": model}),
    }[how]
    large_batch(score, chunked(windows, 1), map_loss(windows), **options)
    norm, expected = model.layers[1], reference.layers[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert int(norm.num_batches_tracked) == 4
    torch.testing.assert_close(norm.running_mean, expected.running_mean, rtol=0, atol=0)


def test_layers_with_a_state_that_scores_depend_on_are_replayed() -> None:
    windows = made_windows(4)
    model = Scorer(nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, windows.num_classes))))
    large_batch(model, chunked(windows, 1), map_loss(windows), tolerance=0.0)


def test_scores_that_differ_the_second_time_are_refused() -> None:
    windows, model = made_windows(2), small_model()
    own = torch.Generator().manual_seed(0)

    def noisy(chunk: list[Tensor]) -> list[Tensor]:
        return [model(x + 0.1 * torch.rand(x.shape, generator=own)) for x in chunk]

    with pytest.raises(ReplayError, match=r"chunk 0: scored twice, its scores differ by .* fix its seed per chunk"):
        large_batch(noisy, chunked(windows, 1), map_loss(windows))
    large_batch(noisy, chunked(windows, 1), map_loss(windows), tolerance=10.0)


def test_another_number_of_windows_the_second_time_is_refused() -> None:
    windows, model = made_windows(1), small_model()
    sizes = iter([5, 6])

    def changing(chunk: list[Tensor]) -> list[Tensor]:
        return [model(torch.ones(next(sizes), 6))]

    with pytest.raises(ReplayError, match=r"chunk 0: scored twice, it has shapes \[\(5, 3\)\], then \[\(6, 3\)\]"):
        large_batch(changing, chunked(windows, 1), lambda scores: scores[0].sum())


def test_scores_that_are_not_numbers_the_second_time_are_refused() -> None:
    model, values = small_model(), iter([1.0, float("nan")])
    with pytest.raises(ReplayError, match="differ by nan"):
        large_batch(lambda _: [model(torch.ones(2, 6)) * next(values)], [0], lambda scores: scores[0].sum())


def test_a_loss_with_parameters_of_its_own_is_refused() -> None:
    windows, model = made_windows(2), small_model()
    weight = nn.Parameter(torch.ones(()))
    with pytest.raises(InputError, match="through the scores only"):
        large_batch(score_with(model), chunked(windows, 1), lambda scores: weight * torch.cat(scores).sum())
    with pytest.raises(InputError, match="through the scores only"):
        large_batch(
            score_with(model),
            chunked(windows, 1),
            lambda scores: torch.cat(scores).sum() + sum(p.square().sum() for p in model.parameters()),
        )


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda chunk: small_model()(chunk[0]), "a list of tensors, one per image, but got Tensor"),
        (lambda chunk: [x.numpy() for x in chunk], "a list of tensors, one per image, but got list"),
    ],
)
def test_scores_must_be_a_list_of_tensors(score: Any, message: str) -> None:
    windows = made_windows(2)
    with pytest.raises(InputError, match=message):
        large_batch(score, chunked(windows, 1), map_loss(windows))


def test_the_loss_must_be_one_number() -> None:
    with pytest.raises(InputError, match=r"one number but got shape \(4, 3\)"):
        large_batch(lambda x: [small_model()(x)], [torch.ones(4, 6)], lambda scores: scores[0])


def test_frozen_models_are_refused() -> None:
    windows, model = made_windows(2), small_model().requires_grad_(False)
    with pytest.raises(InputError, match=r"chunk 0: .*are all parameters frozen"):
        large_batch(score_with(model), chunked(windows, 1), map_loss(windows))


def test_images_without_windows_and_batches_without_chunks_are_ordinary() -> None:
    windows, model = made_windows(3), small_model()
    windows = windows.cut(1, 0)
    loss = large_batch(score_with(model), chunked(windows, 1), map_loss(windows))
    assert torch.isfinite(loss)
    assert all(p.grad is not None for p in model.parameters())
    none = Windows([], [], [])
    assert torch.isfinite(large_batch(score_with(model), [], map_loss(none)))


def test_only_the_last_chunk_is_synchronised() -> None:
    windows, model, entered = made_windows(3), small_model(), []

    class Silent:
        def __enter__(self) -> None:
            entered.append("in")

        def __exit__(self, *_: object) -> None:
            entered.append("out")

    pulled: list[list[str]] = []
    large_batch(
        score_with(model),
        chunked(windows, 1),
        map_loss(windows),
        no_sync=Silent,
        backward=lambda t: (pulled.append(list(entered)), t.backward()),
    )
    inside = [seen.count("in") > seen.count("out") for seen in pulled]
    assert inside == [True, True, False]


def test_a_gradient_scaler_scales_the_gradients() -> None:
    windows, model = made_windows(3), small_model()
    scaled = copy.deepcopy(model)
    large_batch(score_with(model), chunked(windows, 2), map_loss(windows))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    large_batch(
        score_with(scaled), chunked(windows, 2), map_loss(windows), backward=lambda t: scaler.scale(t).backward()
    )
    for p, q in zip(model.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(1024 * p.grad, q.grad)


def test_weights_cast_by_autocast_keep_their_gradients() -> None:
    windows, model = made_windows(3), small_model()
    whole = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        large_batch(score_with(model), chunked(windows, 1), map_loss(windows))
    with torch.autocast("cpu", torch.bfloat16):
        map_loss(windows)(score_with(whole)(windows.features)).backward()
    largest = max(float(q.grad.abs().max()) for q in whole.parameters() if q.grad is not None)
    for p, q in zip(model.parameters(), whole.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert p.grad.abs().sum() > 0
        torch.testing.assert_close(p.grad, q.grad, rtol=0.05, atol=0.05 * largest)  # pushes on the bias cancel


def test_half_precision_scores_get_gradients_too_small_for_half_precision() -> None:
    weight = nn.Parameter(torch.ones((), dtype=torch.float16))
    large_batch(
        lambda x: [x * weight],
        [torch.ones(1, 1, dtype=torch.float16)],
        lambda scores: 1e-9 * scores[0].sum(),
        backward=lambda t: (2.0**20 * t).backward(),  # as a gradient scaler does
    )
    assert weight.grad is not None
    assert float(weight.grad) == pytest.approx(1e-9 * 2**20, rel=1e-3)


class Scorer(nn.Module):
    """A model that takes a chunk."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, chunk: list[Tensor]) -> list[Tensor]:
        return [self.layers(x) for x in chunk]


@pytest.mark.parametrize("name", ["mps", "cuda:1"])
def test_random_states_of_other_devices_are_read_and_put_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's module has one device only and takes no name of it."""
    device = torch.device(name)
    calls: list[tuple[Any, ...]] = []

    class Module:
        def get_rng_state(self, *where: torch.device) -> torch.Tensor:
            calls.append(where)
            return torch.tensor([7], dtype=torch.uint8)

        def set_rng_state(self, state: torch.Tensor, *where: torch.device) -> None:
            calls.append((state.tolist(), *where))

    monkeypatch.setattr(torch, "get_device_module", lambda given: Module() if given == device else None)
    _set_random_state(_random_state([device]))
    where = () if name == "mps" else (device,)
    assert calls == [where, ([7], *where)]
