"""What one row of the result tables trains: a frozen config per row, and which table it stands in.

`python -m experiments.run ROW --seed S` trains one; the fields say all that differs between rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from experiments.window_head import ScoreForm, Tuning

Start = Literal["fresh", "seen", "nll", "mean", "scratch"]


@dataclass(frozen=True)
class Row:
    """One way to spend the second phase (or, from scratch, the whole) of the training.

    `start`: "fresh" and "seen" train a second head that corrects the cross-entropy model's outputs; while it trains, these
    are the outputs of models that have not seen the image, or of the model that was trained on it. "nll" goes on with the
    cross-entropy model itself, "mean" is "fresh" but tested on the mean of all cross-entropy models, "scratch" has random
    weights.
    """

    name: str
    table: str
    says: str  # the row's words in the table
    loss: str = "map"  # "map", "nll", or a name of experiments.baselines
    start: Start = "fresh"
    scores: ScoreForm = "logprob"
    hidden: int = 512  # units of the head that is trained, if that is a new one
    base_hidden: int = 512  # units of the cross-entropy model it starts from
    per_class: bool = False  # a network of so many hidden units for every class
    options: dict[str, Any] = field(default_factory=dict)  # of the loss, over its defaults here
    l2: float = 0.0  # times the sum of squared scores, added to the loss
    images: int = 64  # per step
    windows: int | None = 150  # per image; None: all
    foreground: float | None = None  # share of those on objects; None: as they come
    steps: int = 60
    average: float = (
        0.95  # the result is a running mean of the weights with this decay for 64 images; 0: the last weights
    )
    memory: int = 0  # images of earlier steps ranked along
    nll_weight: float = 0.0  # of cross-entropy on windows of the same images, added to the loss
    unlimited: bool = False  # "sgd" takes gradients of any length
    tuned_as: str | None = None  # the row whose optimiser and rate it takes; None: its own, from the grid

    @property
    def protocols(self) -> tuple[str, ...]:
        """What it is measured by: 11-point AP in table A, COCO's AP in table D."""
        return ("voc12", *(("voc07",) if "A" in self.table else ()), *(("coco",) if "D" in self.table else ()))

    @property
    def grid(self) -> str:
        """Which grid it is tuned on."""
        return "scratch" if self.start == "scratch" else "second"

    def but(self, name: str, says: str, **changes: Any) -> Row:
        """This row with changes; it keeps this row's tuning unless told otherwise."""
        changes.setdefault("tuned_as", self.tuned_as or self.name)
        changes["options"] = {**self.options, **changes.get("options", {})}
        return replace(self, name=name, says=says, **changes)

    def with_(self, name: str, says: str, **changes: Any) -> Row:
        """This row with changes and tuning of its own."""
        return self.but(name, says, tuned_as=None, **changes)


# Cross-entropy's own training, from random weights, and how many parts the images are dealt into for outputs that are fresh.
NLL_STEPS = 8000
NLL_TUNING = Tuning("adam", 3e-4)
FOLDS = 4

# A wider correction, for more steps.
WIDE: dict[str, Any] = {"hidden": 2048, "steps": 240, "average": 0.98}

# What every tuned row chooses from.
GRID = {
    "second": [*(Tuning("adam", rate) for rate in (3e-4, 1e-3)), *(Tuning("sgd", rate) for rate in (3e-3, 1e-2))],
    "scratch": [*(Tuning("adam", rate) for rate in (1e-3, 3e-3)), *(Tuning("sgd", rate) for rate in (3e-2, 1e-1))],
}

RADIUS = Row(
    "radius",
    "ABCDE",
    "radius 3, exact NMS, balanced",
    options={"protocol": "voc12", "estimator": "radius", "radius": 3.0, "balance": "class"},
)

PAPER = {"estimator": "mee", "through_nms": "paper", "l4": 1e-6, "clip": 0.1, "balance": "none"}


def _references() -> list[Row]:
    """Cross-entropy, in every way that could be as good a use of the same images and time."""
    new: dict[str, Any] = {"loss": "nll", "start": "scratch", "images": 8, "tuned_as": "start"}
    # Steps of 8 images for as many images as a start and its correction see together.
    with_60, with_240 = NLL_STEPS + 60 * 64 // 8, NLL_STEPS + 240 * 64 // 8
    return [
        Row("start", "ABCDE", "NLL: the model that all rows below correct", loss="nll", start="nll", steps=0),
        Row("nll-more", "ABD", "NLL continues for as many images", loss="nll", start="nll"),
        Row("nll-long", "ABD", "NLL for twice the steps", steps=2 * NLL_STEPS, **new),
        Row("nll-1024", "ABD", "NLL, as many units and images as `radius`", hidden=1024, steps=with_60, **new),
        Row("nll-wide", "ABD", "NLL, as many units and images as `wide`", hidden=2560, steps=with_240, **new),
        Row("nll-residual", "AB", "NLL instead of mAP, all else as `radius`", loss="nll"),
        Row("nll-wide-residual", "AB", "NLL instead of mAP, all else as `wide`", loss="nll", **WIDE),
        Row("nll-five", "AB", "NLL: mean of the five models", loss="nll", start="mean", steps=0),
    ]


