"""Small valid inputs, made by code: what the damage starts from."""

from __future__ import annotations

import io
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from tests.fuzz.damage_bytes import Files

NAMES = ("cat", "dog")
IDS = ("a", "b")
SIDE = 24
_BOXES = ((1, 1, 12, 14), (5, 6, 20, 22))


@cache
def picture(format: str = "PNG", mode: str = "RGB") -> bytes:
    """A small picture."""
    pixels = np.arange(SIDE * SIDE * 3, dtype=np.uint8).reshape(SIDE, SIDE, 3)
    packed = io.BytesIO()
    image = Image.fromarray(pixels).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(packed, format, **({"exif": exif} if format in ("JPEG", "PNG", "WEBP") else {}))
    return packed.getvalue()


def _annotation(box: tuple[int, ...], name: str, difficult: int) -> bytes:
    corners = "".join(
        f"<{key}>{value}</{key}>" for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    thing = f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>{corners}</bndbox></object>"
    size = f"<size><width>{SIDE}</width><height>{SIDE}</height><depth>3</depth></size>"
    return f"<annotation><filename>a.png</filename>{size}{thing}{thing}</annotation>".encode()


def voc() -> Files:
    """A VOC folder of two pictures."""
    return {
        "VOC/Annotations/a.xml": _annotation(_BOXES[0], "cat", 0),
        "VOC/Annotations/b.xml": _annotation(_BOXES[1], "dog", 1),
        "VOC/ImageSets/Main/train.txt": b"a\nb 1\n",
        "VOC/ImageSets/Main/val.txt": b"b\n",
        "VOC/classes.txt": b"cat\ndog\n",
        "VOC/JPEGImages/a.png": picture(),
        "VOC/JPEGImages/b.png": picture(),
    }


def _coco_tree() -> dict[str, Any]:
    return {
        "info": {"year": 2026},
        "images": [
            {"id": i, "file_name": f"{name}.png", "width": SIDE, "height": SIDE} for i, name in enumerate(IDS, 1)
        ],
        "categories": [{"id": i, "name": name, "supercategory": "animal"} for i, name in enumerate(NAMES, 3)],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 2 + i, "bbox": [1, 2, 10.5, 12], "area": 126.0, "iscrowd": i - 1}
            for i in (1, 2)
        ],
    }


def coco() -> Files:
    """A COCO file with its pictures."""
    text = json.dumps(_coco_tree()).encode()
    return {"coco.json": text, "images/a.png": picture(), "images/b.png": picture()}


def yolo() -> Files:
    """A data.yaml with a folder, a list, a box, a polygon and an ignored region."""
    content = {"path": ".", "train": "images/train", "val": ["val.txt"], "nc": 2, "names": dict(enumerate(NAMES))}
    regions = {"train/b": [[1, 2, 9.5, 12]]}
    return {
        "data.yaml": yaml.safe_dump(content).encode(),
        "val.txt": b"./images/train/b.png\nimages/val/c.png\n",
        "labels/train/a.txt": b"0 0.5 0.5 0.25 0.5\n1 0.25 0.25 0.125 1e-1\n",
        "labels/train/b.txt": b"1 0.1 0.1 0.9 0.1 0.5 0.75\n",
        "ignored_regions.json": json.dumps(regions).encode(),
        "images/train/a.png": picture(),
        "images/train/b.png": picture(),
        "images/val/c.png": picture(),
    }


def coco_results() -> Files:
    """A COCO file and detections of it; the damage goes to both."""
    found = [
        {"image_id": 1, "category_id": 3, "bbox": [1, 2, 10.5, 12], "score": 0.9},
        {"image_id": 2, "category_id": 4, "bbox": [3.5, 2, 9, 12], "score": 0.25},
        {"image_id": 2, "category_id": 3, "bbox": [0, 0, 5, 5], "score": -1},
    ]
    return {"found.json": json.dumps(found).encode(), "coco.json": json.dumps(_coco_tree()).encode()}


def task_results() -> Files:
    """A COCO file with masks, keypoints and oriented boxes, and detections that have them."""
    tree = _coco_tree()
    shapes: dict[str, Any] = {"keypoints": [3, 4, 2, 8, 9, 1], "num_keypoints": 2, "poly": [1, 2, 11, 2, 11, 14, 1, 14]}
    masks: tuple[Any, ...] = (
        [[1, 2, 11.5, 2, 6, 14]],
        {"size": [SIDE, SIDE], "counts": [30, 5, SIDE * SIDE - 35]},
        {"size": [SIDE, SIDE], "counts": "n05m`0"},
    )
    tree["annotations"] = [{**entry, **shapes, "segmentation": masks[i]} for i, entry in enumerate(tree["annotations"])]
    poses = {"keypoints": ["left_eye", "right_eye"], "skeleton": [[1, 2]], "sigmas": [0.05, 0.05]}
    tree["categories"] = [{**c, **poses} for c in tree["categories"]]
    found = [
        {"image_id": 1, "category_id": 3, "score": 0.9, "segmentation": masks[1], **shapes},
        {"image_id": 2, "category_id": 4, "bbox": [3.5, 2, 9, 12], "score": 0.25, "segmentation": masks[0], **shapes},
        {"image_id": 2, "category_id": 3, "score": 0.5, "segmentation": masks[2], "keypoints": shapes["keypoints"]}
        | {"rbox": [5, 6, 4, 3, 0.5]},
    ]
    return {"found.json": json.dumps(found).encode(), "coco.json": json.dumps(tree).encode()}


