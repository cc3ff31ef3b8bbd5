"""Every promise about speed and memory of the loss, with its target and what was measured."""

from __future__ import annotations

from typing import Any

from benchmarks.report import Claim

DEFAULT = "MAPLoss default (radius 3)"  # the case of a loss without options


def check_claims(results: dict[str, Any]) -> list[Claim]:
    return [
        *_detection_claims(results["detection"]),
        *_scaling_claims(results["scaling"]),
        *[_memory_claim(images, row) for images, row in results["memory"].items()],
        *_ranking_claims(results["ranking"], results["million"]),
        *_process_claims(results["import"], results["first calls"]),
    ]


def floor_seconds(detection: dict[str, Any]) -> float:
    """The faster of the two stable sorts, plus the sweep over pairs."""
    sort = min(detection[f"floor: {name}"]["median"] for name in ("torch.sort", "numpy.argsort"))
    return float(sort + detection["floor: pair sweep"]["median"])


def _detection_claims(detection: dict[str, Any]) -> list[Claim]:
    exact, paper = detection["MAPLoss exact"]["median"], detection["MAPLoss paper"]["median"]
    scene = "8 images x 2000 windows x 20 classes"
    return [
        Claim(
            f"{scene}: the default, radius 3, forward and backward, against torchvision.ops.nms alone",
            target=0.5,
            measured=detection[DEFAULT]["median"] / detection["torchvision.ops.nms"]["median"],
            aim=0.25,
        ),
        Claim(
            f"{scene}: `exact` (MEE) forward and backward, against torchvision.ops.nms alone",
            target=0.5,
            measured=exact / detection["torchvision.ops.nms"]["median"],
            aim=0.25,
        ),
        Claim("`exact` against `paper`", target=3, measured=exact / paper),
        Claim(
            "`exact` against the physical floor: stable sort of all scores and one sweep over overlapping pairs",
            target=2,
            measured=exact / floor_seconds(detection),
            detail="an aim, not a promise",
        ),
    ]


def _scaling_claims(scaling: dict[str, Any]) -> list[Claim]:
    return [
        Claim(
            f"eight times the images ({few} to {few * 8}, {few * 8 * 2000:,} windows x 20 classes)",
            target=10,
            measured=scaling[f"{few * 8} images"]["median"] / scaling[f"{few} images"]["median"],
        )
        for few in (4, 8)
    ]


def _memory_claim(images: str, row: dict[str, Any]) -> Claim:
    beyond_lists = max(0.0, row["extra"] - row["overlap lists"]) / row["scores"]
    return Claim(
        f"peak extra memory per window and class beyond the overlap lists, {images}",
        target=200,
        measured=beyond_lists,
        unit=" bytes",
        detail=f"{row['extra'] / 1e6:.0f} MB in all, of which {row['overlap lists'] / 1e6:.0f} MB for overlap lists",
    )


def _ranking_claims(ranking: dict[str, Any], million: dict[str, Any]) -> list[Claim]:
    if "torchsort.soft_rank" in ranking:
        rival, target = "torchsort.soft_rank", 3.0
    else:
        rival, target = "numpy.argsort", 4.0
    ours = [name for name in ("MAPLoss, 50 images", "MAPLoss, 1 image", "APLoss") if name in ranking]
    return [
        Claim(
            f"100,000 scores of one class, 2 % positive, no overlaps ({name}), against {rival}",
            target=target,
            measured=ranking[name]["median"] / ranking[rival]["median"],
        )
        for name in ours
    ] + [
        Claim(
            f"1,000,000 scores with 10,000 positives against 100,000 ({large} : {small})",
            target=15,
            measured=million[f"1,000,000 in {large}"]["median"] / million[f"100,000 in {small}"]["median"],
            detail=f"{million[f'1,000,000 in {large}']['median']:.2f} s",
        )
        for large, small in (("500 images", "50 images"), ("1 image", "1 image"))
    ]


def _process_claims(imports: dict[str, float], first_calls: list[dict[str, Any]]) -> list[Claim]:
    cold, warm = first_calls
    return [
        *[
            Claim(f"`{ours}` against `import torch`", target=1.5, measured=imports[ours] / imports["import torch"])
            for ours in ("import stepgrad", "from stepgrad import MAPLoss")
        ],
        Claim(
            "kernels that a second process compiles again",
            target=0,
            measured=warm["compiled"],
            unit="",
            detail=f"first call {cold['first']:.1f} s in the first process ({cold['compiled']} kernels compiled), "
            f"{warm['first']:.2f} s in the second, {warm['later'] * 1000:.0f} ms once loaded",
        ),
        Claim(
            "first calls that wait for the compiler without saying so",
            target=0,
            measured=0 if "compil" in cold["stderr"] else 1,
            unit="",
            detail=cold["stderr"].strip().splitlines()[-1] if cold["stderr"].strip() else "silent",
        ),
    ]
