"""The detector as a whole: losses in training, detections in evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stepgrad.detector import FastRCNN, Features, Sampling
from stepgrad.errors import ConfigError, InputError, NonFiniteError
from stepgrad.losses.detection import MAPLoss
from tests.detector.scenes import K, batch, random_image, random_target, random_windows, tiny
from tests.double_precision import double_precision
from tests.oracles.detector import detections as slow_detections

ALL = Sampling(windows=None, ground_truth=False)


def same(found: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(found[key], other[key]) for key in ("boxes", "labels", "scores"))


# ---- detections


@pytest.mark.parametrize("score", ["raw", "logprob"])
@pytest.mark.parametrize(("threshold", "candidates"), [(0.3, 100), (0.3, 12), (0.6, None), (None, 20)])
def test_detections_equal_slow_nms_of_every_class(score: str, threshold: float | None, candidates: int | None) -> None:
    options: dict[str, Any] = {"score": score, "loss": "map", "nms_threshold": threshold, "candidates": candidates}
    model = tiny(**options).eval()
    images, proposals, _ = batch(2, windows=80)
    with torch.no_grad():
        scores = model.score_windows(images, proposals)
    for found, s, windows in zip(model(images, proposals), scores, proposals, strict=True):
        expected = slow_detections(s.tolist(), windows, threshold, candidates)
        assert torch.equal(found["boxes"], windows[[b for _, _, b in expected]])
        assert found["labels"].tolist() == [label for _, label, _ in expected]
        values = torch.tensor([value for value, _, _ in expected], dtype=s.dtype)
        assert torch.equal(found["scores"], values.exp() if score == "logprob" else values)
        assert len(expected) > K  # more than one window a class, or nothing was tested


def test_log_probabilities_come_with_a_background_column() -> None:
    images, proposals, _ = batch(1)
    model = tiny(score="logprob").eval()
    assert model.head.scores.out_features == K + 1
    (scores,) = model.score_windows(images, proposals)
    assert scores.shape == (30, K)
    assert (scores.exp().sum(dim=1) < 1).all()  # the rest is background's
    raw = tiny(score="raw", loss="map").eval()
    assert raw.head.scores.out_features == K
    assert raw.score_windows(images, proposals)[0].shape == (30, K)


def test_certain_windows_do_not_tie() -> None:
    """In float32 every probability above 1 - 6e-8 is 1."""
    model = tiny()
    activations = torch.tensor([[20.0, 0.0, 0.0, 0.0], [20.0, 1.0, 0.0, 0.0], [25.0, 0.0, 0.0, 0.0]])
    first, second, third = model._ranking(activations)[:, 0].exp().tolist()
    assert second < first < third < 1


def test_an_image_does_not_see_the_others_of_its_batch() -> None:
    images, proposals, _ = batch(4)
    images[2], proposals[2] = random_image(2, width=120), torch.zeros(0, 4)
    pairs = [([image], [windows]) for image, windows in zip(images, proposals, strict=True)]
    with double_precision():  # in training, batches add up in another order
        model = tiny()
        for a, pair in zip(model.score_windows(images, proposals), pairs, strict=True):
            torch.testing.assert_close(a, model.score_windows(*pair)[0], rtol=0, atol=1e-10)
    model = tiny().eval()
    for found, ([image], windows) in zip(model(images, proposals), pairs, strict=True):
        assert same(found, model([image], windows)[0])
        assert same(found, model([image / 255], windows)[0])  # floats are the same as bytes


def test_features_stand_for_their_image_bit_for_bit() -> None:
    images, proposals, targets = batch(3)
    images[1] = random_image(1, width=200, height=90)
    proposals[0][0] = torch.tensor([-20.0, 5.0, 300.0, 60.0])  # beyond the edges
    model = tiny(freeze="trunk", shortest_side=100, sampling=ALL)
    with torch.no_grad():
        features = [model.extract([image])[0] for image in images]
    of_images = model(images, proposals, targets)["loss_nll"]
    of_features = model(features, proposals, targets)["loss_nll"]
    assert torch.equal(of_images, of_features)
    model.eval()
    for found, other in zip(model(images, proposals), model(features, proposals), strict=True):
        assert same(found, other)
    mixed = model([images[0], features[1], images[2]], proposals)
    assert all(same(a, b) for a, b in zip(mixed, model(images, proposals), strict=True))


def test_nothing_to_detect_is_ordinary() -> None:
    model = tiny().eval()
    assert model([], []) == []
    (found,) = model([random_image()], [torch.zeros(0, 4)])
    assert found["boxes"].shape == (0, 4)
    assert found["labels"].dtype == torch.int64
    assert len(found["scores"]) == 0


# ---- training


def test_a_few_steps_reduce_the_cross_entropy() -> None:
    model = tiny(sampling=Sampling(None))
    images, proposals, targets = batch(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history = []
    for _ in range(8):
        (value,) = model(images, proposals, targets).values()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        history.append(value.item())
    assert min(history[4:]) < history[0]


def test_the_map_gradient_reaches_the_head_through_the_chain_rule() -> None:
    """d loss / d bias of a class is the sum of the loss's gradient in that class's scores."""
    images, proposals, targets = batch(2)
    with double_precision():
        model = tiny(score="raw", loss="map", sampling=ALL)
        model.train_for("map", map_loss=MAPLoss(K, balance="none"), sampling=ALL)
        model(images, proposals, targets)["loss_map"].backward()
        scores = [s.detach().requires_grad_() for s in model.score_windows(images, proposals)]
    MAPLoss(K, balance="none")(scores, proposals, targets).backward()
    by_class = torch.stack([s.grad.sum(dim=0) for s in scores if s.grad is not None]).sum(dim=0)
    assert by_class.abs().max() > 0
    torch.testing.assert_close(model.head.scores.bias.grad, by_class, rtol=1e-10, atol=1e-12)
    assert model.trunk[0].weight.grad.abs().max() > 0  # type: ignore[index, union-attr]


def test_losses_sum_to_the_objective() -> None:
    images, proposals, targets = batch(2)
    model = tiny(loss="map", nll_weight=0.25, sampling=ALL)
    mixed = model(images, proposals, targets)
    assert list(mixed) == ["loss_map", "loss_nll"]
    assert {value.dtype for value in mixed.values()} == {torch.float32}
    model.train_for("nll", sampling=ALL)
    torch.testing.assert_close(mixed["loss_nll"], 0.25 * model(images, proposals, targets)["loss_nll"])
    with torch.no_grad():
        scores = model.score_windows(images, proposals)
    assert mixed["loss_map"].item() == pytest.approx(MAPLoss(K)(scores, proposals, targets).item(), rel=1e-6)


def test_cross_entropy_is_the_mean_over_windows() -> None:
    model = tiny(sampling=ALL)
    image, window = random_image(), torch.tensor([[10.0, 10.0, 40.0, 40.0], [50.0, 50.0, 90.0, 70.0]])
    target = {"boxes": window[:1], "labels": torch.tensor([1])}
    loss = model([image], [window], [target])["loss_nll"]
    (scores,) = model.score_windows([image], [window])
    background = torch.log1p(-scores[1].exp().sum())
    torch.testing.assert_close(loss.double(), -(scores[0, 1] + background) / 2, rtol=1e-5, atol=1e-6)
    samples = model.draw([window], [target])
    share = model.losses_of(model.activate([image], [window]), samples, [target], windows=8)  # of several processes
    torch.testing.assert_close(share["loss_nll"], loss / 4)


def test_difficult_objects_reach_the_loss_and_keep_their_windows_and_crowds_are_no_objects() -> None:
    images, proposals, targets = batch(1)
    proposals[0] = torch.cat([proposals[0], targets[0]["boxes"]])
    model = tiny(loss="map", sampling=ALL)
    model(images, proposals, targets)
    assert model.metrics["objects"] == 2
    assert model.metrics["map"] > 0
    targets[0]["difficult"][:] = True
    model(images, proposals, targets)
    assert model.metrics["objects"] == 0
    assert model.metrics["map"] == 0
    assert model.metrics["positives"] >= 2  # windows on them still show an object
    targets[0]["iscrowd"] = torch.tensor([1, 0])
    model.train_for("nll", sampling=Sampling(None))
    model(images, [torch.zeros(0, 4)], targets)
    assert model.metrics["windows"] == 1  # crowd regions are no objects to draw


def test_metrics_name_what_a_step_saw() -> None:
    images, proposals, targets = batch(2)
    model = tiny(loss="map", sampling=Sampling(10, None, ground_truth=False))
    model(images, proposals, targets)
    names = {"windows", "positives", "loss_seconds", "map", "ap", "kept", "objects", "nonzero"}
    assert set(model.metrics) == names | {"positive_sum", "negative_sum"}
    assert model.metrics["windows"] == 20
    model.train_for("nll", sampling=Sampling(4))
    model(images, proposals, targets)
    assert set(model.metrics) == {"windows", "positives", "loss_seconds"}
    assert model.metrics["loss_seconds"] > 0


def test_the_generator_draws_the_windows() -> None:
    images, proposals, targets = batch(1)
    model = tiny(sampling=Sampling(5, None))
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    values = [model(images, proposals, targets, generator=g)["loss_nll"].item() for g in generators]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("loss", ["nll", "map"])
def test_batches_without_windows_objects_or_images_give_a_zero_gradient(loss: str) -> None:
    image, none = random_image(), {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    for arguments in (
        ([image], [torch.zeros(0, 4)], [none]),
        ([image], [torch.zeros(0, 4)], [random_target()]),
        ([], [], []),
    ):
        model = tiny(loss=loss, sampling=ALL)
        (value,) = model(*arguments).values()
        value.backward()
        assert value.isfinite()
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    (value,) = model([image], [random_windows(5)], [none]).values()
    value.backward()
    assert value.isfinite()


# ---- frozen layers


def changed_by_a_step(model: FastRCNN) -> set[str]:
    images, proposals, targets = batch(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    sum(model(images, proposals, targets).values()).backward()
    optimizer.step()
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


def test_a_frozen_trunk_has_no_graph_and_does_not_change() -> None:
    model = tiny(freeze="trunk")
    assert not model.extract([random_image()])[0].map.requires_grad
    changed = changed_by_a_step(model)
    assert changed
    assert all(name.startswith("head.") for name in changed)
    assert not model.trunk.training
    assert model.head.training


@pytest.mark.parametrize(("backbone", "frozen"), [("alexnet", {"0"}), ("vgg16", {"0", "2", "5", "7"}), ("tiny", set())])
def test_the_layers_frozen_are_the_originals(backbone: str, frozen: set[str]) -> None:
    model = FastRCNN(K, backbone, hidden=8)
    assert {n.partition(".")[0] for n, p in model.trunk.named_parameters() if not p.requires_grad} == frozen
    free = FastRCNN(K, backbone, hidden=8, freeze="none")
    assert all(p.requires_grad for p in free.parameters())


def test_residual_networks_keep_their_first_stage_and_all_statistics() -> None:
    model = FastRCNN(K, "resnet18", hidden=8, dropout=0.0, shortest_side=None, sampling=Sampling(None))
    model.train()
    changed = {name for name in changed_by_a_step(model) if name.startswith("trunk.")}
    assert changed
    assert all(name.startswith(("trunk.layer2", "trunk.layer3", "trunk.layer4")) for name in changed)
    assert not any("bn" in name or "running" in name or "downsample.1" in name for name in changed)
    assert model.geometry.stride == 32


# ---- other precisions


def test_half_precision_trains_and_ranks_in_single() -> None:
    images, proposals, targets = batch(2)
    model = tiny(loss="map", nll_weight=0.1, sampling=ALL)
    with torch.autocast("cpu", dtype=torch.float16):
        losses = model(images, proposals, targets)
        (features,) = model.extract(images[:1])
        scores = model.score_windows(images[:1], proposals[:1])[0]
    sum(losses.values()).backward()
    assert model.trunk[0].weight.grad.isfinite().all()  # type: ignore[index, union-attr]
    assert features.map.dtype == torch.float32
    assert len(scores[:, 0].unique()) == 30  # float16 itself would merge some


# ---- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, p, t: (i[:1], p, t), "one entry per image in each list but got 1 images, 2 proposals, 2 targets"),
        (lambda i, p, t: (i[0], p, t), "images to be a list"),
        (lambda i, p, t: ([i[0], i[1][0]], p, t), r"image 1: expected a tensor of shape \(3, H, W\)"),
        (lambda i, p, t: ([i[0], i[1].float()], p, t), r"image 1: .* \[0, 1\], but they go from 0 to 255"),
        (lambda i, p, t: ([i[0], i[1].long()], p, t), "image 1: expected a uint8 or floating-point"),
        (lambda i, p, t: ([i[0] / 0.0, i[1]], p, t), "image 0: expected finite pixels"),
        (lambda i, p, t: (i, [p[0], p[1][:, :3]], t), r"image 1: expected proposals of shape \(N, 4\)"),
        (lambda i, p, t: (i, [p[0], p[1] * float("nan")], t), "image 1: expected finite proposals but proposal 0"),
        (lambda i, p, t: (i, [p[0], p[1][:, [2, 1, 0, 3]]], t), "image 1: expected proposals .* x2 > x1"),
        (
            lambda i, p, t: (i, p, [t[0], {**t[1], "labels": t[1]["labels"] + K}]),
            r"image 1: expected labels in \[0, 3\)",
        ),
        (lambda i, p, t: (i, p, [t[0], {"boxes": t[1]["boxes"]}]), "image 1: .*'labels'"),
        (lambda i, p, t: (i, p, None), "targets in training mode"),
        (lambda i, p, t: ([i[0], Features(torch.zeros(7, 2, 2), (1, 1))], p, t), r"image 1: expected features .*128"),
        (lambda i, p, t: ([i[0], Features(torch.zeros(128, 2, 2), (1, 1))], p, t), "because the trunk trains"),
    ],
)
def test_bad_input_is_refused_with_the_image_named(change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny()(*change(*batch(2)))


def test_a_diverged_model_detects_nothing() -> None:
    model = tiny().eval()
    with torch.no_grad():
        model.head.scores.bias[1] = float("nan")
    with pytest.raises(NonFiniteError, match="image 0: expected finite scores"):
        model([random_image()], [random_windows(3)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "raw"}, "background column"),
        ({"score": "raw", "loss": "map", "nll_weight": 0.1}, "background column"),
        ({"score": "softmax"}, "score to be one of"),
        ({"loss": "mapp"}, "Did you mean 'map'"),
        ({"freeze": "conv"}, "freeze to be one of"),
        ({"map_loss": MAPLoss(K + 1), "loss": "map"}, "map_loss for 3 classes but got 4"),
        ({"nms_threshold": 1.5}, "nms_threshold"),
        ({"candidates": 0}, "candidates to be at least 1"),
        ({"backbone": "resnet5"}, "Did you mean 'resnet50'"),
        ({"backbone": "vit_b_16"}, "no feature map"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(**options)