def _estimators() -> list[Row]:
    """Table A, after the paper's Table 1: the estimators, both ways through NMS, balanced or not; from a trained start."""
    radius = replace(RADIUS, table="A")
    mee = radius.with_("mee", "MEE, exact NMS, balanced", options={"estimator": "mee"})
    return [
        RADIUS,
        radius.but("radius-none", "radius 3, no gradient through NMS, balanced", options={"through_nms": "none"}),
        radius.but("radius-free", "radius 3, exact NMS, not balanced", options={"balance": "none"}),
        radius.with_("radius-free-own", "the same, at its own best rate", options={"balance": "none"}),
        radius.but("radius-voc07", "radius 3, 11-point AP as the objective", options={"protocol": "voc07"}),
        mee,
        mee.but("mee-voc07", "MEE, 11-point AP as the objective", options={"protocol": "voc07"}),
        mee.but("mee-paper", "MEE, the paper's NMS, balanced", options={"through_nms": "paper"}),
        mee.but("mee-free", "MEE, exact NMS, not balanced", options={"balance": "none"}),
        mee.with_("mee-free-own", "the same, at its own best rate", options={"balance": "none"}),
        mee.but("sde", "SDE, exact NMS, balanced", options={"estimator": "sde"}),
        radius.with_("mixed", "radius 3, exact NMS, balanced, + 1 NLL on the same images", nll_weight=1.0),
    ]


def _from_scratch() -> list[Row]:
    """Table S: from random weights, on raw scores, with the paper's own ablations; cross-entropy sees as many images."""
    radius = replace(RADIUS, name="scratch-radius", table="S", start="scratch", scores="raw")
    mee = radius.with_("scratch-mee", "MEE, exact NMS, balanced", options={"estimator": "mee"})
    paper = mee.with_("scratch-paper", "the paper's loss: MEE, its NMS, L4, clipping, not balanced", options=PAPER)
    return [
        Row("scratch-nll", "S", "NLL", loss="nll", start="scratch"),
        radius,
        mee,
        mee.but("scratch-sde", "SDE, exact NMS, balanced", options={"estimator": "sde"}),
        mee.but("scratch-mee-free", "MEE, exact NMS, not balanced", options={"balance": "none"}),
        radius.but("scratch-logprob", "radius 3, log-probabilities", scores="logprob"),
        radius.but("scratch-mixed", "radius 3, log-probabilities, + 3 NLL", scores="logprob", nll_weight=3.0),
        radius.with_(
            "scratch-mixed-8", "the same, 8 images per step", scores="logprob", nll_weight=3.0, images=8, steps=480
        ),
        paper,
        paper.but("scratch-paper-l2", "paper, L2 for L4", options={"l4": None}, l2=PAPER["l4"]),
        paper.but("scratch-paper-free", "paper, no regulariser", options={"l4": None}),
        paper.but("scratch-paper-unclipped", "paper, no clipping", options={"clip": None}),
    ]


def _paper() -> list[Row]:
    """Table P: the paper's own loss and ablations, after cross-entropy: raw scores, 5 % of the windows on objects.

    Its constants are not printed; of 1e-6, 1e-8 and 1e-10 this L4 was the best on held-out images. The outputs have a mean
    fourth power 160 times their mean square: so much larger is the constant of L2.
    """
    options = {**RADIUS.options, **PAPER, "l4": 1e-8}
    paper = Row("paper", "P", "the paper's loss, 120 steps", scores="raw", options=options, foreground=0.05, steps=120)
    return [
        replace(paper, name="paper-start", says="NLL: its outputs as raw scores", steps=0),
        paper,
        paper.but("paper-fg-25", "a quarter of the windows on objects", foreground=0.25),
        paper.but("paper-batch-32", "32 images per step, twice the steps", images=32, steps=240),
        paper.but("paper-l2", "L2 for L4", options={"l4": None}, l2=160 * options["l4"]),
        paper.but("paper-unregularised", "no regulariser", options={"l4": None}),
        paper.but("paper-unclipped", "no clipping", options={"clip": None}),
        paper.but("paper-unlimited", "any length of gradient", unlimited=True),
        paper.but("paper-neither", "no clipping, any length of gradient", options={"clip": None}, unlimited=True),
        paper.but("paper-sde", "SDE for MEE", options={"estimator": "sde"}),
        paper.but("paper-exact", "exact NMS", options={"through_nms": "exact"}),
        paper.but("paper-balanced", "balanced", options={"balance": "class"}),
    ]


