"""Boxes that move: there and back, the loss as it is written down, and detections with the moved boxes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.ops import box_iou

from stepgrad.data import load_dataset
from stepgrad.detector import FastRCNN, Features, Sampling
from stepgrad.detector.head import LARGEST, BoxRegression, clip, decode, encode
from stepgrad.detector.sampling import Sample, sample_windows
from stepgrad.errors import InputError
from stepgrad.losses.functional import nms
from tests.detector.scenes import K, batch, random_image, random_windows, tiny


def random_boxes(count: int, seed: int) -> Tensor:
    """Boxes with sides from 1 to 500, anywhere."""
    generator = torch.Generator().manual_seed(seed)
    corner = 1000 * torch.rand(count, 2, generator=generator, dtype=torch.float64) - 200
    sides = 500 ** torch.rand(count, 2, generator=generator, dtype=torch.float64)
    return torch.cat([corner, corner + sides], dim=1)


def test_decoding_what_was_encoded_gives_the_box_back() -> None:
    windows, boxes = random_boxes(500, 0), random_boxes(500, 1)
    ratio = (boxes[:, 2:] - boxes[:, :2]) / (windows[:, 2:] - windows[:, :2])
    near = (ratio.log().abs() < LARGEST).all(dim=1)
    assert near.sum() > 300
    back = decode(windows[near], encode(windows[near], boxes[near])[:, None])[:, 0]
    # a few roundings of coordinates up to 1500, and of their differences over a side of 1 times a side of up to 500
    assert (back - boxes[near]).abs().max() < 1500 * 500 * 16 * torch.finfo(torch.float64).eps


def test_encoding_what_was_decoded_gives_the_numbers_back() -> None:
    windows = random_boxes(200, 2)
    numbers = torch.randn(200, K, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64).clamp(-4, 4)
    boxes = decode(windows, numbers)
    for c in range(K):
        torch.testing.assert_close(encode(windows, boxes[:, c]), numbers[:, c], rtol=1e-9, atol=1e-9)


def test_moves_are_the_same_wherever_and_however_large_the_picture() -> None:
    windows, boxes = random_boxes(100, 4), random_boxes(100, 5)
    torch.testing.assert_close(encode(8 * windows + 64, 8 * boxes + 64), encode(windows, boxes), rtol=1e-9, atol=1e-9)


def test_clipped_boxes_lie_in_the_image_and_keep_some_area() -> None:
    boxes = random_boxes(1000, 6)
    clipped = clip(boxes, height=80, width=96)
    assert (clipped[:, :2] >= 0).all()
    assert (clipped[:, 2:] <= torch.tensor([96, 80])).all()
    assert (clipped[:, 2:] > clipped[:, :2]).all()
    inside = random_windows(50).double()
    assert torch.equal(clip(inside, height=80, width=96), inside)


def test_the_loss_is_smooth_l1_of_the_shown_class() -> None:
    regression = BoxRegression(hidden=5, num_classes=2)
    regression.mean.copy_(torch.tensor([[0.1, 0.0, 0.0, 0.2], [0.0, 0.3, 0.0, 0.0]]))
    windows = torch.tensor([[0.0, 0, 10, 10], [0.0, 0, 20, 10], [50.0, 50, 60, 60]])
    boxes = torch.tensor([[1.0, 0, 11, 10], [0.0, 0, 20, 10], [0.0, 0, 1, 1]])
    sample = Sample(windows, torch.tensor([0, 1, 2]), 2, boxes)  # the last shows background
    outputs = torch.arange(24.0).reshape(3, 8) / 10

    def smooth(x: float) -> float:
        return 0.5 * x * x if abs(x) < 1 else abs(x) - 0.5

    moves = {0: (0.1, 0.0, 0.0, 0.0), 1: (0.0, 0.0, 0.0, 0.0)}
    expected = 0.0
    for row, label in ((0, 0), (1, 1)):
        for j in range(4):
            wanted = (moves[row][j] - regression.mean[label, j].item()) / (0.1, 0.1, 0.2, 0.2)[j]
            expected += smooth(outputs[row, 4 * label + j].item() - wanted)
    assert regression.loss([outputs], [sample]).item() == pytest.approx(expected, rel=1e-5)


def test_measured_moves_have_mean_zero_and_variance_one() -> None:
    windows, boxes = random_boxes(300, 7), random_boxes(300, 8)
    labels = torch.arange(300) % K
    regression = BoxRegression(hidden=5, num_classes=K + 1).double()
    regression.measure([Sample(windows, labels, 300, boxes)])
    numbers = encode(windows, boxes)
    for c in range(K):
        scaled = (numbers[labels == c] - regression.mean[c]) / regression.std[c]
        torch.testing.assert_close(scaled.mean(0), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-9)
        torch.testing.assert_close(scaled.std(0, unbiased=False), torch.ones(4, dtype=torch.float64))
    assert regression.measured
    assert regression.std[K].tolist() == pytest.approx(
        [0.1, 0.1, 0.2, 0.2]
    )  # a class without windows keeps the usual ones


def test_a_window_goes_to_the_object_whose_class_it_shows() -> None:
    windows, objects = random_windows(40, 1), random_windows(3, 2)
    sample = sample_windows(windows, objects, torch.tensor([0, 1, 2]), K, Sampling(windows=None))
    on = sample.labels < K
    assert on.any()
    assert torch.equal(sample.boxes[on], objects[sample.labels[on]])


def test_all_else_is_to_the_bit_what_it_is_without() -> None:
    images, proposals, targets = batch(2)
    plain, moving = tiny(), tiny(box_regression=True)
    state, more = plain.state_dict(), moving.state_dict()
    assert {name for name in more if name not in state} == {
        f"head.boxes.{name}" for name in ("layer.weight", "layer.bias", "mean", "std")
    }
    assert all(torch.equal(state[name], more[name]) for name in state)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    losses = plain(images, proposals, targets, generator=generators[0])
    with_boxes = moving(images, proposals, targets, generator=generators[1])
    assert sorted(losses) == ["loss_nll"]
    assert sorted(with_boxes) == ["loss_box", "loss_nll"]
    assert torch.equal(losses["loss_nll"], with_boxes["loss_nll"])


def moving_model(**options: Any) -> FastRCNN:
    """A model whose boxes move a good deal."""
    model = tiny(box_regression=True, **options)
    assert model.head.boxes is not None
    torch.nn.init.normal_(model.head.boxes.layer.weight, std=0.3, generator=torch.Generator().manual_seed(9))
    return model.eval()


@pytest.mark.parametrize("score", ["raw", "logprob"])
def test_detections_are_the_moved_boxes_after_nms_of_each_class(score: str) -> None:
    model = moving_model(score=score, loss="map", candidates=None)
    image, windows = random_image(), random_windows(30)
    (found,) = model([image], [windows])
    with torch.no_grad():
        (activations,) = model.activate([image], [windows])
        (scores,) = model.score_windows([image], [windows])
    assert model.head.boxes is not None
    moved = clip(model.head.boxes.boxes(activations[:, model.outputs :], windows), 80, 96).float()
    assert (moved - windows[:, None]).abs().max() > 1
    for c in range(K):
        keep, _ = nms(moved[:, c], scores[:, c], 0.3)
        expected = {tuple(box) for box in moved[keep, c].tolist()}
        assert {tuple(box) for box in found["boxes"][found["labels"] == c].tolist()} == expected


def test_features_detect_as_their_images_do_and_must_know_their_size() -> None:
    model = moving_model(freeze="trunk")
    image, windows = random_image(), random_windows(30)
    (features,) = model.extract([image])
    (direct,), (by_features,) = model([image], [windows]), model([features], [windows])
    assert all(torch.equal(direct[key], by_features[key]) for key in direct)
    with pytest.raises(InputError, match="image 0: expected features with the size of their image"):
        model([Features(features.map, features.scale)], [windows])


def test_map_is_that_of_the_moved_boxes() -> None:
    images, proposals, targets = batch(2)
    model = moving_model(loss="map", sampling=Sampling(None, ground_truth=False)).train()
    losses = model(images, proposals, targets)
    assert sorted(losses) == ["loss_box", "loss_map"]
    sum(losses.values()).backward()
    assert model.head.boxes is not None
    assert model.head.boxes.layer.weight.grad.any()
    moved = [
        model.head.boxes.boxes(a[:, model.outputs :], w)
        for a, w in zip(model.activate(images, proposals), proposals, strict=True)
    ]
    scores = model.score_windows(images, proposals)
    alone = model.map_loss([s.detach() for s in scores], moved, targets)
    assert losses["loss_map"].item() == pytest.approx(alone.item(), rel=1e-6)


def test_no_windows_on_objects_are_a_zero_on_the_graph() -> None:
    model = tiny(box_regression=True)
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    losses = model([random_image()], [random_windows(5)], [nothing])
    assert losses["loss_box"].item() == 0.0
    sum(losses.values()).backward()


def shapes_batch(count: int) -> tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]:
    """Images of `shapes` with windows beside their objects: eight for each, shifted and stretched."""
    dataset = load_dataset("shapes", "train")
    images, windows, targets = [], [], []
    for i in range(count):
        image, target = dataset[i]
        generator = torch.Generator().manual_seed(i)
        boxes = target["boxes"].repeat(8, 1)
        sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
        moved = boxes + sides * 0.3 * (torch.rand(boxes.shape, generator=generator) - 0.5)
        images.append(image)
        windows.append(clip(moved, *image.shape[1:]))
        targets.append({"boxes": target["boxes"], "labels": target["labels"]})
    return images, windows, targets


def test_training_on_shapes_brings_boxes_closer_to_their_objects() -> None:
    images, windows, targets = shapes_batch(4)
    classes = 1 + max(int(t["labels"].max()) for t in targets)
    torch.manual_seed(0)
    model = FastRCNN(
        classes, "tiny", hidden=64, dropout=0.0, shortest_side=None, box_regression=True, sampling=Sampling(None)
    )
    assert model.head.boxes is not None
    samples = model.draw(windows, targets)
    model.head.boxes.measure(samples)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for _ in range(60):
        losses = model.losses_of(model.activate(images, [s.windows for s in samples]), samples, targets)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    before, after = [], []
    with torch.no_grad():
        for sample, activations in zip(
            samples, model.eval().activate(images, [s.windows for s in samples]), strict=True
        ):
            on = (sample.labels < classes).nonzero().flatten()
            moved = model.head.boxes.boxes(activations[:, model.outputs :], sample.windows)[on, sample.labels[on]]
            before.append(box_iou(sample.windows[on], sample.boxes[on]).diagonal())
            after.append(box_iou(moved.float(), sample.boxes[on]).diagonal())
    assert torch.cat(after).mean() > torch.cat(before).mean() + 0.03
