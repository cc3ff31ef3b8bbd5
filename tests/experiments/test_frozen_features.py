"""Window features of the result tables: what they are computed from, and that they are computed once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import alexnet
from torchvision.ops import roi_pool

from experiments import frozen_features
from experiments.frozen_features import FeatureSettings, FrozenFeatures, cached_features
from experiments.window_head import make_part
from stepgrad.detector.training.inputs import Images, open_data

SETTINGS = FeatureSettings(components=4, sample_per_image=5, fit_images=3)


def _weights(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    torch.save(alexnet(weights=None).features.state_dict(), folder / f"{seed}.pt")
    return folder / f"{seed}.pt"


def _splits() -> dict[str, Images]:
    return {"train": open_data("shapes", "train", limit=4), "val": open_data("shapes", "val", limit=2)}


@torch.inference_mode()
def test_features_are_conv5_of_the_enlarged_image_pooled_at_the_corners_of_the_windows(tmp_path: Path) -> None:
    weights, data = _weights(tmp_path, 0), open_data("shapes", "train", limit=1)
    image, windows = data.dataset.image(0), data.windows(0)
    trunk = alexnet(weights=None).features
    trunk.load_state_dict(torch.load(weights, weights_only=True))
    pixels = np.array(image.resize((2 * image.width, 2 * image.height), Image.Resampling.BILINEAR))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    conv5 = trunk[:12]((torch.from_numpy(pixels).permute(2, 0, 1) / 255 - mean)[None] / std)
    # torchvision's AlexNet has a conv5 cell every 16 pixels, the first centred on pixel 15
    expected = roi_pool(conv5, [2 * windows - 15], output_size=6, spatial_scale=1 / 16).flatten(1)
    found = FrozenFeatures(weights, SETTINGS).pooled(image, windows)
    assert found.shape == (len(windows), 9216)
    assert expected.abs().max() > 0
    torch.testing.assert_close(found, expected)


def test_every_window_gets_its_features_in_order(tmp_path: Path) -> None:
    splits, weights = _splits(), _weights(tmp_path, 0)
    features = cached_features(splits, weights, tmp_path / "cache", SETTINGS)
    extractor = FrozenFeatures(weights, SETTINGS)
    extractor.fit(extractor.sampled(splits["train"]))
    for name, data in splits.items():
        part = make_part(data, features[name])
        assert len(part) == len(data)
        for i, image in enumerate(part.images):
            assert image.image.shape == (len(data.windows(i)), SETTINGS.components)
            assert image.target["image_id"] == data.dataset.ids[i]
            torch.testing.assert_close(image.image, torch.from_numpy(extractor.project(data, i)), rtol=0, atol=2e-2)


def test_features_are_computed_once_for_a_trunk_and_again_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits, weights, others = _splits(), _weights(tmp_path, 0), _weights(tmp_path, 1)
    first = cached_features(splits, weights, tmp_path / "cache", SETTINGS)
    known = first["val"][1].clone()
    with monkeypatch.context() as patched:
        patched.setattr(frozen_features.FrozenFeatures, "pooled", None)
        again = cached_features(splits, weights, tmp_path / "cache", SETTINGS)
    assert torch.equal(again["val"][1], known)
    assert not torch.equal(cached_features(splits, others, tmp_path / "cache", SETTINGS)["val"][1], known)
