"""The windows that YOLO11n-seg finds in VOC's images with instance masks, kept on disk.

    python -m experiments.masks.windows --data VOC2012 --weights yolo11n-seg.onnx --cache DIR   # goes on where it was stopped

Needs onnx and onnxruntime. Per image, the hundred windows whose surest class of VOC's twenty is surest: boxes, class logits, mask
coefficients, the features before the last class layer, masks, and statistics of the masks. Everything is in the network's frame
of 640 x 640 pixels, masks in its prototypes' 160 x 160; a mask is cut at the edges of its box.

The objects are VOC's instances, at the same 160 x 160: a pixel belongs to the instance, the background or the void border that
covers most of it. Void pixels are taken from both sides, as VOC's own segmentation score does: masks are compared only where
pixels are not void (`mask_iou`). `mask_iou_plain` counts void pixels as background instead. An instance has the box and the flag
"difficult" of the object in the XML that has its class and an extent most like its own.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import box_iou, masks_to_boxes

from experiments.yolo.windows import SIDE, Letterbox, letterbox
from stepgrad.data import VOC_CLASSES
from stepgrad.data.images import image_to_tensor, read_image
from stepgrad.data.own_files import OwnFiles
from stepgrad.data.voc_xml import read_annotation
from stepgrad.files import write_whole
from stepgrad.overlaps import Masks
from stepgrad.pixels import continuous_from_devkit

WINDOWS = 100  # per image
PART = 100  # images per file
CELL = 4  # pixels of the frame along a prototype's pixel
VOID = 255
COCO_NAMES = {
    **{"aeroplane": "airplane", "diningtable": "dining table", "motorbike": "motorcycle"},
    **{"pottedplant": "potted plant", "sofa": "couch", "tvmonitor": "tv"},
}
LOGITS = "/model.23/Split_output_1"
CLASS_FEATURES = [f"/model.23/cv3.{n}/cv3.{n}.1/cv3.{n}.1.1/act/Mul_output_0" for n in range(3)]

Network = Callable[[Tensor], list[Tensor]]
Tensors = dict[str, Tensor]


def load_network(weights: Path) -> tuple[Network, list[int]]:
    """Boxes with scores and coefficients, prototypes, logits, and class features by level; and the columns of VOC's classes."""
    import onnx
    import onnxruntime

    model = onnx.load(weights)
    names = ast.literal_eval(next(p.value for p in model.metadata_props if p.key == "names"))
    by_name = {name: column for column, name in names.items()}
    for name in (LOGITS, *CLASS_FEATURES):
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(square: Tensor) -> list[Tensor]:
        return [torch.from_numpy(out[0]) for out in session.run(None, {"images": square[None].numpy()})]

    return run, [by_name[COCO_NAMES.get(name, name)] for name in VOC_CLASSES]


def find_windows(outputs: Sequence[Tensor], columns: Sequence[int]) -> Tensors:
    """The best windows of one image."""
    found, prototypes, logits, *features = outputs
    logits = logits[list(columns)].T  # (8400, 20)
    best = logits.amax(dim=1).topk(WINDOWS).indices.sort().values
    centre, size = found[:2, best].T, found[2:4, best].T
    boxes = torch.cat([centre - size / 2, centre + size / 2], dim=1).clamp(0, SIDE)
    coefficients = found[-len(prototypes) :, best].T
    inside = inside_boxes(boxes / CELL, prototypes.shape[1])
    probability = (coefficients @ prototypes.flatten(1)).sigmoid().view(-1, *prototypes.shape[1:])
    level = torch.repeat_interleave(torch.arange(3), torch.tensor([f[0].numel() for f in features]))
    return {
        "boxes": boxes,
        "logits": logits[best],
        "coefficients": coefficients,
        "features": torch.cat([f.flatten(1) for f in features], dim=1)[:, best].T.half(),
        "level": level[best],
        "masks": (probability > 0.5) & inside,
        "statistics": statistics(probability, inside, boxes, logits[best]),
    }


def inside_boxes(boxes: Tensor, side: int) -> Tensor:
    """(N, side, side) pixels whose corner lies in the box, as ultralytics cuts masks."""
    place = torch.arange(side)
    x1, y1, x2, y2 = boxes[:, :, None].unbind(1)
    across, down = (place >= x1) & (place < x2), (place >= y1) & (place < y2)
    return down[:, :, None] & across[:, None, :]


def statistics(probability: Tensor, inside: Tensor, boxes: Tensor, logits: Tensor) -> Tensor:
    """(N, 13) what is known of a window without looking at the objects."""
    probability = probability * inside
    mask = probability > 0.5
    area, room = _total(mask).clamp_min(1), _total(inside).clamp_min(1)
    size = (boxes[:, 2:] - boxes[:, :2]).clamp_min(1) / SIDE
    classes = logits.softmax(dim=1)
    columns = [
        _total(probability * mask) / area,
        _total(probability) / room,
        _total(mask) / room,
        _total((probability > 0.2) & (probability < 0.8))
        / area.sqrt(),  # the boundary band by the length of a boundary
        _total(probability > 0.7) / _total(probability > 0.3).clamp_min(1),
        box_iou(extent(mask) * CELL, boxes).diagonal(),  # whether the mask fills its box from edge to edge
        area.log(),
        size.log().sum(dim=1),
        size[:, 0].log() - size[:, 1].log(),
        (boxes[:, 0] + boxes[:, 2]) / SIDE - 1,
        (boxes[:, 1] + boxes[:, 3]) / SIDE - 1,
        logits.amax(dim=1),
        -(classes * classes.clamp_min(1e-9).log()).sum(dim=1),
    ]
    return torch.stack(columns, dim=1)


def _total(pixels: Tensor) -> Tensor:
    return pixels.sum(dim=(1, 2)).float()


