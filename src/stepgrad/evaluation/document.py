"""All numbers of an evaluation in one document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepgrad.evaluation.coco_numbers import CocoNumbers
from stepgrad.evaluation.compare import Comparison
from stepgrad.evaluation.errors_by_type import ErrorTypes
from stepgrad.evaluation.result import EvaluationResult


def numbers_of(
    outcome: EvaluationResult | Comparison,
    coco: CocoNumbers | None = None,
    mistakes: ErrorTypes | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `stepgrad evaluate --report FILE.json` writes."""
    content = outcome.to_dict()
    if provenance is not None:
        content["provenance"] = dict(provenance)
    if coco is not None:
        content["coco"] = coco.to_dict()
    if mistakes is not None:
        content["errors"] = mistakes.to_dict()
    return content
