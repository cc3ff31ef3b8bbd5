"""Regions that are not judged: they move with the image, hide windows from the stock loss, and count nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from stepgrad.errors import ConfigError
from stepgrad.models.yolo.ignored import Ignored, read_ignored
from tests.models.yolo.small import (
    EASY,
    NMS_FREE,
    SIZE,
    batch_of,
    needs_ultralytics,
    network,
    rows_of,
    train,
    yolo_folder,
)

NAMES = {0: "cat", 1: "dog", 2: "DontCare"}


def test_a_class_that_data_yaml_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'DontCare'"):
        read_ignored({"names": NAMES, "ignore": "DontCar"})
    with pytest.raises(ConfigError, match="unlabelled"):
        read_ignored({"names": NAMES, "unlabelled": ["cat"]})


def test_a_region_of_one_class_is_one_of_that_class_alone(tmp_path: Path) -> None:
    image = tmp_path / "images/train/a.png"
    image.parent.mkdir(parents=True)
    Image.new("RGB", (40, 20)).save(image)
    content = {"train/a": [[0, 0, 20, 10, "dog"], [20, 10, 80, 20]]}
    (tmp_path / "ignored_regions.json").write_text(json.dumps(content))
    found = read_ignored({"names": NAMES, "yaml_file": str(tmp_path / "data.yaml")})
    boxes, classes = found._of_image(image)
    assert boxes.tolist() == [[0.25, 0.25, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]]
    assert classes.tolist() == [3 + 1 + 1, 3]


def test_data_without_regions_has_none() -> None:
    assert not read_ignored({"names": NAMES}).any
    assert not read_ignored({"names": list(NAMES.values()), "ignore": []}).any


class TestWithUltralytics:
    pytestmark = needs_ultralytics

    @pytest.mark.parametrize("model", ["yolov8n.yaml", NMS_FREE])
    def test_the_stock_loss_has_no_gradient_at_hidden_windows_and_the_old_one_elsewhere(self, model: str) -> None:
        from stepgrad.models.yolo.loss import WithMAP, losses_of_heads, make_switches
        from stepgrad.models.yolo.settings import YoloSettings

        net, batch = network(model), batch_of()
        stock = net.init_criterion()
        ignored = Ignored(3, [], {}, {})
        switches = make_switches(YoloSettings(weight=0, loss={"protocol": "coco"}), stock, net.args)
        names = list(losses_of_heads(stock))
        ours = WithMAP(stock, switches, names[0], ignored)
        # One region of class 1 over the first image as a whole.
        region = {
            "batch_idx": torch.tensor([0]),
            "cls": torch.tensor([[5.0]]),
            "bboxes": torch.tensor([[0.5, 0.5, 1, 1]]),
        }
        more = {**batch, **{key: torch.cat([batch[key], value]) for key, value in region.items()}}
        plain, hidden = (
            self._gradients(net, criterion, given, names) for criterion, given in ((stock, batch), (ours, more))
        )
        for name in names:
            before, after = plain[name], hidden[name]  # (B, K, A)
            assert torch.equal(before[1], after[1])
            assert torch.equal(before[0, [0, 2]], after[0, [0, 2]])
            assert torch.equal(after[0, 1], torch.where(after[0, 1] == 0, 0.0, before[0, 1]))
            assert ((after[0, 1] == 0) | (before[0, 1] != 0)).all()
            assert (after[0, 1] == 0).sum() > 0.5 * after.shape[2]

    def _gradients(self, net: Any, criterion: Any, batch: Any, names: list[str]) -> dict[str, torch.Tensor]:
        preds = net(batch["img"])
        parts = {name: preds[name] if name else preds for name in names}
        if not isinstance(parts[names[0]], dict):
            pytest.skip("this version of ultralytics gives maps in place of scores")
        loss, _ = criterion(preds, batch)
        scores = [parts[name]["scores"] for name in names]
        return dict(zip(names, torch.autograd.grad(loss.sum(), scores), strict=True))

    def test_regions_of_a_file_hide_windows_and_decide_the_fitness(self, tmp_path: Path) -> None:
        from stepgrad.models.yolo import MAPTrainer

        data = yolo_folder(tmp_path / "data")
        keys = [f"{file.parent.name}/{file.stem}" for file in (tmp_path / "data" / "images").glob("*/*")]
        first: dict[str, list[float]] = {"plain": [], "ignored": []}

        def note(trainer: Any) -> None:
            items = trainer.loss_items  # by name; before, in the order of their names
            found = items["cls_loss"] if isinstance(items, dict) else items[trainer.loss_names.index("cls_loss")]
            first[trainer.args.name].append(float(found))

        for name in first:
            if name == "ignored":
                content = {key: [[0, 0, SIZE, SIZE]] for key in keys}
                (tmp_path / "data" / "ignored_regions.json").write_text(json.dumps(content))
            train(data, tmp_path / name, MAPTrainer.options(weight=0, **EASY), callbacks={"on_train_batch_end": note})
        # Augmentation draws the same numbers, and the first batch meets the same weights.
        assert first["ignored"][0] < first["plain"][0]
        assert "stepgrad/map" in rows_of(tmp_path / "ignored")[0]
        assert "stepgrad/map" not in rows_of(tmp_path / "plain")[0]

    def test_a_class_named_in_data_yaml_is_no_object_any_more(self, tmp_path: Path) -> None:
        from stepgrad.models.yolo import MAPTrainer

        data = yolo_folder(tmp_path / "data")
        names = [line for line in data.read_text().splitlines() if line.strip()]
        first = next(line.split(":")[1].strip() for line in names if line.strip().startswith("0:"))
        with data.open("a") as file:
            file.write(f"ignore: [{first}]\n")
        found: list[torch.Tensor] = []

        def note(trainer: Any) -> None:
            labels = [torch.as_tensor(label["cls"]).view(-1) for label in trainer.train_loader.dataset.labels]
            found.append(torch.cat(labels))

        yolo = train(data, tmp_path / "run", MAPTrainer.options(start=0, **EASY), callbacks={"on_train_start": note})
        K = yolo.trainer.data["nc"]
        assert not (found[0] == 0).any()
        assert (found[0] == K).any()
        assert (
            yolo.trainer.map_loss_switch.metrics["ap"].isnan()[0] or yolo.trainer.map_loss_switch.metrics["ap"][0] == 0
        )
