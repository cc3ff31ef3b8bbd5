"""What a training step for mAP costs, next to the stock model's.

    python -m benchmarks.drop_in                    # some ten minutes; writes results/drop_in.{json,md}
    python -m benchmarks.drop_in --only retinanet   # one family, printed only

Forward and backward of stock torchvision models with random weights, 20 classes, five objects per image. Stock, "mix" and
"replace" take turns in every round. Two-stage models at the size of their name; RetinaNet and FCOS at 100,000 anchors, FCOS
with a small backbone, since it has one anchor a cell and would need an image of 2,200 pixels.
"""

from __future__ import annotations

import argparse
import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from benchmarks.report import heading, kept, write
from benchmarks.timing import interleaved, machine
from experiments.records import table
from stepgrad.models.torchvision import train_for_map

CLASSES = 20
OBJECTS = 5


@dataclass(frozen=True)
class Case:
    """A model, the pictures it is fed, and the ratio promised."""

    model: Callable[[], nn.Module]
    size: int
    images: int
    target: float
    first_label: int = 1


class Pyramid(nn.Module):
    """Features of few channels at strides 8 to 128."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 7, 8, 3)
        self.down = nn.ModuleList(nn.Conv2d(channels, channels, 3, 2, 1) for _ in range(4))
        self.out_channels = channels

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        levels = [torch.relu(self.stem(x))]
        for layer in self.down:
            levels.append(torch.relu(layer(levels[-1])))
        return OrderedDict((str(i), level) for i, level in enumerate(levels))


def faster_rcnn_mobilenet() -> nn.Module:
    return detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=CLASSES + 1, trainable_backbone_layers=6
    )


def faster_rcnn_resnet() -> nn.Module:
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    return detection.FasterRCNN(backbone, CLASSES + 1, min_size=512, max_size=512)


def mask_rcnn_resnet() -> nn.Module:
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    return detection.MaskRCNN(backbone, CLASSES + 1, min_size=320, max_size=320)


def retinanet() -> nn.Module:
    backbone = resnet_fpn_backbone(
        backbone_name="resnet18",
        weights=None,
        trainable_layers=5,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    return detection.RetinaNet(backbone, CLASSES, min_size=736, max_size=736)


def fcos() -> nn.Module:
    anchors = AnchorGenerator(((8,), (16,), (32,), (64,), (128,)), ((1.0,),) * 5)
    return detection.FCOS(Pyramid(), CLASSES, anchor_generator=anchors, min_size=2208, max_size=2208)


def ssd() -> nn.Module:
    return detection.ssd300_vgg16(
        weights=None, weights_backbone=None, num_classes=CLASSES + 1, trainable_backbone_layers=5
    )


def ssdlite() -> nn.Module:
    return detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=CLASSES + 1, trainable_backbone_layers=6
    )


CASES = {
    "faster_rcnn mobilenet 320": Case(faster_rcnn_mobilenet, 320, 2, 1.15),
    "faster_rcnn resnet18 512": Case(faster_rcnn_resnet, 512, 2, 1.15),
    "mask_rcnn resnet18 320": Case(mask_rcnn_resnet, 320, 2, 1.15),
    "retinanet resnet18 736": Case(retinanet, 736, 1, 1.3, 0),
    "fcos small 2208": Case(fcos, 2208, 1, 1.3, 0),
    "ssd300_vgg16": Case(ssd, 300, 2, 1.3),
    "ssdlite320": Case(ssdlite, 320, 4, 1.3),
}


def pictures(case: Case, seed: int = 0) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Noise, and objects of a tenth to a third of its side."""
    g = torch.Generator().manual_seed(seed)
    images = [torch.rand(3, case.size, case.size, generator=g) for _ in range(case.images)]
    targets = []
    for _ in range(case.images):
        sides = (0.1 + 0.23 * torch.rand(OBJECTS, 2, generator=g)) * case.size
        corner = torch.rand(OBJECTS, 2, generator=g) * (case.size - sides)
        boxes = torch.cat([corner, corner + sides], dim=1)
        labels = torch.randint(0, CLASSES, (OBJECTS,), generator=g) + case.first_label
        masks = torch.ones(OBJECTS, case.size, case.size, dtype=torch.uint8)
        targets.append({"boxes": boxes, "labels": labels, "masks": masks})
    return images, targets


def step(model: nn.Module, images: list[Tensor], targets: list[dict[str, Tensor]]) -> Callable[[], None]:
    """One forward and backward pass, the same windows sampled each time."""

    def run() -> None:
        torch.manual_seed(0)
        model.zero_grad(set_to_none=True)
        torch.stack(list(model(images, targets).values())).sum().backward()

    return run


def measure(name: str, case: Case, rounds: int) -> dict[str, Any]:
    """Seconds of a step, stock and for mAP."""
    torch.manual_seed(0)
    stock = case.model().train()
    images, targets = pictures(case)
    models = {
        "stock": stock,
        "mix": train_for_map(copy.deepcopy(stock), mode="mix", weight=1.0),
        "replace": train_for_map(copy.deepcopy(stock), mode="replace", weight=1.0),
    }
    found = interleaved({key: step(model, images, targets) for key, model in models.items()}, rounds)
    base = found["stock"].median
    return {
        "family": name,
        "images": case.images,
        "size": case.size,
        "anchors": anchors_of(stock, images),
        "target": case.target,
        "ratio": {key: found[key].median / base for key in ("mix", "replace")},
        **{key: asdict(timing) for key, timing in found.items()},
    }


def anchors_of(model: nn.Module, images: list[Tensor]) -> int | None:
    """Anchors of one image of a dense model."""
    if not hasattr(model, "anchor_generator"):
        return None
    counts: list[int] = []
    hook = model.anchor_generator.register_forward_hook(lambda _module, _inputs, out: counts.append(len(out[0])))
    with torch.no_grad():
        model.eval()(images[:1])
    hook.remove()
    return counts[0]


def render(results: dict[str, Any]) -> str:
    """The page."""
    rows, rounds = [], results["families"][0]["stock"]["rounds"]
    for row in results["families"]:
        ratios = row["ratio"]
        rows.append(
            [
                *(row["family"], f"{row['images']} x {row['size']}²", str(row["anchors"] or "-")),
                *(f"{row['stock']['median']:.2f}", f"{ratios['mix']:.2f}x", f"{ratios['replace']:.2f}x"),
                *(f"<= {row['target']}x", kept(max(ratios.values()) <= row["target"])),
            ]
        )
    parts = [
        "# Training for mAP: the cost of a step",
        heading(results),
        f"Forward and backward, medians of {rounds} rounds; stock, mix and replace take turns in every round.",
        table(["model", "images", "anchors", "stock, s", "mix", "replace", "promised", "kept"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="families whose name starts with this; results are not written")
    options = parser.parse_args(arguments)
    chosen = {name: case for name, case in CASES.items() if name.startswith(options.only)}
    results = {
        "command": f"python -m benchmarks.drop_in --rounds {options.rounds}",
        "machine": machine(),
        "families": [measure(name, case, options.rounds) for name, case in chosen.items()],
    }
    if options.only:
        print(render(results))
    else:
        write("drop_in", results, render(results))


if __name__ == "__main__":
    main()
