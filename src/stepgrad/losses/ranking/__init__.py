"""Ranking: metrics of lists of scored documents, their exact nearest steps, and losses that train for them."""

from stepgrad.losses.ranking.losses import (
    APLoss,
    AUCLoss,
    MRRLoss,
    NDCGLoss,
    PrecisionAtKLoss,
    RankingLoss,
    RecallAtKLoss,
    SpearmanLoss,
)

__all__ = [
    "APLoss",
    "AUCLoss",
    "MRRLoss",
    "NDCGLoss",
    "PrecisionAtKLoss",
    "RankingLoss",
    "RecallAtKLoss",
    "SpearmanLoss",
]
