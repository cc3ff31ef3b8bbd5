"""Windows are pooled from where they lie in the picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from stepgrad.detector import Features
from stepgrad.detector.backbones import build_backbone, geometry_of
from stepgrad.detector.pooling import Geometry, pool_windows, scaled_size
from tests.detector.scenes import random_image, random_windows, tiny
from tests.oracles.detector import pooled_window, receptive_centres


@pytest.mark.parametrize(("name", "side"), [("alexnet", 287), ("vgg16", 240), ("tiny", 160)])
def test_cells_lie_where_their_gradients_reach(name: str, side: int) -> None:
    backbone = build_backbone(name)
    assert isinstance(backbone.trunk, nn.Sequential)
    centres = receptive_centres(backbone.trunk, side)
    middle = len(centres) // 2  # far enough from the edges to reach as far left as right
    geometry = backbone.geometry
    for i in (middle - 1, middle):
        assert centres[i] == geometry.first_centre + geometry.stride * i


def test_geometry_of_a_residual_network_follows_its_layers() -> None:
    assert build_backbone("resnet18").geometry == Geometry(stride=32, first_centre=0.0)  # all pad by half a kernel


def test_dilation_and_pooling_count() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 1, 3, dilation=2), nn.AvgPool2d(2), nn.Conv2d(1, 1, 5, 3, 1))
    assert geometry_of(layers) == Geometry(6, 2.0 + 0.5 + 2 * (2 - 1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("geometry", [Geometry(16, 15.0), Geometry(8, 0.0), Geometry(16, 7.5)])
def test_pooling_equals_the_slow_twin(geometry: Geometry, seed: int) -> None:
    rng = np.random.default_rng(seed)
    feature_map = rng.normal(size=(3, 9, 11)).astype(np.float32)
    windows = random_windows(40, seed, width=170, height=140)
    windows[::7] += torch.tensor([0.0, 0.0, 90.0, 90.0])  # beyond the edges
    windows[1::7] -= torch.tensor([30.0, 30.0, 10.0, 10.0])
    features = Features(torch.from_numpy(feature_map), (1.0, 1.0))
    (fast,) = pool_windows([features], [windows], geometry, side=5)
    slow = [pooled_window(feature_map, w, geometry.stride, geometry.first_centre, 5) for w in windows.tolist()]
    assert np.array_equal(fast.numpy(), np.stack(slow).reshape(len(windows), -1))


def test_windows_scale_with_each_axis_exactly() -> None:
    windows = random_windows(20)
    feature_map = torch.randn(2, 30, 40)
    stretched = windows * torch.tensor([2.0, 4.0, 2.0, 4.0])
    (scaled,) = pool_windows([Features(feature_map, (2.0, 4.0))], [windows], Geometry(8), side=3)
    (direct,) = pool_windows([Features(feature_map, (1.0, 1.0))], [stretched], Geometry(8), side=3)
    assert torch.equal(scaled, direct)


def test_threads_do_not_change_the_pooling() -> None:
    features = [Features(torch.randn(4, 12, 10), (1.0, 1.0)), Features(torch.randn(4, 8, 14), (1.0, 1.0))]
    windows = [random_windows(100), random_windows(3, seed=1)]
    before = torch.get_num_threads()
    try:
        pooled = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            pooled.append(torch.cat(pool_windows(features, windows, Geometry(8), side=3)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(pooled[0], pooled[1])
    assert torch.equal(pooled[0], pooled[2])


def test_pooling_in_threads_keeps_the_graph_and_its_absence() -> None:
    feature_map = torch.randn(4, 12, 10, requires_grad=True)
    arguments = ([Features(feature_map, (1.0, 1.0))] * 2, [random_windows(50), random_windows(60)], Geometry(8), 3)
    joined = torch.cat(pool_windows(*arguments))
    (gradient,) = torch.autograd.grad(joined.sum(), feature_map)
    assert gradient.sum().item() == pytest.approx(joined.numel())  # each output is one cell
    with torch.no_grad():
        assert not any(p.requires_grad for p in pool_windows(*arguments))
    with torch.inference_mode():
        assert all(p.is_inference() for p in pool_windows(*arguments))


def test_a_marked_spot_is_seen_by_the_window_on_it() -> None:
    """End to end: of a grid of windows, the one on the only bright spot gets the features that stand out."""
    model = tiny(shortest_side=None).eval()
    dark = torch.zeros(3, 160, 240, dtype=torch.uint8)
    bright = dark.clone()
    bright[:, 64:96, 160:192] = 255
    windows = torch.tensor([[x, y, x + 32.0, y + 32.0] for y in range(0, 160, 32) for x in range(0, 240 - 31, 32)])
    for scale in (160, 320):
        model.shortest_side = scale
        with torch.no_grad():
            maps = [model.extract([image])[0] for image in (dark, bright)]
        change = Features((maps[1].map - maps[0].map).abs(), maps[0].scale)
        (pooled,) = pool_windows([change], [windows], model.geometry, model.pool)
        assert windows[pooled.mean(dim=1).argmax()].tolist() == [160.0, 64.0, 192.0, 96.0]


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (80, 96)])
def test_images_of_any_size_have_features(size: tuple[int, int]) -> None:
    for sides in ((None, None), (64, 128)):
        model = tiny(shortest_side=sides[0], longest_side=sides[1]).eval()
        image = random_image(height=size[0], width=size[1])
        (found,) = model([image], [torch.tensor([[0.0, 0.0, float(size[1]), float(size[0])]])])
        assert found["scores"].isfinite().all()
        assert len(found["boxes"]) == 3


def test_scaled_sizes_keep_the_shortest_and_longest_side() -> None:
    for height, width in ((375, 500), (500, 333), (100, 2000), (1, 1), (1, 5000)):
        short, long = sorted(scaled_size(height, width, 600, 1000))
        assert long <= 1000
        assert short == 600 or long == 1000
