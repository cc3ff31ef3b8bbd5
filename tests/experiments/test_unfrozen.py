"""The whole-network experiment trains what it says, on images that its start has not seen."""

from pathlib import Path

import pytest

from experiments import unfrozen


@pytest.mark.parametrize("arm", ["nll", "map"])
def test_second_halves_train_the_trunk_on_fresh_images(arm: str, tmp_path: Path) -> None:
    start = unfrozen.config("start", tmp_path, None, tmp_path)
    config = unfrozen.config(arm, tmp_path, tmp_path / "weights", tmp_path)
    assert (start.model.freeze, config.model.freeze) == ("trunk", "original")
    assert (start.data.train, config.data.train) == ("train[:1000]", "train[1000:1500]")
    assert config.loss == arm


def test_both_halves_see_as_many_images(tmp_path: Path) -> None:
    shown = {}
    for arm in ("nll", "map"):
        config = unfrozen.config(arm, tmp_path, tmp_path / "weights", tmp_path)
        phase = config.map if arm == "map" else config.nll
        shown[arm] = phase.steps * phase.images
    assert shown["nll"] == shown["map"]