def yolo_tasks() -> Files:
    """YOLO data with labels and detections of each task."""
    files: Files = {}
    lines = {
        "masks": "0 0.1 0.1 0.9 0.1 0.5 0.75",
        "keypoints": "1 0.5 0.5 0.5 0.5 0.4 0.4 2 0.6 0.6 1",
        "oriented": "0 0.1 0.1 0.6 0.1 0.6 0.4 0.1 0.4",
    }
    for task, line in lines.items():
        content: dict[str, Any] = {"train": "images", "names": dict(enumerate(NAMES))}
        if task == "keypoints":
            content |= {"kpt_shape": [2, 3], "flip_idx": [1, 0], "kpt_names": {0: ["left_eye", "right_eye"]}}
        files |= {
            f"{task}/data.yaml": yaml.safe_dump(content).encode(),
            f"{task}/images/a.png": picture(),
            f"{task}/labels/a.txt": f"{line}\n".encode(),
            f"{task}/found/a.txt": f"{line} 0.75\n".encode(),
        }
    return files


def dota() -> Files:
    """A folder of DOTA with detections."""
    return {
        "labelTxt/a.txt": b"imagesource:GoogleEarth\ngsd:0.1\n1 1 12 1 12 14 1 14 cat 0\n3 3 9 3 9 9 3 9 dog 1\n",
        "images/a.png": picture(),
        "found/Task1_cat.txt": b"a 0.9 1 1 12 1 12 14 1 14\n",
    }


def voc_results() -> Files:
    """VOC's text files of detections, and what they were made on."""
    lines = {"cat": "a 0.9 1 1 12 14\nb 0.25 5 6 20 22\n", "dog": "b 0.5 5 6 20 22\n"}
    files: Files = {f"found/comp4_det_test_{name}.txt": text.encode() for name, text in lines.items()}
    return files | {name: data for name, data in voc().items() if "JPEGImages" not in name}


def packed_windows() -> Files:
    """Windows in one .npz file."""
    boxes = np.array([[0, 0, 9, 9], [2, 2, 20, 20], [1, 0, 9, 12]], dtype=np.float32)
    return {"windows.npz": _npz(ids=np.array(IDS), offsets=np.array([0, 2, 3]), boxes=boxes)} | voc()


def mat_windows() -> Files:
    """Windows in one of Girshick's .mat files."""
    from scipy.io import savemat

    images, boxes = np.empty((2, 1), dtype=object), np.empty((1, 2), dtype=object)
    images[:, 0] = IDS
    boxes[0, 0] = np.array([[1, 1, 9, 9], [2, 2, 20, 20]], dtype=np.float64)
    boxes[0, 1] = np.array([[1, 1, 12, 9]], dtype=np.uint16)
    packed = io.BytesIO()
    savemat(packed, {"images": images, "boxes": boxes})
    return {"windows.mat": packed.getvalue()} | voc()


def _content(place: Path, which: str = "**/*") -> tuple[tuple[str, bytes], ...]:
    """The files of a folder."""
    files = sorted(path for path in place.glob(which) if path.is_file())
    return tuple((str(path.relative_to(place)), path.read_bytes()) for path in files)


@cache
def _cached_windows() -> tuple[tuple[str, bytes], ...]:
    from stepgrad.data.images import file_fingerprint
    from stepgrad.data.proposals.cache import WindowsRecord, record_path, write_record

    with tempfile.TemporaryDirectory() as place:
        picture_file = Path(place) / "a.png"
        picture_file.write_bytes(picture())
        windows = np.array([[0, 0, 9, 9], [2, 2, 20, 20]], dtype=np.int32)
        record = WindowsRecord(windows, '{"method": "selective search"}', file_fingerprint(picture_file), "VOC train")
        for image_id in IDS:
            write_record(record_path(Path(place) / "windows", image_id), record)
        return _content(Path(place), "windows/*")


def cached_windows() -> Files:
    """A cache folder of windows, and the pictures they are of."""
    return dict(_cached_windows()) | voc()


def _npz(**arrays: Any) -> bytes:
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()


def config() -> Files:
    """A config that extends another."""
    below = {"loss": "nll-then-map", "protocol": "voc07", "model": {"backbone": "tiny", "weights": None, "hidden": 8}}
    above = {
        "extends": ["below.yaml"],
        "also_report": ["coco", "voc12"],
        "data": {"path": "shapes", "train": "train[:10]", "class_names": None, "train_images": 4, "flip": True},
        "map": {"steps": 3, "lr": 0.001, "foreground": 0.25, "optimizer": "adamw", "drop_every": None},
        "map_loss": {"estimator": "mee", "l4": None, "clip": 1.5},
        "run": {"seed": 3, "precision": "32-true", "timeout": 300.0},
    }
    return {"config.yaml": yaml.safe_dump(above).encode(), "below.yaml": yaml.safe_dump(below).encode()}


