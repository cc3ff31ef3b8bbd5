"""What one row of the result tables trains: a frozen config per row, and which table it stands in.

`python -m experiments.run ROW --seed S` trains one; the fields say all that differs between rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from experiments.window_head import ScoreForm, Tuning


@dataclass(frozen=True)
class Row:
    """One way to spend the second half of the budget (or, from scratch, the whole of it)."""

    name: str
    table: str
    says: str  # the row's words in the table
    loss: str = "map"  # "map", "nll", or a name of stepgrad.losses.baselines
    start: str = "nll"  # "nll": a cross-entropy model of the same seed; "scratch": random weights
    start_images: str = "old"  # images that model was trained on: all but the last FRESH ("old"), or "all"
    images_from: str = "fresh"  # images to train on: the last FRESH ("fresh"), or "all"
    scores: ScoreForm = "logprob"
    options: dict[str, Any] = field(default_factory=dict)  # of the loss, over its defaults here
    images: int = 64  # per step
    windows: int | None = 300  # per image; None: all
    foreground: float | None = None  # share of those on objects; None: as they come
    steps: int = 40
    memory: int = 0  # images of earlier steps ranked along
    nll_weight: float = 0.0  # of cross-entropy on windows of the same images, added to the loss
    tuned_as: str | None = None  # the row whose optimiser and rate it takes; None: its own, from the grid

    def but(self, name: str, says: str, **changes: Any) -> Row:
        """This row with changes; it keeps this row's tuning unless told otherwise."""
        changes.setdefault("tuned_as", self.tuned_as or self.name)
        changes["options"] = {**self.options, **changes.get("options", {})}
        return replace(self, name=name, says=says, **changes)


# Images kept from the cross-entropy start: on images it has learnt by heart, mAP has little left to show (see Table E).
FRESH = 1000

# Cross-entropy's own training, from random weights: about as many passes over the images as Fast R-CNN's 40,000
# iterations make over each picture and its mirror image.
NLL_STEPS = 4000
NLL_TUNING = Tuning("adam", 3e-4)

# What every tuned row chooses from, by where it starts.
GRID = {
    "nll": [*(Tuning("adam", rate) for rate in (1e-4, 3e-4)), *(Tuning("sgd", rate) for rate in (3e-3, 1e-2))],
    "scratch": [*(Tuning("adam", rate) for rate in (1e-3, 3e-3)), *(Tuning("sgd", rate) for rate in (3e-2, 1e-1))],
}

_RADIUS = {"protocol": "voc12", "estimator": "radius", "radius": 3.0, "balance": "class"}


def _estimators() -> list[Row]:
    """Table A, after the paper's Table 1: the estimators, both ways through NMS, balanced or not; from a trained start."""
    radius = Row("radius", "ABD", "radius 3, exact NMS, balanced", options=_RADIUS)
    mee = radius.but("mee", "MEE, exact NMS, balanced", table="A", options={"estimator": "mee"}, tuned_as=None)
    sde = mee.but("sde", "SDE, exact NMS, balanced", options={"estimator": "sde"})
    return [
        Row("start", "AB", "NLL on 3000 images: where all rows below start", loss="nll", steps=0),
        Row("nll", "AB", "NLL on the 1000 fresh images", loss="nll"),
        Row("nll-both", "AB", "NLL on all 4000 images", loss="nll", images_from="all"),
        Row(
            "nll-all",
            "ABE",
            "NLL on all 4000 images from the beginning",
            loss="nll",
            start_images="all",
            images_from="all",
        ),
        radius,
        mee,
        sde,
        radius.but(
            "radius-none", "radius 3, no gradient through NMS, balanced", table="A", options={"through_nms": "none"}
        ),
        mee.but("mee-paper", "MEE, the paper's NMS, balanced", options={"through_nms": "paper"}),
        radius.but(
            "radius-free", "radius 3, exact NMS, not balanced", table="A", options={"balance": "none"}, tuned_as=None
        ),
        mee.but("mee-free", "MEE, exact NMS, not balanced", options={"balance": "none"}, tuned_as=None),
        radius.but(
            "mixed",
            "radius 3, exact NMS, balanced, + 1 NLL on the same images",
            table="A",
            nll_weight=1.0,
            tuned_as=None,
        ),
    ]


