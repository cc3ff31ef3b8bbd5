"""The windows that YOLO11n-pose finds in the Leeds Sports Pose images, kept on disk.

    python -m experiments.poses.windows --data LSP --weights yolo11n-pose.onnx --cache DIR   # goes on where it was stopped

Needs onnx and onnxruntime. LSP is the extended training set (Johnson and Everingham 2011; public repository `axelcarlier/lsp`):
10,000 photographs of athletes with `joints.mat`. Trained on 1,500 of the first 5,000, judged on 1,500 of the others, since
neighbours may be of one occasion. Twelve of its 14 joints are COCO's; the five keypoints of the face count as not labelled. A
person has the box around its joints, a tenth larger to each side, and 0.53 of that as area, as ultralytics has it.

Only one person per image is annotated. So of the sixty surest windows those stay whose boxes overlap that person's by a tenth:
what is elsewhere is neither right nor wrong. Per window: box, logit, keypoints with their visibility, the features before the
last class layer, and statistics; everything in the network's frame of 640 x 640 pixels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from scipy.io import loadmat
from torch import Tensor
from torchvision.ops import box_iou

from experiments.masks.windows import CLASS_FEATURES, LOGITS, Tensors
from experiments.yolo.windows import SIDE, Letterbox, letterbox
from stepgrad.data.images import image_to_tensor, read_image
from stepgrad.files import write_whole
from stepgrad.overlaps import Keypoints

WINDOWS = 60  # per image, before those elsewhere go
PART = 100  # images per file
IMAGES = 1500  # per split
NEAR = 0.1  # box IoU with the annotated person
LEAST_JOINTS = 6
AREA = 0.53  # of a person in its box
COCO_OF_LSP = (16, 14, 12, 11, 13, 15, 10, 8, 6, 5, 7, 9)
"""COCO's keypoint of each of LSP's first twelve joints, from the right ankle to the left wrist; then come neck and head."""

Network = Callable[[Tensor], list[Tensor]]


def load_network(weights: Path) -> Network:
    """Boxes with scores and keypoints, logits, and class features by level, of an image in the frame."""
    import onnx
    import onnxruntime

    model = onnx.load(weights)
    for name in (LOGITS, *CLASS_FEATURES):
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(square: Tensor) -> list[Tensor]:
        return [torch.from_numpy(out[0]) for out in session.run(None, {"images": square[None].numpy()})]

    return run


def find_windows(outputs: Sequence[Tensor]) -> Tensors:
    """The surest windows of one image."""
    found, logits, *features = outputs
    best = logits[0].topk(WINDOWS).indices.sort().values
    centre, size = found[:2, best].T, found[2:4, best].T
    boxes = torch.cat([centre - size / 2, centre + size / 2], dim=1).clamp(0, SIDE)
    points = found[5:, best].T.reshape(len(best), -1, 3)
    level = torch.repeat_interleave(torch.arange(3), torch.tensor([f[0].numel() for f in features]))
    return {
        "boxes": boxes,
        "logits": logits[:, best].T,
        "keypoints": points,
        "features": torch.cat([f.flatten(1) for f in features], dim=1)[:, best].T.half(),
        "level": level[best],
        "statistics": statistics(points, boxes, logits[0, best]),
    }


def statistics(points: Tensor, boxes: Tensor, logits: Tensor) -> Tensor:
    """(N, F) what is known of a window without looking at the objects; the logit comes last."""
    sure = points[:, :, 2].sort(dim=1).values
    size = (boxes[:, 2:] - boxes[:, :2]).clamp_min(1)
    around = torch.cat([points[:, :, :2].amin(dim=1), points[:, :, :2].amax(dim=1)], dim=1)
    place = (points[:, :, :2] - boxes[:, None, :2]) / size[:, None]  # of the keypoints in the box
    columns = [
        place.flatten(1),
        points[:, :, 2],
        sure[:, [0, 4, 8, 12, 16]],
        sure.mean(dim=1, keepdim=True),
        box_iou(around, boxes).diagonal()[:, None],
        (size / SIDE).log(),
        (size[:, :1] / size[:, 1:]).log(),
        boxes / SIDE,
        logits[:, None],
    ]
    return torch.cat(columns, dim=1)


def read_objects(joints: Tensor, to_frame: Letterbox) -> Tensors | None:
    """The person of an image, from its (14, 3) joints; None: too few of them are labelled."""
    seen = joints[:, 2] > 0
    if int(seen[: len(COCO_OF_LSP)].sum()) < LEAST_JOINTS:
        return None
    places = joints[:, :2] * to_frame.scale + torch.tensor([to_frame.left, to_frame.top])
    low, high = places[seen].amin(dim=0), places[seen].amax(dim=0)
    more = (high - low) / 10
    box = torch.cat([low - more, high + more]).clamp(0, SIDE)
    points = torch.zeros(17, 3)
    points[list(COCO_OF_LSP)] = torch.cat([places, 2.0 * seen[:, None]], dim=1)[: len(COCO_OF_LSP)]
    points[points[:, 2] == 0] = 0
    area = (box[2:] - box[:2]).prod() * AREA
    return {
        "boxes": box[None].float(),
        "keypoints": points[None],
        "area": area[None].float(),
        "labels": torch.zeros(1, dtype=torch.long),
        "difficult": torch.zeros(1, dtype=torch.bool),
    }


def look_at(photo: Path, joints: Tensor, network: Network) -> Tensors | None:
    """All that is kept of an image."""
    square, to_frame = letterbox(image_to_tensor(read_image(photo)).float() / 255)
    objects = read_objects(joints, to_frame)
    if objects is None:
        return None
    windows = find_windows(network(square))
    overlap = box_iou(windows["boxes"].double(), objects["boxes"].double())
    near = overlap[:, 0] >= NEAR
    windows = {name: value[near] for name, value in windows.items()}
    return {
        **windows,
        "oks": Keypoints()(windows["keypoints"][:, :, :2], objects).float(),
        "box_iou": overlap[near].float(),
        **{f"object_{name}": value for name, value in objects.items()},
    }


def fill(data: Path, cache: Path, split: str, network: Network) -> None:
    """Make the files of a split that are not there yet."""
    cache.mkdir(parents=True, exist_ok=True)
    joints = torch.from_numpy(loadmat(data / "joints.mat")["joints"]).float().permute(2, 0, 1)  # (images, 14, 3)
    half = len(joints) // 2
    first_id = 0 if split == "train" else half
    ids = (np.random.default_rng(0).permutation(half)[:IMAGES] + first_id).tolist()
    for first in range(0, len(ids), PART):
        file, found = cache / f"{split}-{first:05}.safetensors", {}
        if file.exists():
            continue
        for number in ids[first : first + PART]:
            kept = look_at(data / "images" / f"im{number + 1:05}.jpg", joints[number], network)
            if kept is not None:
                found |= {f"{number:05}/{name}": value.contiguous() for name, value in kept.items()}
        write_whole(file, save(found))
        print(file, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--data", "--weights", "--cache"):
        parser.add_argument(name, type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    network = load_network(options.weights)
    for split in ("train", "val"):
        fill(options.data, options.cache, split, network)


if __name__ == "__main__":
    main()
