"""The windows that the demo's detector finds in `shapes`, with masks, keypoints and oriented boxes that branches draw for them.

    python -m experiments.overlaps.windows --cache DIR    # goes on where it was stopped; some minutes of a core

The branches (`branches.py`) are trained first, on 1,000 images of their own and the detector's frozen features, and then frozen,
too. What a new class head sees of a window: the features of its place, as in `experiments.endless.windows`, what the branches
make of it, how sure its mask is, and the box's place and size; not the detector's class scores. Windows are compared with the
objects by all four overlaps: IoU of boxes, of masks, and of oriented boxes, and OKS with sigmas of 0.1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor
from torchvision.ops import box_iou

from experiments.endless.windows import Found, find
from experiments.masks.windows import Tensors
from experiments.overlaps.branches import (
    Branches,
    Drawn,
    Wanted,
    loss,
    masks_of,
    oriented_of,
    points_of,
    pool,
    sizes,
    wanted,
)
from stepgrad.data import ShapesDataset
from stepgrad.files import write_whole
from stepgrad.models.demo.detector import SIZE, trained_ssd
from stepgrad.overlaps import Keypoints, Masks, Rotated

WINDOWS = 60  # per image
PART = 200  # images per file
SETS = {"train": ("train", 800, 7), "val": ("test", 800, 0)}
"""Split, number of images and seed: "train" is what heads learn from, "val" what they are judged by."""
BRANCHES = (1000, 8)
"""Images and seed of what the branches learn from."""
EPOCHS, BATCH, RATE = 10, 256, 2e-3
SIGMAS = (0.1,) * 4
SEEN = 0.9
"""An object of which less is to be seen counts as hidden."""


def target_of(data: ShapesDataset, index: int) -> Tensors:
    """All shapes of the objects of an image."""
    scene = data.scene(index)
    seen = [part.seen.sum() / part.placed.mask.sum() for part in scene.parts]
    return {
        "boxes": torch.from_numpy(scene.boxes),
        "labels": torch.from_numpy(scene.labels),
        "difficult": torch.from_numpy(scene.difficult),
        "hidden": torch.tensor(np.array(seen) < SEEN, dtype=torch.bool).reshape(-1),
        "masks": torch.from_numpy(scene.masks()),
        "keypoints": torch.from_numpy(scene.keypoints()),
        "oriented": torch.from_numpy(scene.oriented()),
    }


@torch.no_grad()
def look(model: Any, data: ShapesDataset) -> Iterator[tuple[Found, Tensors]]:
    """What the detector finds in each image, and what is there."""
    for index in range(len(data)):
        (found,) = find(model, [data[index][0].float() / 255], WINDOWS)
        yield found, target_of(data, index)


def train_branches(model: Any, images: int, seed: int) -> Branches:
    """Branches that draw the shapes of windows on objects."""
    parts: list[tuple[Tensor, Wanted]] = []
    for found, target in look(model, ShapesDataset("train", images, seed=seed)):
        rows, shapes = wanted(found.boxes, target)
        parts.append((pool(found.finest, found.boxes[rows]).half(), shapes))
    pooled = torch.cat([part for part, _ in parts])
    shapes = Wanted(*(torch.cat(column) for column in zip(*(each for _, each in parts), strict=True)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        branches = Branches()
    steps = EPOCHS * (len(pooled) // BATCH)
    optimizer = torch.optim.AdamW(branches.parameters(), RATE, weight_decay=0.01)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        rows = torch.randint(len(pooled), (BATCH,), generator=generator)
        value = loss(branches(pooled[rows].float()), Wanted(*(column[rows] for column in shapes)))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        decay.step()
        if step % 200 == 0:
            print(f"branches: step {step} of {steps}, loss {value.item():.3f}", flush=True)
    return branches.eval().requires_grad_(False)


def load_branches(model: Any, file: Path) -> Branches:
    """The trained branches; those that are not on disk are trained first."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(train_branches(model, *BRANCHES).state_dict(), file)
    branches = Branches()
    branches.load_state_dict(load_file(file))
    return branches.eval().requires_grad_(False)


def surety(drawn: Drawn, boxes: Tensor) -> Tensor:
    """(N, F) what the shapes say of themselves, and the box's place and size."""
    probability = drawn.mask.flatten(1).sigmoid()
    inside = probability > 0.5
    area = inside.sum(dim=1).clamp_min(1)
    columns = [
        (probability * inside).sum(dim=1) / area,
        probability.mean(dim=1),
        inside.float().mean(dim=1),
        ((probability > 0.2) & (probability < 0.8)).float().mean(dim=1),
        *drawn.points.flatten(1).unbind(1),
        *drawn.oriented.unbind(1),
        *(boxes / SIZE).unbind(1),
        *(sizes(boxes) / SIZE).log().unbind(1),
    ]
    return torch.stack(columns, dim=1)


@torch.no_grad()
def look_at(found: Found, target: Tensors, branches: Branches) -> Tensors:
    """All that is kept of an image."""
    boxes = found.boxes
    drawn = branches(pool(found.finest, boxes))
    return {
        "boxes": boxes,
        "logits": found.scores,
        "features": torch.cat([found.features, drawn.hidden, surety(drawn, boxes)], dim=1).half(),
        "box_iou": box_iou(boxes.double(), target["boxes"]).float(),
        "mask_iou": Masks()(masks_of(drawn, boxes), target["masks"]).float(),
        "oks": Keypoints(SIGMAS)(points_of(drawn, boxes), target).float(),
        "rotated_iou": Rotated()(oriented_of(drawn, boxes), target["oriented"]).float(),
        **{f"object_{name}": target[name] for name in ("boxes", "labels", "difficult", "hidden")},
    }


def fill(cache: Path, split: str, model: Any, branches: Branches) -> None:
    """Make the files of a split that are not there yet."""
    name, images, seed = SETS[split]
    data = ShapesDataset(name, images, seed=seed)
    for first in range(0, images, PART):
        file = cache / f"{split}-{first:05}.safetensors"
        if file.exists():
            continue
        part = ShapesDataset(name, images, seed=seed)
        part.ids = data.ids[first : first + PART]
        kept: Tensors = {}
        for number, (found, target) in enumerate(look(model, part), first):
            kept |= {f"{number:05}/{key}": v.contiguous() for key, v in look_at(found, target, branches).items()}
        write_whole(file, save(kept))
        print(file, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = trained_ssd()
    branches = load_branches(model, options.cache / "branches.safetensors")
    for split in SETS:
        fill(options.cache, split, model, branches)


if __name__ == "__main__":
    main()
