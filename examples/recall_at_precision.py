"""Train torchvision's Faster R-CNN for recall at precision 0.95, instead of mAP, on the built-in `shapes`.

python examples/recall_at_precision.py --pretrained
"""

from __future__ import annotations

import argparse

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor

import stepgrad as sg
from stepgrad.data import ShapesDataset
from stepgrad.models.torchvision import keep_best, train_for_map

Batch = tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]


def batch(data: ShapesDataset, chosen: list[int]) -> Batch:
    """Images and targets as torchvision's detectors take them."""
    pairs = [data[i] for i in chosen]
    return [image / 255 for image, _ in pairs], [{**target, "labels": target["labels"] + 1} for _, target in pairs]


def main(steps: int = 400, images: int = 4, lr: float = 5e-3, pretrained: bool = False) -> str:
    """Which weights were kept, and their recall at precision 0.95 on held-out images."""
    torch.manual_seed(0)
    train, val = ShapesDataset("train"), ShapesDataset("val", length=max(images, steps // 4))
    weights = "DEFAULT" if pretrained else None
    model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=weights, weights_backbone=None, box_batch_size_per_image=128)
    model.roi_heads.box_predictor = FastRCNNPredictor(1024, len(train.class_names) + 1)
    # The metric is the only thing that differs from training for mAP.
    loss_fn = sg.DetectionLoss(
        len(train.class_names), sg.metrics.RecallAtPrecision(0.95), nms_threshold=model.roi_heads.nms_thresh
    )
    train_for_map(model, loss_fn=loss_fn, enabled=False).train()
    best = keep_best(model, [batch(val, [i]) for i in range(len(val))], every=max(1, steps // 8))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr, momentum=0.9)
    for step in range(steps):
        model.map_loss_switch.enabled = step >= steps // 2  # the model's own loss first
        losses = model(*batch(train, torch.randint(len(train), (images,)).tolist()))
        optimizer.zero_grad()
        sum(losses.values()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        best.step()
        if step % max(1, steps // 10) == 0:
            print(f"step {step}: recall at precision 0.95 in the batch {loss_fn.metrics['value']:.3f}")
    return best.restore()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pretrained", action="store_true", help="start from torchvision's COCO weights")
    args = parser.parse_args()
    print(main(args.steps, pretrained=args.pretrained))