def extent(masks: Tensor) -> Tensor:
    """(N, 4) boxes around masks; those of empty masks are empty."""
    some = masks.flatten(1).any(dim=1)
    boxes = torch.zeros(len(masks), 4)
    boxes[some] = masks_to_boxes(masks[some]) + torch.tensor([0.0, 0.0, 1.0, 1.0])
    return boxes


def read_objects(data: Path, image_id: str, to_frame: Letterbox) -> tuple[Tensors, Tensor]:
    """The instances of an image, and where the image is void."""
    names = [data / folder / f"{image_id}.png" for folder in ("SegmentationObject", "SegmentationClass")]
    instances, classes = (torch.from_numpy(np.array(Image.open(name))) for name in names)
    values = [v for v in instances.unique().tolist() if v not in (0, VOID)]
    masks = torch.stack([instances == v for v in values]) if values else torch.zeros(0, *instances.shape, dtype=bool)
    labels = torch.tensor([int(classes[mask].mode().values) - 1 for mask in masks], dtype=torch.long)
    boxes, difficult = of_annotation(data, image_id, extent(masks), labels)
    small = shrink(instances, [*values, 0, VOID], to_frame)
    shift = torch.tensor([to_frame.left, to_frame.top] * 2)
    objects = {"labels": labels, "boxes": boxes * to_frame.scale + shift, "difficult": difficult, "masks": small[:-2]}
    return objects, small[-1]


def of_annotation(data: Path, image_id: str, around: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Box and flag of each instance: those of the object in the XML that it is; its own extent where there is none."""
    path = data / "Annotations" / f"{image_id}.xml"
    annotation = read_annotation(path, OwnFiles(data), report=lambda problem: None)
    boxes, difficult = around.clone(), torch.zeros(len(around), dtype=torch.bool)
    if annotation is not None and annotation.names and len(around):
        written = torch.from_numpy(continuous_from_devkit(annotation.devkit_boxes)).float()
        same = labels[:, None] == torch.tensor([VOC_CLASSES.index(name) for name in annotation.names])
        likeness = box_iou(around, written) * same
        rows, columns = (torch.from_numpy(side) for side in linear_sum_assignment(likeness.numpy(), maximize=True))
        known = likeness[rows, columns] > 0
        boxes[rows[known]] = written[columns[known]]
        difficult[rows[known]] = torch.from_numpy(annotation.difficult)[columns[known]]
    return boxes, difficult


def shrink(instances: Tensor, values: Sequence[int], to_frame: Letterbox) -> Tensor:
    """(values, 160, 160) pixels by the value that covers most of them; an instance that has none gets its best pixel."""
    size = [max(1, round(side * to_frame.scale)) for side in instances.shape]
    frame = torch.zeros(SIDE, SIDE)
    rows, columns = slice(to_frame.top, to_frame.top + size[0]), slice(to_frame.left, to_frame.left + size[1])
    frame[rows, columns] = F.interpolate(instances[None, None].float(), size, mode="nearest")[0, 0]
    share = torch.stack([F.avg_pool2d((frame == v).float()[None], CELL)[0] for v in values])
    owner = share.argmax(dim=0)
    for number in range(len(values) - 2):
        if not bool((owner == number).any()):
            owner.view(-1)[share[number].argmax()] = number
    return torch.stack([owner == number for number in range(len(values))])


def look_at(data: Path, image_id: str, network: Network, columns: Sequence[int]) -> Tensors:
    """All that is kept of an image."""
    square, to_frame = letterbox(image_to_tensor(read_image(data / "JPEGImages" / f"{image_id}.jpg")).float() / 255)
    windows = find_windows(network(square), columns)
    objects, void = read_objects(data, image_id, to_frame)
    masks = windows.pop("masks")
    return {
        **windows,
        "masks": torch.from_numpy(np.packbits(masks.numpy(), axis=-1)),
        "mask_iou": Masks()(masks & ~void, objects["masks"]).float(),
        "mask_iou_plain": Masks()(masks, objects["masks"]).float(),
        "box_iou": box_iou(windows["boxes"].double(), objects["boxes"].double()).float(),
        "object_masks": torch.from_numpy(np.packbits(objects.pop("masks").numpy(), axis=-1)),
        **{f"object_{name}": value for name, value in objects.items()},
    }


def fill(data: Path, cache: Path, split: str, network: Network, columns: Sequence[int]) -> None:
    """Make the files of a split that are not there yet."""
    cache.mkdir(parents=True, exist_ok=True)
    ids = (data / "ImageSets" / "Segmentation" / f"{split}.txt").read_text(encoding="utf-8").split()
    for first in range(0, len(ids), PART):
        file, found = cache / f"{split}-{first:05}.safetensors", {}
        if not file.exists():
            for image_id in ids[first : first + PART]:
                kept = look_at(data, image_id, network, columns)
                found |= {f"{image_id}/{name}": value.contiguous() for name, value in kept.items()}
            write_whole(file, save(found))
            print(file, flush=True)


def load(cache: Path, split: str, with_masks: bool = False) -> list[Tensors]:
    """The images of a split, by default without their masks."""
    images: dict[str, Tensors] = {}
    for file in sorted(cache.glob(f"{split}-*.safetensors")):
        for key, value in load_file(file).items():
            image_id, name = key.split("/")
            if with_masks or name not in ("masks", "object_masks"):
                images.setdefault(image_id, {})[name] = value.clone()
    return [images[image_id] for image_id in sorted(images)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--data", "--weights", "--cache"):
        parser.add_argument(name, type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    network, columns = load_network(options.weights)
    for split in ("train", "val"):
        fill(options.data, options.cache, split, network, columns)


if __name__ == "__main__":
    main()
