"""Fine-tune SSDlite for mAP on your own COCO json: python examples/finetune_coco_folder.py FOLDER --pretrained

FOLDER holds annotations/*.json and the images. Any json with images, categories and annotations works.
The weights it writes load into a stock torchvision model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

from stepgrad.data import load_dataset
from stepgrad.models.torchvision import train_for_map


def main(
    folder: Path, out: Path, steps: int = 500, images: int = 8, lr: float = 1e-3, pretrained: bool = False
) -> float:
    """Mean mAP of the last batches, under the `coco` protocol."""
    data = load_dataset(folder, degenerate="drop")
    model = ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone="DEFAULT" if pretrained else None, num_classes=len(data.class_names) + 1
    )
    train_for_map(model, protocol="coco", enabled=False)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    reached = []
    for step in range(steps):
        model.map_loss_switch.enabled = step >= steps // 2  # the model's own loss first, then mAP as well
        pairs = [data[int(i)] for i in torch.randint(len(data), (images,))]
        losses = model([image / 255 for image, _ in pairs], [for_torchvision(target) for _, target in pairs])
        optimizer.zero_grad()
        sum(losses.values()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        reached.append(model.map_loss_switch.metrics["map"])
        print(f"step {step}: mAP of the batch {reached[-1]:.3f}")
    torch.save(model.state_dict(), out)
    return sum(reached[-20:]) / len(reached[-20:])


def for_torchvision(target: dict) -> dict:
    """Classes counted from 1, as 0 is background."""
    return {"boxes": target["boxes"], "labels": target["labels"] + 1, "iscrowd": target["iscrowd"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("model.pt"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--pretrained", action="store_true", help="start from ImageNet weights")
    args = parser.parse_args()
    print(f"mAP at the end: {main(args.folder, args.out, args.steps, args.images, pretrained=args.pretrained):.3f}")
