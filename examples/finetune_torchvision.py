"""Fine-tune torchvision's Faster R-CNN for mAP on the built-in `shapes`: python examples/finetune_torchvision.py --pretrained

The new box predictor first learns with the model's own loss; then mAP joins it. The loop does not change.
"""

from __future__ import annotations

import argparse

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor

import stepgrad as sg
from stepgrad.data import ShapesDataset
from stepgrad.integrations.torchvision import restore, train_for_map


def main(steps: int = 400, images: int = 4, lr: float = 5e-3, pretrained: bool = False, seed: int = 0) -> float:
    """mAP on images the model has not seen."""
    torch.manual_seed(seed)
    train, val = ShapesDataset("train"), ShapesDataset("val", length=max(images, steps // 4))
    weights = "DEFAULT" if pretrained else None
    model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=weights, weights_backbone=None, box_batch_size_per_image=128)
    model.roi_heads.box_predictor = FastRCNNPredictor(1024, len(train.class_names) + 1)
    train_for_map(model, mode="mix", protocol="voc12", enabled=False)

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr, momentum=0.9)
    model.train()
    for step in range(steps):
        model.map_loss_switch.enabled = step >= steps // 2
        pairs = [train[int(i)] for i in torch.randint(len(train), (images,))]
        pictures = [image / 255 for image, _ in pairs]
        targets = [{**target, "labels": target["labels"] + 1} for _, target in pairs]  # 0 is background
        losses = model(pictures, targets)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, steps // 10) == 0:
            parts = ", ".join(f"{name} {float(loss.detach()):.3f}" for name, loss in losses.items())
            print(f"step {step}: mAP of the batch {model.map_loss_switch.metrics['map']:.3f}; {parts}")

    restore(model).eval()  # a stock model again; its weights would load into one anyway
    evaluator = sg.Evaluator(len(train.class_names), ["voc12", "coco"], train.class_names)
    for image, target in val:
        with torch.no_grad():
            (found,) = model([image / 255])
        evaluator.update([{**found, "labels": found["labels"] - 1}], [target])
    return evaluator.compute().map


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--images", type=int, default=4, help="number of images per step")
    parser.add_argument("--pretrained", action="store_true", help="start from torchvision's COCO weights")
    args = parser.parse_args()
    print(f"unseen images: mAP {main(args.steps, args.images, pretrained=args.pretrained):.3f}")
