"""Detections of COCO's YOLOv8n and YOLO11n on images that they were not trained on, kept on disk with features of each.

    python -m experiments.rescore.detections --data DIR --cache DIR --model yolov8n --weights FILE.onnx --set voc

`--data` is a VOC folder (`VOCdevkit/VOC2012`), `--order` a folder with the lists `train.txt` and `val.txt`, of whose images the
first ones are taken; or VisDrone in YOLO's format with `--set visdrone`. Detections are as `yolo val` makes them: letterbox of
640, every class of a window above 0.001, NMS 0.7 by class, the best 300. Features: 24 statistics of the box's distributions (per
side the four largest probabilities, their mean, the entropy), and the 80 numbers before the last class layer. There is a file
per 100 images; the command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor
from torchvision.ops import batched_nms

from experiments.yolo.own_logits import COCO_COLUMNS
from experiments.yolo.windows import letterbox
from stepgrad.data.images import image_to_tensor, read_image
from stepgrad.files import write_whole

PART = 100  # images per file
CONFIDENCE, NMS, MOST = 0.001, 0.7, 300
BINS = 16
PERSON, BICYCLE, CAR, TRUCK, BUS, MOTORCYCLE = 0, 1, 2, 7, 5, 3
VISDRONE = (PERSON, BICYCLE, CAR, TRUCK, BUS, MOTORCYCLE)
COLUMNS = {"voc": COCO_COLUMNS, "visdrone": VISDRONE}
NODES = {
    "yolov8n": (
        "/model.22/Concat_3_output_0",
        [f"/model.22/cv3.{n}/cv3.{n}.1/act/Mul_output_0" for n in range(3)],
    ),
    "yolo11n": (
        "/model.23/Concat_6_output_0",
        [f"/model.23/cv3.{n}/cv3.{n}.1/cv3.{n}.1.1/act/Mul_output_0" for n in range(3)],
    ),
}

Tensors = dict[str, Tensor]


class Detector:
    """A YOLO of COCO's 80 classes in ONNX, of which some classes are asked for."""

    def __init__(self, model: str, weights: Path, columns: Sequence[int]) -> None:
        import onnx
        import onnxruntime

        network = onnx.load(weights)
        raw, features = NODES[model]
        for name in (raw, *features):
            network.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        content = network.SerializeToString()
        self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self.names, self.columns = ["output0", raw, *features], list(columns)

    def __call__(self, image: Tensor) -> Tensors:
        """The detections of an image (3, H, W) of bytes, in its pixels."""
        square, way = letterbox(image.float() / 255)
        outputs = self.session.run(self.names, {"images": square[None].numpy()})
        found, raw, *features = (torch.from_numpy(out[0]) for out in outputs)
        logits = raw[64:][self.columns].T  # (8400, K)
        window, label = (logits.sigmoid() > CONFIDENCE).nonzero().unbind(1)
        score = logits[window, label]
        best = score.argsort(descending=True, stable=True)[:30000]
        window, label, score = window[best], label[best], score[best]
        centre, size = found[:2, window].T, found[2:4, window].T
        boxes = torch.cat([centre - size / 2, centre + size / 2], dim=1)
        kept = batched_nms(boxes, score, label, NMS)[:MOST]
        window = window[kept]
        high = torch.tensor([image.shape[2], image.shape[1]] * 2, dtype=torch.float32)
        class_features = torch.cat([f.flatten(1) for f in features], dim=1)[:, window].T
        return {
            "boxes": way.back(boxes[kept]).clamp(min=0).minimum(high),
            "scores": score[kept].sigmoid(),
            "labels": label[kept],
            "class_logits": logits[window].half(),
            "features": torch.cat([of_distributions(raw[:64, window].T), class_features], dim=1).half(),
        }


def of_distributions(sides: Tensor) -> Tensor:
    """(M, 24) of the logits (M, 64) of the four sides' distances."""
    sides = sides.reshape(-1, 4, BINS).softmax(dim=2)
    far = sides @ torch.arange(BINS, dtype=sides.dtype)
    entropy = -(sides * sides.clamp_min(1e-9).log()).sum(-1)
    return torch.cat([sides.topk(4, dim=-1).values.flatten(1), far, entropy], dim=1)


def ids_of(order: Path, split: str, count: int) -> list[str]:
    return (order / f"{split}.txt").read_text(encoding="utf-8").split()[:count]


def fill(cache: Path, split: str, pictures: Sequence[Path], detector: Detector) -> None:
    """Make the files of a split that are not there yet."""
    cache.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(pictures), PART):
        file, found = cache / f"{split}-{first:05}.safetensors", {}
        if not file.exists():
            for picture in pictures[first : first + PART]:
                kept = detector(image_to_tensor(read_image(picture)))
                found |= {f"{picture.stem}/{name}": value.contiguous() for name, value in kept.items()}
            write_whole(file, save(found))
            print(file, flush=True)


def load(cache: Path, split: str) -> dict[str, Tensors]:
    """The detections of a split by image, as far as they are there, in the order of the list."""
    images: dict[str, Tensors] = {}
    for file in sorted(cache.glob(f"{split}-*.safetensors")):
        for key, value in load_file(file).items():
            image_id, name = key.split("/")
            images.setdefault(image_id, {})[name] = value
    return images


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--data", "--weights", "--cache"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--order", type=Path, help="by default ImageSets/Main of the data")
    parser.add_argument("--model", choices=list(NODES), required=True)
    parser.add_argument("--set", choices=list(COLUMNS), default="voc")
    parser.add_argument("--count", type=int, nargs=2, default=[4000, 1000], help="images of train and val")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    detector = Detector(options.model, options.weights, COLUMNS[options.set])
    folder = options.cache / options.set / options.model
    for split, count in zip(("val", "train"), options.count[::-1], strict=True):
        if options.set == "visdrone":
            pictures = sorted((options.data / "images" / split).iterdir())[:count]
        else:
            names = ids_of(options.order or options.data / "ImageSets" / "Main", split, count)
            pictures = [options.data / "JPEGImages" / f"{name}.jpg" for name in names]
        fill(folder, split, pictures, detector)


if __name__ == "__main__":
    main()
