"""Weights from names and files, and what the report says of them."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torchvision.models import AlexNet_Weights

from stepgrad.detector import FastRCNN
from stepgrad.detector.weights import WeightsReport
from stepgrad.errors import ConfigError, DataError
from tests.data.builders import shared_data
from tests.detector.scenes import K, random_image, random_windows

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def convolutions() -> State:
    """Random AlexNet convolutions under the names of `torchvision.models.alexnet().features`."""
    torch.manual_seed(7)
    shapes = {"0": (64, 3, 11, 11), "3": (192, 64, 5, 5), "6": (384, 192, 3, 3), "8": (256, 384, 3, 3)}
    shapes["10"] = (256, 256, 3, 3)
    weights = {f"{name}.weight": torch.randn(shape) / 50 for name, shape in shapes.items()}
    return weights | {f"{name}.bias": torch.randn(shape[0]) / 50 for name, shape in shapes.items()}


def alexnet(weights: str | Path | None, hidden: int = 8, **options: Any) -> FastRCNN:
    return FastRCNN(K, "alexnet", weights=weights, hidden=hidden, **options)


def holds(model: FastRCNN, state: State) -> bool:
    own = model.trunk.state_dict()
    return set(own) == set(state) and all(torch.equal(own[name], state[name]) for name in state)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
@pytest.mark.parametrize("prefix", ["", "features.", "trunk."])
def test_convolutions_load_under_any_of_their_names(
    tmp_path: Path, convolutions: State, suffix: str, prefix: str
) -> None:
    file = tmp_path / f"weights{suffix}"
    named = {prefix + name: value for name, value in convolutions.items()}
    save_file(named, file) if suffix == ".safetensors" else torch.save(named, file)
    model = alexnet(file)
    assert holds(model, convolutions)
    assert model.weights_report.random == ("head.fc6", "head.fc7", "head.scores")
    assert str(model.weights_report) == f"loaded trunk (5 layers) from {file}; random: fc6, fc7, scores"
    if suffix != ".safetensors":
        torch.save({"state_dict": {f"module.{k}": v for k, v in named.items()}, "epoch": 3}, file)
        assert holds(alexnet(file), convolutions)  # unwrapped


def test_a_whole_network_also_fills_fc6_and_fc7_where_they_fit(tmp_path: Path, convolutions: State) -> None:
    whole = {f"features.{name}": value for name, value in convolutions.items()}
    for layer, shape in (
        ("1", (16, 9216)),
        ("4", (16, 16)),
        ("6", (1000, 16)),
    ):  # hidden 16 for 4096: as rules go, the same
        whole |= {f"classifier.{layer}.weight": torch.randn(shape), f"classifier.{layer}.bias": torch.randn(shape[0])}
    torch.save(whole, tmp_path / "whole.pt")
    fits = alexnet(tmp_path / "whole.pt", hidden=16)
    assert fits.weights_report.random == ("head.scores",)
    assert torch.equal(fits.head.fc6.weight, whole["classifier.1.weight"])
    assert torch.equal(fits.head.fc7.bias, whole["classifier.4.bias"])
    narrower = alexnet(tmp_path / "whole.pt", hidden=8)
    assert narrower.weights_report.random == ("head.fc6", "head.fc7", "head.scores")
    assert holds(narrower, convolutions)


def test_a_detector_starts_from_another(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = FastRCNN(K, "tiny", hidden=8)
    save_file(first.state_dict(), tmp_path / "best.safetensors")
    second = FastRCNN(K, "tiny", hidden=8, weights=tmp_path / "best.safetensors")
    assert second.weights_report.random == ()
    assert all(torch.equal(v, second.state_dict()[k]) for k, v in first.state_dict().items())
    other_classes = FastRCNN(K + 2, "tiny", hidden=8, weights=tmp_path / "best.safetensors")
    assert other_classes.weights_report.random == ("head.scores",)


def test_names_are_downloaded_and_checked(monkeypatch: pytest.MonkeyPatch, convolutions: State) -> None:
    asked = []

    def download(self: AlexNet_Weights, *args: object, **options: object) -> State:
        asked.append((self.name, options["check_hash"]))
        return {f"features.{name}": value for name, value in convolutions.items()}

    monkeypatch.setattr(AlexNet_Weights, "get_state_dict", download)
    for name in ("imagenet", "IMAGENET1K_V1", "AlexNet_Weights.DEFAULT"):
        assert holds(alexnet(name), convolutions)
    assert asked == [("IMAGENET1K_V1", True)] * 3


def test_no_network_says_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **options: object) -> State:
        raise OSError("Name or service not known")

    monkeypatch.setattr(AlexNet_Weights, "get_state_dict", offline)
    with pytest.raises(DataError, match=r"cannot be downloaded \(Name or service.*local .safetensors .*weights: null"):
        alexnet("imagenet")


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'imagenet'"):
        alexnet("imagenett")
    with pytest.raises(ConfigError, match=r"`tiny` has no weights called 'imagenet'.*weights: null"):
        FastRCNN(K, "tiny", weights="imagenet")
    with pytest.raises(DataError, match=r"absent.pt: no such weights file"):
        alexnet("absent.pt")


def test_wrong_files_are_refused_with_what_was_expected(tmp_path: Path, convolutions: State) -> None:
    def refused(content: object, message: str, name: str = "wrong.pt") -> None:
        torch.save(content, tmp_path / name)
        with pytest.raises(DataError, match=message):
            alexnet(tmp_path / name)

    refused(
        {"conv1.weight": torch.zeros(2)}, r"such as 'features.0.weight', but got 1 tensors, first \['conv1.weight'\]"
    )
    refused(
        {**convolutions, "0.weight": torch.zeros(32, 3, 11, 11)}, r"shape \(64, 3, 11, 11\) but got \(32, 3, 11, 11\)"
    )
    refused({k: v for k, v in convolutions.items() if k != "8.bias"}, r"has no '8.bias', \(256,\)")
    refused([1, 2], "expected a state dict")
    refused({"0.weight": 3}, "expected a state dict")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch says that it takes a long look at sparse tensors
        refused({**convolutions, "0.weight": convolutions["0.weight"].to_sparse()}, "'0.weight' is sparse or quantized")


def test_files_that_are_damaged_or_would_run_code_are_not_opened(tmp_path: Path, convolutions: State) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "code.pt").write_bytes(pickle.dumps(_Runs(ran)))
    (tmp_path / "empty.pt").write_bytes(b"")
    save_file(convolutions, tmp_path / "cut.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "cut.safetensors").read_bytes()[:-10])
    for name in ("code.pt", "empty.pt", "cut.safetensors"):
        with pytest.raises(DataError, match=f"{name}: is not a readable weights file"):
            alexnet(tmp_path / name)
    assert not ran.exists()


class _Runs:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_random_layers_that_will_not_train_are_pointed_out(tmp_path: Path, convolutions: State) -> None:
    assert str(alexnet(None).weights_report).endswith(
        "random: trunk (5 layers), fc6, fc7, scores; frozen although random: trunk (1 layer) (freeze: none lets them train)"
    )
    torch.save(convolutions, tmp_path / "a.pt")
    assert alexnet(tmp_path / "a.pt").weights_report.frozen_random == ()
    assert alexnet(None, freeze="none").weights_report.frozen_random == ()
    assert FastRCNN(K, "resnet18", hidden=8, freeze="none").weights_report.frozen_random == ()


def test_new_layers_start_as_in_the_original() -> None:
    torch.manual_seed(0)
    head = FastRCNN(20, "tiny", hidden=512).head
    assert head.scores.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert not any(layer.bias.any() for layer in (head.fc6, head.fc7, head.scores))
    assert head.fc6.weight.std().item() == pytest.approx((2 / head.fc6.in_features) ** 0.5, rel=0.02)


def test_the_shared_convolutions_load_and_see_edges() -> None:
    file = shared_data("weights/alexnet_features_imagenet.pt")
    model = FastRCNN(K, "alexnet", weights=file, hidden=16, shortest_side=200).eval()
    assert model.weights_report == WeightsReport(
        str(file), tuple(f"trunk.{i}" for i in (0, 3, 6, 8, 10)), ("head.fc6", "head.fc7", "head.scores")
    )
    (found,) = model([random_image()], [random_windows(20)])
    assert found["scores"].isfinite().all()
    flat, edges = torch.full((3, 200, 200), 128, dtype=torch.uint8), torch.zeros(3, 200, 200, dtype=torch.uint8)
    edges[:, :, ::20] = 255
    with torch.no_grad():
        quiet, loud = (f.map.abs().mean() for f in model.extract([flat, edges]))
    assert loud > 2 * quiet
