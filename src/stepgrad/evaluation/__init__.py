"""AP of detections under the protocols of VOC and COCO, and the reasons why these differ."""

from stepgrad.evaluation.class_result import ClassResult, PRCurve
from stepgrad.evaluation.coco_numbers import CocoNumbers
from stepgrad.evaluation.compare import Comparison, FirstDifference, Pair, Step, compare
from stepgrad.evaluation.errors_by_type import ErrorTypes
from stepgrad.evaluation.evaluator import Evaluator
from stepgrad.evaluation.explain import Explanation, explain
from stepgrad.evaluation.label_errors import LabelError, find_label_errors
from stepgrad.evaluation.records import Detections, Evidence, GroundTruth
from stepgrad.evaluation.result import EvaluationResult

__all__ = [
    "ClassResult",
    "CocoNumbers",
    "Comparison",
    "Detections",
    "ErrorTypes",
    "EvaluationResult",
    "Evaluator",
    "Evidence",
    "Explanation",
    "FirstDifference",
    "GroundTruth",
    "LabelError",
    "PRCurve",
    "Pair",
    "Step",
    "compare",
    "explain",
    "find_label_errors",
]
