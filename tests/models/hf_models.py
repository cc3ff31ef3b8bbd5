"""Tiny DETR-style models of transformers with random weights, and labels for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

CLASSES = 3
QUERIES = 12
SIDE = 64


def _backbone(stages: int = 2) -> hf.PretrainedConfig:
    sizes = [8 * 2**i for i in range(stages)]
    return hf.ResNetConfig(
        embedding_size=8, hidden_sizes=sizes, depths=[1] * stages, layer_type="basic", out_features=[f"stage{stages}"]
    )


def _shared(**more: Any) -> dict[str, Any]:
    small = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return {**small, **heads, "num_labels": CLASSES, "num_queries": QUERIES, "auxiliary_loss": True, **more}


def _with_resnet(config: Any, model: Any, **more: Any) -> nn.Module:
    no_download = {"backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False}
    return model(config(backbone_config=_backbone(), **no_download, **_shared(**more)))


def detr() -> nn.Module:
    return _with_resnet(hf.DetrConfig, hf.DetrForObjectDetection)


def conditional_detr() -> nn.Module:
    return _with_resnet(hf.ConditionalDetrConfig, hf.ConditionalDetrForObjectDetection)


def deformable_detr() -> nn.Module:
    more = {"num_feature_levels": 1, "encoder_n_points": 2, "decoder_n_points": 2, "d_model": 32}
    return _with_resnet(hf.DeformableDetrConfig, hf.DeformableDetrForObjectDetection, **more)


def table_transformer() -> nn.Module:
    return _with_resnet(hf.TableTransformerConfig, hf.TableTransformerForObjectDetection)


def dab_detr() -> nn.Module:
    more = {"hidden_size": 16, "temperature_height": 20, "temperature_width": 20}
    return _with_resnet(hf.DabDetrConfig, hf.DabDetrForObjectDetection, **more)


def yolos() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    images = {"image_size": [SIDE, SIDE], "patch_size": 16, "num_detection_tokens": QUERIES}
    return hf.YolosForObjectDetection(hf.YolosConfig(**sizes, **images, num_labels=CLASSES))


def _real_time() -> dict[str, Any]:
    layers = {
        "encoder_hidden_dim": 16,
        "encoder_in_channels": [8, 16, 32],
        "feat_strides": [4, 8, 16],
        "encode_proj_layers": [2],
    }
    small = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "decoder_in_channels": [16, 16, 16], "d_model": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_layers": 2, "decoder_n_points": 2}
    return {**layers, **small, **heads, "num_queries": QUERIES, "num_denoising": 6, "num_labels": CLASSES}


def _three_maps() -> hf.PretrainedConfig:
    return hf.RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 32],
        depths=[1, 1, 1],
        layer_type="basic",
        out_features=["stage1", "stage2", "stage3"],
    )


def rt_detr() -> nn.Module:
    return hf.RTDetrForObjectDetection(hf.RTDetrConfig(backbone_config=_three_maps(), **_real_time()))


def rt_detr_v2() -> nn.Module:
    return hf.RTDetrV2ForObjectDetection(hf.RTDetrV2Config(backbone_config=_three_maps(), **_real_time()))


def d_fine() -> nn.Module:
    return hf.DFineForObjectDetection(hf.DFineConfig(backbone_config=_three_maps(), **_real_time()))


def deimv2() -> nn.Module:
    return hf.Deimv2ForObjectDetection(
        hf.Deimv2Config(backbone_config=_three_maps(), weight_loss_mal=2.0, **_real_time())
    )


def rf_detr() -> nn.Module:
    vit = hf.RfDetrDinov2Config(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=16,
        num_windows=1,
        out_features=["stage1", "stage2"],
    )
    return hf.RfDetrForObjectDetection(hf.RfDetrConfig(backbone_config=vit, **_grouped()))


def _grouped() -> dict[str, Any]:
    small = {"hidden_expansion": 0.5, "d_model": 16, "decoder_layers": 2, "decoder_ffn_dim": 16, "decoder_n_points": 2}
    heads = {"decoder_self_attention_heads": 2, "decoder_cross_attention_heads": 2}
    return {**small, **heads, "num_queries": QUERIES, "group_detr": 3, "num_labels": CLASSES}


def lw_detr() -> nn.Module:
    vit = hf.LwDetrViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        pretrain_image_size=SIDE,
        patch_size=8,
        window_block_indices=[],
        num_windows=4,
        out_indices=[1, 2],
        dropout_prob=0.0,
    )
    return hf.LwDetrForObjectDetection(
        hf.LwDetrConfig(backbone_config=vit, projector_scale_factors=[1.0], **_grouped())
    )


LATER = {d_fine: "DFineConfig", deimv2: "Deimv2Config", lw_detr: "LwDetrConfig", rf_detr: "RfDetrConfig"}
"""Models that the oldest transformers we take does not have, by what they are missed by."""
SOFTMAX = (detr, table_transformer, yolos)
SIGMOID = (
    *(conditional_detr, deformable_detr, dab_detr, rt_detr, rt_detr_v2),
    *(build for build, config in LATER.items() if hasattr(hf, config)),
)
MODELS = {build.__name__: build for build in (*SOFTMAX, *SIGMOID)}


def make(name: str, seed: int = 0) -> nn.Module:
    """A model in training mode, the same for the same seed; skips the test where this transformers does not have it."""
    if name not in MODELS:
        pytest.skip(f"transformers {hf.__version__} has no {name}")
    torch.manual_seed(seed)
    return MODELS[name]().train()


def batch(seed: int = 0, images: int = 2) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Pixels, and labels as the image processors give them; the last image has no objects if there are more than two."""
    generator = torch.Generator().manual_seed(seed)
    counts = [3 if i < 2 else 0 for i in range(images)]
    return torch.rand(images, 3, SIDE, SIDE, generator=generator), [_label(count, generator) for count in counts]


def _label(objects: int, generator: torch.Generator) -> dict[str, Tensor]:
    centre = 0.3 + 0.4 * torch.rand(objects, 2, generator=generator)
    size = 0.2 + 0.4 * torch.rand(objects, 2, generator=generator)
    return {
        "boxes": torch.cat([centre, size], dim=1),
        "class_labels": torch.randint(CLASSES, (objects,), generator=generator),
        "orig_size": torch.tensor([480, 640]),
    }
