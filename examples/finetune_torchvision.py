"""Fine-tune torchvision's Faster R-CNN for mAP on the built-in `shapes`: python examples/finetune_torchvision.py --pretrained

The new box predictor first learns with the model's own loss; then mAP is added. The weights that are best on held-out images
are kept. --control also trains for as many steps without mAP, and keeps the better of the two.
"""

from __future__ import annotations

import argparse

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor

from stepgrad.data import ShapesDataset
from stepgrad.models.torchvision import keep_best, train_for_map

Batch = tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]


def batch(data: ShapesDataset, chosen: list[int]) -> Batch:
    """Images and targets as torchvision's detectors take them."""
    pairs = [data[i] for i in chosen]
    return [image / 255 for image, _ in pairs], [{**target, "labels": target["labels"] + 1} for _, target in pairs]


def main(steps: int = 400, images: int = 4, lr: float = 5e-3, pretrained: bool = False, control: bool = False) -> str:
    """Which weights were kept, and what mAP they have on held-out images."""
    torch.manual_seed(0)
    train, val = ShapesDataset("train"), ShapesDataset("val", length=max(images, steps // 4))
    weights = "DEFAULT" if pretrained else None
    model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=weights, weights_backbone=None, box_batch_size_per_image=128)
    model.roi_heads.box_predictor = FastRCNNPredictor(1024, len(train.class_names) + 1)
    train_for_map(model, protocol="voc12", enabled=False).train()
    best = keep_best(model, [batch(val, [i]) for i in range(len(val))], every=max(1, steps // 8))

    def loop() -> None:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr, momentum=0.9)
        for step in range(steps):
            model.map_loss_switch.enabled = step >= steps // 2
            losses = model(*batch(train, torch.randint(len(train), (images,)).tolist()))
            optimizer.zero_grad()
            sum(losses.values()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            best.step()
            if step % max(1, steps // 10) == 0:
                parts = ", ".join(f"{name} {float(loss.detach()):.3f}" for name, loss in losses.items())
                print(f"step {step}: mAP of the batch {model.map_loss_switch.metrics['map']:.3f}; {parts}")

    return best.train(loop, control=control)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--images", type=int, default=4, help="number of images per step")
    parser.add_argument("--pretrained", action="store_true", help="start from torchvision's COCO weights")
    parser.add_argument("--control", action="store_true", help="also train for as many steps without mAP")
    args = parser.parse_args()
    print(main(args.steps, args.images, pretrained=args.pretrained, control=args.control))
