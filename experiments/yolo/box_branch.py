"""YOLOv8n's box branch trained for pictures that COCO has none of, once, before any class head is.

    python -m experiments.yolo.box_branch --data DIR --cache DIR      # VisDrone: some fifteen minutes

The trunk stays as it is. The branch learns as in YOLOv8, CIoU and the distribution of distances, on the ten places in an object
whose boxes fit it best; a new output beside the distances learns how well a place's box fits any object, whatever its class.
By that output, not by COCO's classes, the windows are chosen that class heads rank. Places in ignored regions learn nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_iou, complete_box_iou_loss

from experiments.yolo.network import BINS, GREY, STRIDES, WEIGHTS, YOLOv8n, load
from stepgrad.data import DetectionDataset, load_dataset
from stepgrad.files import write_whole
from stepgrad.progress import RichProgress

FILE = "box_branch.safetensors"
EPOCHS = 6
IMAGES_PER_STEP = 8
RATE = 1e-3
PLACES_PER_OBJECT = 10
CIOU_SHARE, DISTANCES_SHARE = 7.5, 1.5  # YOLOv8's


class Places(NamedTuple):
    """All places of one image."""

    boxes: Tensor  # (A, 4) in pixels
    distances: Tensor  # (A, 4, 16) logits
    fit: Tensor  # (A,) logit of how well the box fits an object
    centre: Tensor  # (A, 2) in pixels
    stride: Tensor  # (A,)


class BoxBranch(nn.Module):
    """The box branch of all strides, with its new output."""

    def __init__(self, network: YOLOv8n) -> None:
        super().__init__()
        branch = network.model["22"].get_submodule("cv2")
        self.levels = nn.ModuleList(nn.Sequential(*level[:2]) for level in branch)  # type: ignore[arg-type, index]
        self.distances = nn.ModuleList(level[2] for level in branch)  # type: ignore[arg-type, index]
        self.fit = nn.ModuleList(nn.Conv2d(64, 1, 1) for _ in STRIDES)
        for layer in self.fit:
            nn.init.constant_(layer.bias, -4.0)  # type: ignore[arg-type]

    def forward(self, pyramid: Sequence[Tensor]) -> Places:
        parts = [self._level(n, x) for n, x in enumerate(pyramid)]
        return Places(*(torch.cat(kind) for kind in zip(*parts, strict=True)))

    def _level(self, n: int, x: Tensor) -> Places:
        seen = self.levels[n](x)
        distances = self.distances[n](seen)[0].flatten(1).T.unflatten(1, (4, BINS))
        far = distances.softmax(dim=2) @ torch.arange(BINS, dtype=x.dtype)
        ys, xs = (torch.arange(size, dtype=x.dtype) + 0.5 for size in x.shape[-2:])
        centre = torch.stack(torch.meshgrid(ys, xs, indexing="ij")[::-1], dim=-1).flatten(0, 1)
        boxes = torch.cat([centre - far[:, :2], centre + far[:, 2:]], dim=1) * STRIDES[n]
        stride = torch.full((len(boxes),), float(STRIDES[n]))
        return Places(boxes, distances, self.fit[n](seen)[0].flatten(), centre * STRIDES[n], stride)


def padded(image: Tensor) -> Tensor:
    """(1, 3, H, W) of an image in [0, 255]: grey below and on the right, sides multiples of 32."""
    height, width = image.shape[-2:]
    return F.pad(image[None].float() / 255, (0, -width % STRIDES[-1], 0, -height % STRIDES[-1]), value=GREY)


def assigned(places: Places, objects: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Places that learn an object's box, the number of that object, and the IoU reached so far."""
    left = (places.centre[:, None] - objects[:, :2]) / places.stride[:, None, None]
    right = (objects[:, 2:] - places.centre[:, None]) / places.stride[:, None, None]
    far = torch.cat([left, right], dim=2)
    within = (far.amin(dim=2) > 0.0) & (far.amax(dim=2) < BINS - 1)
    overlap = box_iou(places.boxes.detach(), objects)
    value = torch.where(within, overlap + 1e-6, 0.0)
    best = value.topk(min(PLACES_PER_OBJECT, len(value)), dim=0)
    chosen = torch.zeros_like(value).scatter(0, best.indices, best.values)
    reached, which = chosen.max(dim=1)
    rows = (reached > 0.0).nonzero().flatten()
    return rows, which[rows], overlap[rows, which[rows]]


