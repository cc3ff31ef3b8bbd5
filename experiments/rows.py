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
    start: str = "nll"  # weights to start from: the cross-entropy model of the same seed, or "scratch"
    scores: ScoreForm = "logprob"
    options: dict[str, Any] = field(default_factory=dict)  # of the loss, over its defaults here
    images: int = 64  # per step
    windows: int | None = 300  # per image; None: all
    foreground: float | None = None  # share of those on objects; None: as they come
    steps: int = 100
    memory: int = 0  # images of earlier steps ranked along
    nll_weight: float = 0.0  # of cross-entropy on windows of the same images, added to the loss
    tuned_as: str | None = None  # the row whose optimiser and rate it takes; None: its own, from the grid

    def but(self, name: str, says: str, **changes: Any) -> Row:
        """This row with changes; it keeps this row's tuning unless told otherwise."""
        changes.setdefault("tuned_as", self.tuned_as or self.name)
        changes["options"] = {**self.options, **changes.get("options", {})}
        return replace(self, name=name, says=says, **changes)


# Cross-entropy's own training, from random weights: the start of every "nll" row.
NLL_STEPS = 4000
NLL_TUNING = Tuning("adam", 3e-4)

# What every tuned row chooses from.
GRID = [Tuning("adam", rate) for rate in (3e-5, 1e-4, 3e-4)] + [Tuning("sgd", rate) for rate in (3e-3, 1e-2, 3e-2)]

_map = Row("radius", "AB", "radius, exact NMS, balanced", options={"estimator": "radius", "radius": 3.0})
_nll = Row("nll", "AB", "softmax NLL, continued", loss="nll")
_raw = _map.but(
    "scratch-radius", "radius, exact NMS, balanced", start="scratch", scores="raw", steps=300, tuned_as=None
)


def _estimators(base: Row, prefix: str) -> list[Row]:
    """The paper's Table 1 and what it leaves open: estimator, way through NMS, balance."""
    exact = {"mee": "MEE", "sde": "SDE"}
    rows = [base]
    for name, says in exact.items():
        rows.append(
            base.but(f"{prefix}{name}", f"{says}, exact NMS, balanced", options={"estimator": name}, tuned_as=None)
        )
    rows.append(
        base.but(f"{prefix}radius-paper", "radius, the paper's NMS, balanced", options={"through_nms": "paper"})
    )
    mee = rows[1]
    rows.append(mee.but(f"{prefix}mee-paper", "MEE, the paper's NMS, balanced", options={"through_nms": "paper"}))
    rows.append(base.but(f"{prefix}radius-unbalanced", "radius, exact NMS", options={"balance": "none"}, tuned_as=None))
    rows.append(mee.but(f"{prefix}mee-unbalanced", "MEE, exact NMS", options={"balance": "none"}, tuned_as=None))
    return rows


def _baselines() -> list[Row]:
    """Other ways to train for a ranking, from the same start on the same windows."""
    names = {
        "song": "Song et al. 2016, direct loss minimisation, positive update",
        "yue": "Yue et al. 2007, AP hinge",
        "taylor": "Taylor et al. 2008, SoftRank-style smoothing",
        "ap-loss": "Chen et al. 2019, AP-Loss",
        "smooth-ap": "Brown et al. 2020, Smooth-AP",
    }
    return [Row(name, "B", says, loss=name) for name, says in names.items()]