def _from_scratch() -> list[Row]:
    """Table S: the same from random weights, on raw scores; cross-entropy sees as many images."""
    radius = Row(
        "scratch-radius",
        "S",
        "radius 3, exact NMS, balanced",
        options=_RADIUS,
        start="scratch",
        images_from="all",
        steps=100,
    )
    radius = replace(radius, scores="raw")
    mee = radius.but("scratch-mee", "MEE, exact NMS, balanced", options={"estimator": "mee"}, tuned_as=None)
    return [
        Row("scratch-nll", "S", "NLL", loss="nll", start="scratch", images_from="all", steps=100),
        radius,
        mee,
        mee.but("scratch-sde", "SDE, exact NMS, balanced", options={"estimator": "sde"}),
        mee.but("scratch-mee-paper", "MEE, the paper's NMS, balanced", options={"through_nms": "paper"}),
        mee.but("scratch-mee-free", "MEE, exact NMS, not balanced", options={"balance": "none"}),
        radius.but(
            "scratch-mixed",
            "radius 3, exact NMS, balanced, log-probabilities + 3 NLL",
            scores="logprob",
            nll_weight=3.0,
        ),
    ]


def _others() -> list[Row]:
    """Table B, after the paper's Table 2: other ways to train for a ranking, same start, same windows, same grid."""
    return [
        Row("song", "B", "Song et al. 2016, direct loss, positive update", loss="song"),
        Row("song-negative", "B", "Song et al. 2016, negative update", loss="song", options={"update": "negative"}),
        Row("yue", "B", "Yue et al. 2007, AP hinge", loss="yue"),
        Row(
            "taylor",
            "B",
            "Taylor et al. 2008, smoothed ranks",
            loss="taylor",
            options={"sigma": 1.0, "max_windows": 200},
        ),
        Row("ap-loss", "B", "Chen et al. 2019, AP-Loss", loss="ap_loss", options={"delta": 1.0}),
        Row("smooth-ap", "B", "Brown et al. 2020, Smooth-AP", loss="smooth_ap", options={"tau": 0.3}),
    ]


def _ablations(base: Row) -> list[Row]:
    """Table C: one thing changed at a time, at the base's optimiser and rate."""
    base = replace(base, table="C")
    return [
        base.but("fg-25", "a quarter of the windows on objects", foreground=0.25),
        base.but("fg-5", "5 % of the windows on objects", foreground=0.05),
        base.but("all-windows", "all windows of an image", windows=None),
        base.but("batch-8", "8 images a step, 8 x the steps", images=8, steps=320),
        base.but("batch-32", "32 images a step, twice the steps", images=32, steps=80),
        base.but("batch-256", "256 images a step, a quarter of the steps", images=256, steps=10),
        base.but("batch-512", "512 images a step, an eighth of the steps", images=512, steps=5),
        base.but("memory", "8 images a step, 8 x the steps, 248 remembered", images=8, steps=320, memory=248),
        base.but("radius-1", "radius 1", options={"radius": 1.0}),
        base.but("no-log", "1 - mAP", options={"log": False}),
        base.but("raw", "raw scores", scores="raw"),
        base.but("clip", "gradient elements clipped to 0.001", options={"clip": 0.001}),
        base.but("l4", "L4 regulariser, 1e-8", options={"l4": 1e-8}),
        base.but("scale-too", "balance of shift and scale", options={"balance": "class+scale"}),
        base.but("mixed-10", "+ 10 NLL", nll_weight=10.0),
    ]


def _objectives(base: Row) -> list[Row]:
    """Table D: COCO's AP over ten IoU thresholds as the objective."""
    return [base.but("radius-coco", "radius 3, COCO's AP as the objective", table="D", options={"protocol": "coco"})]


def _seen() -> list[Row]:
    """Table E: the same steps on images that the cross-entropy start was trained on."""
    radius = Row("seen-radius", "E", "radius 3 on the 4000 images of its start", options=_RADIUS)
    radius = replace(radius, start_images="all", images_from="all")
    return [
        replace(
            radius,
            name="seen-start",
            says="NLL on all 4000 images: where the rows below start",
            loss="nll",
            options={},
            steps=0,
        ),
        radius,
        radius.but("seen-mee", "MEE on the 4000 images of its start", options={"estimator": "mee"}, tuned_as=None),
        radius.but("seen-mixed", "radius 3 + 1 NLL on the 4000 images of its start", nll_weight=1.0, tuned_as=None),
    ]


def _all() -> dict[str, Row]:
    estimators = _estimators()
    base = next(row for row in estimators if row.name == "radius")
    rows = [*estimators, *_from_scratch(), *_others(), *_ablations(base), *_objectives(base), *_seen()]
    return {row.name: row for row in rows}


ROWS = _all()