def _others() -> list[Row]:
    """Table B, after the paper's Table 2: other ways to train for a ranking, same start, same windows, same grid."""
    taylor = {"sigma": 1.0, "max_windows": 200}
    separate: dict[str, Any] = {"per_class": True, "hidden": 64, "scores": "raw"}
    return [
        Row("song", "B", "Song et al. 2016, direct loss, positive update", loss="song"),
        Row("song-negative", "B", "Song et al. 2016, negative update", loss="song", options={"update": "negative"}),
        Row("song-per-class", "B", "Song et al. 2016, a network for each class", loss="song", **separate),
        Row("yue", "B", "Yue et al. 2007, AP hinge", loss="yue"),
        Row("taylor", "B", "Taylor et al. 2008, smoothed ranks", loss="taylor", options=taylor),
        Row("ap-loss", "B", "Chen et al. 2019, AP-Loss", loss="ap_loss", options={"delta": 1.0}),
        Row("smooth-ap", "B", "Brown et al. 2020, Smooth-AP", loss="smooth_ap", options={"tau": 0.3}),
    ]


def _ablations() -> list[Row]:
    """Table C: one thing changed at a time, at the base's optimiser and rate."""
    base = replace(RADIUS, table="C")
    mee = replace(base.but("", "", options={"estimator": "mee"}), tuned_as="mee")
    return [
        base.with_("wide", "2048 units, 240 steps, slower mean", table="ABCD", **WIDE),
        base.but("longer", "240 steps, 300 windows per image", table="ABCD", steps=240, windows=300),
        base.but("fg-25", "a quarter of the windows on objects", foreground=0.25),
        base.but("fg-5", "5 % of the windows on objects", foreground=0.05),
        base.but("batch-8", "8 images per step, 8 x the steps", images=8, steps=480),
        base.but("memory", "8 images per step, 8 x the steps, 56 remembered", images=8, steps=480, memory=56),
        base.but("batch-32", "32 images per step, twice the steps", images=32, steps=120),
        base.but("batch-128", "128 images per step, half the steps", images=128, steps=30),
        base.but("batch-512", "512 images per step, an eighth of the steps", images=512, steps=8),
        base.but("last", "the last weights, not their mean", average=0.0),
        base.but("radius-1", "radius 1", options={"radius": 1.0}),
        base.but("no-log", "1 - mAP", options={"log": False}),
        base.but("raw", "raw scores", scores="raw"),
        mee.but("mee-min-step-1", "MEE (tuned as `mee`), least step 1", options={"min_step": 1.0}),
    ]


def _objectives() -> list[Row]:
    """Table D: COCO's AP over ten IoU thresholds as the objective."""
    return [RADIUS.but("radius-coco", "radius 3, COCO's AP as the objective", table="D", options={"protocol": "coco"})]


def _seen() -> list[Row]:
    """Table E: the same steps, but on outputs of the model that was trained on the image."""
    seen = replace(RADIUS, table="E", start="seen", tuned_as="radius")
    return [
        RADIUS.but("radius-five", "`radius`, tested on the mean of the five NLL models", table="AE", start="mean"),
        replace(seen, name="seen-radius", says="radius 3, outputs of the model that has seen the image"),
        replace(seen, name="whole-radius", says="radius 3, all weights of the NLL model itself", start="nll"),
    ]


def _stronger_start() -> list[Row]:
    """Table W: from cross-entropy models that are four times as wide, at the rates of the others."""
    nll: dict[str, Any] = {"loss": "nll", "start": "nll", "base_hidden": 2048}
    return [
        Row("w-start", "W", "NLL: 2048 units", steps=0, **nll),
        Row("w-nll-more", "W", "NLL continues for as many images", tuned_as="nll-more", **nll),
        RADIUS.but("w-radius", "radius 3, exact NMS, balanced", table="W", base_hidden=2048),
        RADIUS.but("w-wide", "`wide`", table="W", base_hidden=2048, tuned_as="wide", **WIDE),
    ]


ROWS = {
    row.name: row
    for rows in (
        _references,
        _estimators,
        _from_scratch,
        _paper,
        _others,
        _ablations,
        _objectives,
        _seen,
        _stronger_start,
    )
    for row in rows()
}