def log() -> Files:
    """The log of a run that was resumed once."""
    lines: list[dict[str, Any]] = [{"kind": "start", "step": 0, "versions": {"torch": "2"}}]
    train = {"kind": "train", "phase": "nll", "loss": 1.5, "losses": {"nll": 1.0, "l4": 0.5}, "map": 0.1}
    lines += [{**train, "step": step} for step in (1, 2, 3)]
    lines.append({"kind": "start", "step": 2})
    lines.append({"kind": "val", "step": 3, "map": {"voc12": 0.25}, "ap": {"voc12": {"cat": 0.5}}, "seconds": 1.0})
    lines.append({"kind": "end", "step": 3, "seconds": 1.0, "best_step": 3, "best_map": 0.25})
    return {"log.jsonl": b"".join(json.dumps(line).encode() + b"\n" for line in lines)}


@cache
def _run() -> tuple[tuple[str, bytes], ...]:
    """The files of a run of no steps."""
    from stepgrad.detector.training.build import build_model
    from stepgrad.detector.training.checkpoint import Checkpoint, save_checkpoint
    from stepgrad.detector.training.config import from_dict
    from stepgrad.detector.training.run_folder import RunFolder
    from stepgrad.weights_file import save_weights

    given = {"model": {"backbone": "tiny", "weights": None, "hidden": 2}, "nll": {"steps": 2}, "also_report": ["coco"]}
    settings = from_dict(given)
    tensors = build_model(settings, len(NAMES), weights=None).state_dict()
    facts = {"class_names": list(NAMES), "step": 2, "thresholds": {"cat": 0.5}}
    state = {
        "seconds": 1.0,
        "validated": 2,
        "best_step": 2,
        "best_map": 0.5,
        "class_names": list(NAMES),
    }
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        folder.path.mkdir()
        folder.config_file.write_bytes(yaml.safe_dump(given).encode())  # a whole one takes long to read
        save_weights(folder.best_file, tensors, {"stepgrad": json.dumps(facts)})
        momentum = {f"{name}/momentum_buffer": tensor for name, tensor in tensors.items()}
        for step in (1, 2):
            save_checkpoint(folder.checkpoints, Checkpoint(step, tensors, momentum, state), keep=2)
        return _content(Path(place))


def run() -> Files:
    """The folder of a run: config, best weights, checkpoints."""
    return dict(_run())


def checkpoints() -> Files:
    """The checkpoints of a run."""
    return {name: data for name, data in _run() if "checkpoints" in name}


@cache
def _weights() -> tuple[tuple[str, bytes], ...]:
    from safetensors.torch import save

    from stepgrad.detector.backbones import tiny_trunk

    state = {f"trunk.{name}": tensor for name, tensor in tiny_trunk().state_dict().items()}
    packed = io.BytesIO()
    torch.save(state, packed)
    return (("weights.pt", packed.getvalue()), ("weights.safetensors", save(state)))


def weights() -> Files:
    """Weights of a trunk, in both formats."""
    return dict(_weights())


def own_weights() -> Files:
    """Weights that stepgrad wrote."""
    return {"best.safetensors": dict(_run())["run/best.safetensors"]}


@cache
def _features() -> tuple[tuple[str, bytes], ...]:
    from stepgrad.detector import Features
    from stepgrad.detector.training.features import FeatureCache

    with tempfile.TemporaryDirectory() as place:
        FeatureCache(Path(place) / "features", "0" * 64).put(
            "key", Features(torch.zeros(1, 2, 3, 3), (1.0, 0.5), (6, 3))
        )
        return _content(Path(place))


def features() -> Files:
    """A cache of features."""
    return dict(_features())


def pictures() -> Files:
    """The same picture in the usual formats."""
    formats = {"jpg": "JPEG", "png": "PNG", "gif": "GIF", "bmp": "BMP", "tif": "TIFF", "webp": "WEBP"}
    files: Files = {f"a.{suffix}": picture(format) for suffix, format in formats.items()}
    return files | {
        "grey.png": picture("PNG", "L"),
        "palette.png": picture("PNG", "P"),
        "cmyk.jpg": picture("JPEG", "CMYK"),
    }


def record() -> Files:
    """What `stepgrad detect` leaves beside its drawings."""
    entry = {
        "image": "a.png",
        "width": SIDE,
        "height": SIDE,
        "drawing": "a.png",
        "drawing_sha256": "0" * 64,
        "detections": [{"box": [0, 0, 1, 1]}],
    }
    return {
        "detections.json": json.dumps({"run": "run", "images": [entry, entry], "sha256": "right"}).encode(),
        "a.png": picture(),
    }
