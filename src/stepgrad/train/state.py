"""The counters of a run, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepgrad.evaluation.result import EvaluationResult
from stepgrad.train.checkpoint import Checkpoint


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    step: int
    best_step: int
    maps: dict[str, float]
    """mAP of the best checkpoint, by protocol."""
    report: Path | None
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went since the run was started or resumed, by part of the work."""


@dataclass
class State:
    """With weights and momentum, all that a checkpoint needs."""

    step: int = 0
    """Steps taken."""
    seconds: float = 0.0
    """Spent in them."""
    validated: int = 0
    """The last step that was validated."""
    best_step: int = 0
    best_map: float = -1.0
    log_length: int = 0
    """Bytes of log.jsonl that belong to the steps taken."""
    class_names: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> State:
        return cls(step=checkpoint.step, **checkpoint.state)

    def validation_line(self, result: EvaluationResult, phase: str) -> tuple[dict[str, Any], EvaluationResult]:
        """What the log holds of a validation."""
        results = {result.protocol.name: result, **result.others}
        line = {
            "kind": "val",
            "step": self.step,
            "phase": phase,
            "map": {name: found.map for name, found in results.items()},
            "ap": {name: {row.name: row.ap for row in found.classes} for name, found in results.items()},
            "images": result.images,
            "seconds": self.seconds,
        }
        return line, result
