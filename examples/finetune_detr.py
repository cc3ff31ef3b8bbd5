"""Train a DETR of Hugging Face transformers with its own loss, then for mAP too: python examples/finetune_detr.py

The model is tiny and starts from random weights, so that this takes a minute. For real use, take one from
AutoModelForObjectDetection.from_pretrained(...).
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection, ResNetConfig

from stepgrad.data import ShapesDataset
from stepgrad.models.detr.transformers import train_for_map


def build_model() -> nn.Module:
    layers = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1], "layer_type": "basic"}
    backbone = ResNetConfig(**layers, out_features=["stage2"])
    small = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    shape = {"num_queries": 20, "num_feature_levels": 1, "auxiliary_loss": True, "with_box_refine": True}
    own = {"backbone_config": backbone, "backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False}
    return DeformableDetrForObjectDetection(DeformableDetrConfig(num_labels=6, **own, **small, **shape)).train()


def load(images: int, size: int = 96) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Pixels, and labels in DETR's format; for photographs, the model's image processor does this."""
    pixels, labels = [], []
    for image, target in (ShapesDataset("train", length=images, size=size)[i] for i in range(images)):
        corner, far = (target["boxes"] / size).split(2, dim=1)
        boxes = torch.cat([(corner + far) / 2, far - corner], dim=1)
        pixels.append(image.float() / 128 - 1)
        labels.append({"boxes": boxes, "class_labels": target["labels"], "difficult": target["difficult"]})
    return torch.stack(pixels), labels


def main(steps: int = 300, switch_at: int = 200, images: int = 32, batch: int = 8) -> list[float]:
    """mAP of the training batch at every step."""
    torch.manual_seed(0)
    model, (pixels, labels) = train_for_map(build_model(), weight=1.0, enabled=False), load(images)
    optimizer, maps = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for step in range(steps):
        model.map_loss_switch.enabled = step >= switch_at
        chosen = [(step * batch + i) % images for i in range(batch)]
        output = model(pixel_values=pixels[chosen], labels=[labels[i] for i in chosen])
        optimizer.zero_grad()
        output.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        maps.append(model.map_loss_switch.metrics["map"])
    return maps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    for step, value in list(enumerate(main(parser.parse_args().steps)))[::20]:
        print(f"step {step:3}: mAP of the training batch {value:.3f}")
