"""The feature cache gives back exactly what was put in, or nothing."""

from __future__ import annotations

import random
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from stepgrad.detector import Features
from stepgrad.detector.training.features import FeatureCache, trunk_fingerprint
from tests.small_disk import largest_file

SCALE = (600 / 375, 1000 / 500 + 1e-16)


def features(seed: int = 0) -> Features:
    return Features(torch.randn(8, 5, 7, generator=torch.Generator().manual_seed(seed)), SCALE, (375, 500))


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_features_come_back_to_the_last_bit(tmp_path: Path) -> None:
    kept = features()
    FeatureCache(tmp_path, "trunk").put("2007_000027", kept)
    found = FeatureCache(tmp_path, "trunk").get("2007_000027")
    assert isinstance(found, Features)
    assert found.map.dtype == torch.float32
    assert found.map.shape == kept.map.shape
    assert torch.equal(found.map.view(torch.int32), kept.map.view(torch.int32))
    assert (found.scale, found.size) == (SCALE, (375, 500))


def test_map_that_is_a_view_comes_back_without_the_rest_of_its_memory(tmp_path: Path) -> None:
    batch = torch.randn(4, 8, 7, 5, requires_grad=True).transpose(2, 3)
    cache = FeatureCache(tmp_path, "trunk")
    cache.put("a", Features(batch[2], SCALE, (375, 500)))
    found = cache.get("a")
    assert found is not None
    assert torch.equal(found.map, batch[2])
    assert not found.map.requires_grad
    assert files(tmp_path)[0].stat().st_size < 2 * found.map.nbytes


@pytest.mark.parametrize(
    ("key", "trunk"),
    [("b", "trunk"), ("a ", "trunk"), ("A", "trunk"), ("a", "another"), ("a", "0123456789abcdef-other")],
)
def test_features_of_another_image_or_trunk_are_never_given(tmp_path: Path, key: str, trunk: str) -> None:
    for made_by in ("trunk", "0123456789abcdef-one"):
        FeatureCache(tmp_path, made_by).put("a", features())
    assert FeatureCache(tmp_path, trunk).get(key) is None


@pytest.mark.parametrize("key", ["a/b", "../../up", ".", "", "ü" * 500, "a\0b", "flip:2007_000027"])
def test_any_text_is_a_key_and_stays_inside_the_folder(tmp_path: Path, key: str) -> None:
    cache = FeatureCache(tmp_path / "cache", "trunk")
    cache.put(key, features())
    assert cache.get(key) is not None
    assert len(files(tmp_path / "cache")) == len(files(tmp_path)) == 1


def test_damaged_file_is_a_miss_and_is_written_again(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, "trunk")
    choose = random.Random(0)
    for _ in range(100):
        cache.put("a", features())
        (path,) = files(tmp_path)
        data = bytearray(path.read_bytes())
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        path.write_bytes(data[: choose.choice([None, choose.randrange(len(data))])])
        assert cache.get("a") is None
    cache.put("a", features(2))
    found = cache.get("a")
    assert found is not None
    assert torch.equal(found.map, features(2).map)


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
def test_full_disk_is_reported_once_and_what_is_kept_stays_readable(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, "trunk")
    cache.put("before", features())
    with largest_file(500):
        with pytest.warns(UserWarning, match="the disk is full.*continuing without storing features"):
            cache.put("a", features())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.put("b", features())
    assert cache.get("a") is None
    assert cache.get("before") is not None
    assert len(files(tmp_path)) == 1


def trunk(stride: int = 1) -> nn.Sequential:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3, stride=stride), nn.BatchNorm2d(4), nn.ReLU())
    with torch.no_grad():
        for tensor in layers.state_dict().values():
            tensor.fill_(1)
    return layers


def test_fingerprint_depends_on_layers_weights_statistics_and_the_rest_and_on_nothing_else() -> None:
    same = trunk_fingerprint(trunk(), "600")
    assert same == trunk_fingerprint(trunk().requires_grad_(False), "600")
    other_weight, other_statistics = trunk(), trunk()
    with torch.no_grad():
        other_weight.get_parameter("0.weight")[3, 2, 1, 1] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
        other_statistics.get_buffer("1.running_mean")[0] = 2
    others = [
        trunk_fingerprint(trunk(), "601"),
        trunk_fingerprint(trunk(stride=2), "600"),
        trunk_fingerprint(other_weight, "600"),
        trunk_fingerprint(other_statistics, "600"),
        trunk_fingerprint(trunk().double(), "600"),
        trunk_fingerprint(nn.Sequential(*trunk(), nn.ReLU()), "600"),
    ]
    assert len({same, *others}) == 7