def loss_of(places: Places, target: Any) -> Tensor:
    """CIoU, distances and fit, by the number of places with an object."""
    ignored = target["iscrowd"].bool()
    objects, regions = target["boxes"][~ignored].float(), target["boxes"][ignored].float()
    wanted = torch.zeros(len(places.fit))
    total = places.fit.sum() * 0.0
    count = 1
    if len(objects):
        rows, which, overlap = assigned(places, objects)
        count, wanted[rows] = max(len(rows), 1), overlap
        boxes = objects[which]
        total = total + CIOU_SHARE * complete_box_iou_loss(places.boxes[rows], boxes, reduction="sum")
        total = total + DISTANCES_SHARE * _distances_loss(places, rows, boxes)
    in_region = (places.centre[:, None] >= regions[:, :2]) & (places.centre[:, None] <= regions[:, 2:])
    judged = ~in_region.all(dim=2).any(dim=1) | (wanted > 0.0)
    fit = F.binary_cross_entropy_with_logits(places.fit, wanted, reduction="none")
    return (total + fit[judged].sum()) / count


def _distances_loss(places: Places, rows: Tensor, boxes: Tensor) -> Tensor:
    """Cross-entropy with the two bins beside the distance, by nearness; summed over places, mean of the four sides."""
    centre, stride = places.centre[rows], places.stride[rows, None]
    far = torch.cat([centre - boxes[:, :2], boxes[:, 2:] - centre], dim=1) / stride
    far = far.clamp(0.0, BINS - 1.01)
    below = far.long()
    share = far - below
    logits = places.distances[rows].flatten(0, 1)
    near = F.cross_entropy(logits, below.flatten(), reduction="none") * (1.0 - share.flatten())
    next_one = F.cross_entropy(logits, below.flatten() + 1, reduction="none") * share.flatten()
    return (near + next_one).sum() / 4


def orders(count: int, epochs: int) -> Iterator[list[int]]:
    """The images of each step."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator).tolist()
        yield from (order[i : i + IMAGES_PER_STEP] for i in range(0, count - IMAGES_PER_STEP + 1, IMAGES_PER_STEP))


def train(network: YOLOv8n, dataset: DetectionDataset, progress: Any) -> BoxBranch:
    """The branch, trained on a dataset."""
    with torch.no_grad(), progress.stage("the trunk's features", len(dataset)) as tick:
        pyramids = []
        for i in range(len(dataset)):
            pyramids.append([x.half() for x in network.pyramid(padded(dataset[i][0]))])
            tick()
    torch.manual_seed(0)
    branch = BoxBranch(network).requires_grad_(True)
    optimizer = torch.optim.AdamW(branch.parameters(), RATE, weight_decay=0.01)
    steps = list(orders(len(dataset), EPOCHS))
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(steps))
    with progress.stage("the box branch", len(steps)) as tick:
        for chosen in steps:
            optimizer.zero_grad()
            for i in chosen:
                places = branch([x.float() for x in pyramids[i]])
                (loss_of(places, dataset.target(i)) / len(chosen)).backward()
            nn.utils.clip_grad_norm_(branch.parameters(), 10.0)
            optimizer.step()
            decay.step()
            tick()
    return branch.eval().requires_grad_(False)


def load_branch(network: YOLOv8n, file: Path) -> BoxBranch:
    """A branch that was trained before."""
    branch = BoxBranch(network)
    branch.load_state_dict(load_file(file))
    return branch.eval().requires_grad_(False)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    dataset = load_dataset(options.data / "VisDrone-640", "train")
    with RichProgress() as progress:
        branch = train(load(options.data / WEIGHTS), dataset, progress)
    options.cache.mkdir(parents=True, exist_ok=True)
    write_whole(options.cache / FILE, save(branch.state_dict()))


if __name__ == "__main__":
    main()
