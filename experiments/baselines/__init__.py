"""Losses of others, to compare with: each is called like `MAPLoss`, none of them knows NMS. See README.md beside this file."""

from __future__ import annotations

import inspect
from typing import Any

from experiments.baselines.base import RankingBaseline
from experiments.baselines.error_driven import APLossErrorDriven
from experiments.baselines.smooth_ap import SmoothAPLoss
from experiments.baselines.soft_rank import TaylorSoftAPLoss
from experiments.baselines.structured import SongAPLoss, YueAPLoss
from stepgrad.errors import ConfigError, suggest

BASELINES: dict[str, type[RankingBaseline]] = {
    "song": SongAPLoss,
    "yue": YueAPLoss,
    "taylor": TaylorSoftAPLoss,
    "ap_loss": APLossErrorDriven,
    "smooth_ap": SmoothAPLoss,
}

__all__ = [
    "BASELINES",
    "APLossErrorDriven",
    "RankingBaseline",
    "SmoothAPLoss",
    "SongAPLoss",
    "TaylorSoftAPLoss",
    "YueAPLoss",
    "make_baseline",
]


def make_baseline(name: str, num_classes: int, **options: Any) -> RankingBaseline:
    """The baseline of that name with its options.

    >>> make_baseline("song", 20, update="negative")
    SongAPLoss(20, match_threshold=0.5, eps=0.001, update='negative')
    """
    if name not in BASELINES:
        names = sorted(BASELINES)
        hint = suggest(str(name), names)
        if name in ("nll", "softmax", "cross_entropy"):
            hint = " Softmax cross-entropy is a loss of the detector itself: FastRCNN(..., loss='nll')."
        raise ConfigError(f"Expected the name of a baseline, one of {names}, but got {name!r}.{hint}")
    kind = BASELINES[name]
    known = _options_of(kind)
    for option in options:
        if option not in known:
            raise ConfigError(
                f"Expected options of {kind.__name__}, which are {known}, but got {option!r}.{suggest(option, known)}"
            )
    return kind(num_classes, **options)


def _options_of(kind: type[RankingBaseline]) -> list[str]:
    """Names of the arguments after num_classes: the class's own, then the shared ones."""
    arguments = [*inspect.signature(kind).parameters, *inspect.signature(RankingBaseline).parameters]
    return [a for a in dict.fromkeys(arguments) if a not in ("num_classes", "shared")]
