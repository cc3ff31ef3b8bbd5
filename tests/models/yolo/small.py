"""YOLO at its smallest: images of 64 pixels with six shapes, networks with random weights."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stepgrad.data.convert import convert

SIZE = 64
STRIDES = (8, 16, 32)
EASY = {"protocol": "voc12", "match_threshold": 0.1}  # what an untrained network fulfils now and then
NMS_FREE = "yolo26n.yaml" if find_spec("ultralytics") and find_spec("ultralytics.nn.distill_model") else "yolov10n.yaml"
"""The newest network without NMS that the version installed has."""
WITHOUT_STEPGRAD = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "stepgrad":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
from ultralytics import YOLO
for file in sys.argv[2:]:
    found = YOLO(file)(sys.argv[1], imgsz=64, device="cpu", verbose=False)
    assert len(found) == 1
print("loaded", len(sys.argv[2:]))
"""
"""A program that loads weights and uses them where stepgrad cannot be imported."""

# Where it keeps settings; it would ask the network for updates, too. Both are read when it is imported.
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.gettempdir())
os.environ.setdefault("YOLO_OFFLINE", "true")

needs_ultralytics = [
    pytest.mark.skipif(
        find_spec("ultralytics") is None,
        reason='ultralytics is not installed: pip install ".[yolo]", best into an environment of its own',
    ),
    pytest.mark.filterwarnings("ignore"),  # those of ultralytics are its own affair
]


def yolo_folder(folder: Path, task: str = "detect", images: int = 8) -> Path:
    """The data.yaml of shapes as files, with outlines or two keypoints for each object where the task wants them."""
    convert(f"shapes:length={images},size={SIZE}", folder, "yolo")
    if task != "detect":
        for file in folder.glob("labels/*/*.txt"):
            rows = [_row(task, *map(float, line.split())) for line in file.read_text().splitlines()]
            file.write_text("".join(f"{row}\n" for row in rows))
    if task == "pose":
        with (folder / "data.yaml").open("a") as file:
            file.write("kpt_shape: [2, 3]\nflip_idx: [1, 0]\n")
    return folder / "data.yaml"


def _row(task: str, label: float, x: float, y: float, w: float, h: float) -> str:
    left, top, right, bottom = x - w / 2, y - h / 2, x + w / 2, y + h / 2
    if task == "segment":
        numbers = [left, top, right, top, right, bottom, left, bottom]
    elif task == "obb":
        numbers = [x, top, right, y, x, bottom, left, y]
    else:
        numbers = [x, y, w, h, left, y, 2, right, y, 2]
    return " ".join([str(int(label)), *(f"{min(max(n, 0), 2):.6f}" for n in numbers)])


def train(data: Path, folder: Path, trainer: Any, model: str = "yolov8n.yaml", **settings: Any) -> Any:
    """A YOLO after training; its `trainer` is what trained it."""
    from ultralytics import YOLO

    yolo = YOLO(model)
    usual = {"epochs": 2, "imgsz": SIZE, "batch": 4, "close_mosaic": 1, "plots": False, "workers": 0, "device": "cpu"}
    usual |= {"optimizer": "SGD", "lr0": 0.01, "warmup_epochs": 0, "nbs": 4, "verbose": False, "exist_ok": True}
    for event, callback in settings.pop("callbacks", {}).items():
        yolo.add_callback(event, callback)
    yolo.train(data=str(data), trainer=trainer, project=str(folder.parent), name=folder.name, **{**usual, **settings})
    return yolo


def rows_of(run: Path) -> list[dict[str, float]]:
    """results.csv."""
    header, *lines = (run / "results.csv").read_text().splitlines()
    names = [name.strip() for name in header.split(",")]
    return [dict(zip(names, map(float, line.split(",")), strict=True)) for line in lines]


_KINDS = {
    "-seg": ("SegmentationModel", "segment"),
    "-pose": ("PoseModel", "pose"),
    "-obb": ("OBBModel", "obb"),
}


def network(model: str = "yolov8n.yaml", classes: int = 3, seed: int = 2) -> Any:
    """A network in float64 and training mode, with scores and boxes that differ from place to place."""
    from ultralytics.cfg import get_cfg
    from ultralytics.nn import tasks

    torch.manual_seed(seed)
    kind, task = next((v for k, v in _KINDS.items() if k in model), ("DetectionModel", "detect"))
    more = {"data_kpt_shape": (2, 3)} if task == "pose" else {}
    made = getattr(tasks, kind)(model, nc=classes, verbose=False, **more).double().train()
    made.args = get_cfg(overrides={"task": task})
    with torch.no_grad():
        for name, parameter in made.model[-1].named_parameters():
            if "dfl" not in name:
                parameter += 0.2 * torch.randn_like(parameter)
    return made


def batch_of(images: int = 2, seed: int = 2, classes: int = 3) -> dict[str, Tensor]:
    """Noise, with four objects per image."""
    g = torch.Generator().manual_seed(seed)
    G = 4 * images
    sides = 0.2 + 0.5 * torch.rand(G, 2, generator=g)
    centre = sides / 2 + torch.rand(G, 2, generator=g) * (1 - sides)
    return {
        "img": torch.rand(images, 3, SIZE, SIZE, generator=g, dtype=torch.float64),
        "batch_idx": torch.arange(G) // 4,  # the stock loss wants them in the order of the images
        "cls": torch.randint(classes, (G, 1), generator=g).float(),
        "bboxes": torch.cat([centre, sides], dim=1),
    }


def save(yolo: Any, file: Path) -> None:
    """Save a YOLO; earlier versions of ultralytics need a checkpoint for this, which a network from a .yaml has not."""
    yolo.ckpt = yolo.ckpt or {}
    yolo.save(file)


def export(file: Path, **options: Any) -> Path:
    """The ONNX file of saved weights; skips the test where an exporter of torch is asked for that is not installed."""
    from ultralytics import YOLO

    try:
        return Path(YOLO(str(file)).export(format="onnx", imgsz=SIZE, simplify=False, verbose=False, **options))
    except ModuleNotFoundError as error:
        pytest.skip(f"this ultralytics with this torch exports by {error.name}, which is not installed")
