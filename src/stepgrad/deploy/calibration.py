"""Scores of a finished detector that mean what they say: of detections with a score of 0.8, eight in ten are right."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.deploy.apply import labels_of_rows, plain, plain_labels
from stepgrad.deploy.calibration_writing import ClassMap, write_calibration
from stepgrad.deploy.monotone import RisingMap, isotonic, squashed, two_parameters
from stepgrad.deploy.ranked import RankedList, all_together, ranked_list
from stepgrad.deploy.reliability import Reliability, reliability_of
from stepgrad.deploy.rule import Ruled, cost_cut, rule_of
from stepgrad.deploy.wish import wish_of
from stepgrad.errors import InputError, whole_number
from stepgrad.evaluation.class_result import position_of
from stepgrad.evaluation.intervals import check_level, judged_lists
from stepgrad.evaluation.resampling import Resamples
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION, Cost

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepgrad.deploy.calibration_module import CalibrationModule

Floats = NDArray[np.float64]
MANY = 200
"""Right and wrong detections from which on a class has an isotonic map."""
SOME = 10
"""Right detections, and wrong ones, from which on a class has a map of its own."""
FOLDS = 5
RESAMPLES = 200


@dataclass(frozen=True, eq=False)
class Calibration:
    """A strictly rising map for each class, and how far scores could be trusted before and after. `print` shows a table."""

    protocol: str
    overlap: str
    squash: bool
    """Whether scores are no numbers in [0, 1] and are squashed into it first, by x / (1 + |x|)."""
    classes: tuple[ClassMap, ...]
    images: int
    before: Reliability | None
    """Of the scores themselves; None if they are not in [0, 1], or for a calibration from a file."""
    after: Reliability | None
    """Of calibrated scores, each by a map that other images led to."""
    category_ids: tuple[int, ...] | None = None
    """COCO's id of each class, if known."""
    found: tuple[Ruled, ...] = ()
    """The detections that it was made from, with their calibrated scores; nothing in one from a file."""

    def probabilities(self, scores: Any, labels: Any) -> Floats:
        """(N,) the calibrated scores of detections, in double precision."""
        known = in_unit(np.asarray(plain(scores), dtype=np.float64), self.squash)
        wanted = plain_labels(labels, len(self.classes))
        found = np.zeros(len(known))
        for label in np.unique(wanted).tolist():
            rows = wanted == label
            found[rows] = self.classes[label].map(known[rows])
        return found

    def apply(self, detections: Any) -> Any:
        """The same detections with calibrated scores, in the form in which they were given.

        Args:
            detections: of one image, a dict of boxes, scores and labels, or supervision's `Detections`; a list of such; or a
                list of COCO's results.
        """
        if isinstance(detections, (list, tuple)):
            if detections and isinstance(detections[0], Mapping) and "category_id" in detections[0]:
                return self._of_coco(detections)
            return type(detections)(self.apply(one) for one in detections)
        if isinstance(detections, Mapping) and "scores" in detections and "labels" in detections:
            found = self.probabilities(detections["scores"], detections["labels"])
            return {**detections, "scores": _like(found, detections["scores"])}
        if getattr(detections, "confidence", None) is not None and getattr(detections, "class_id", None) is not None:
            other = copy.copy(detections)
            other.confidence = self.probabilities(detections.confidence, detections.class_id)
            return other
        raise InputError(
            "Expected detections as a dict of boxes, scores and labels, supervision's Detections or COCO's results, but got "
            f"{type(detections).__name__}."
        )

    def _of_coco(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        expected = (
            "a calibration that knows COCO's category ids; `stepgrad calibrate --out` writes one for COCO's files."
        )
        labels = labels_of_rows(rows, self.category_ids, expected)
        found = self.probabilities([row["score"] for row in rows], labels)
        return [{**row, "score": score} for row, score in zip(rows, found.tolist(), strict=True)]

    def rule(self, wish: str | ListMetric) -> dict[str, float | None]:
        """By class, the calibrated score from which on showing a detection is expected to serve a wish best.

        It is in units of calibrated scores: `sg.apply_thresholds(calibration.apply(detections), calibration.rule("f1"))`. None:
        nothing is shown. A wish is one of `sg.thresholds`; a calibration from a file knows the rule of costs only.
        """
        wished, names = wish_of(wish), [row.name for row in self.classes]
        if isinstance(wished.metric, Cost):
            return dict.fromkeys(names, cost_cut(wished.metric))
        if not self.found and names:
            raise InputError(
                f"Expected a calibration of `sg.calibrate` for {wished.name}; one from a file knows the rule of costs only."
            )
        return rule_of(self.found, names, wished)

    def module(self) -> CalibrationModule:
        """A torch module: `module(scores, labels)` gives the calibrated scores."""
        from stepgrad.deploy.calibration_module import CalibrationModule

        return CalibrationModule([row.map for row in self.classes], self.squash)

    def save(self, path: str | Path, provenance: Mapping[str, Any] | None = None) -> None:
        """Write a .json file, which `stepgrad.deploy.read_calibration` reads, or an .onnx file (needs the extra `onnx`)."""
        content = {**self.to_dict(), **({} if provenance is None else {"provenance": dict(provenance)})}
        write_calibration(Path(path), content, self.classes, self.squash)

    def to_dict(self) -> dict[str, Any]:
        """What the .json file holds."""
        told = {"before": self.before, "after": self.after}
        return {
            "protocol": self.protocol,
            "overlap": self.overlap,
            "images": self.images,
            "squash": self.squash,
            "category_ids": None if self.category_ids is None else list(self.category_ids),
            "classes": [
                {
                    "name": row.name,
                    "kind": row.kind,
                    "objects": row.objects,
                    "scores": row.map.x.tolist(),
                    "probabilities": row.map.y.tolist(),
                }
                for row in self.classes
            ],
            "reliability": {name: found.to_dict() for name, found in told.items() if found is not None},
        }

    def plot(self, path: str | Path | None = None) -> Figure:
        """Reliability before and after, as a matplotlib figure, written to `path` if given."""
        from stepgrad.deploy.reliability import plot_reliability

        if self.after is None:
            raise InputError("Expected a calibration of `sg.calibrate` but one from a file has no detections to draw.")
        return plot_reliability(self.before, self.after, path)

    def __str__(self) -> str:
        kinds = [[row.name, str(row.objects), row.kind] for row in self.classes]
        title = f"calibration of {len(self.classes)} classes on {self.images} images ({self.protocol}, {self.overlap})"
        parts = [title, plain_table(["class", "objects", "map"], kinds)]
        if self.after is not None:
            before = self.before.cells() if self.before is not None else ["-"] * len(self.after.cells())
            rows = zip(self.after.heads(), before, self.after.cells(), strict=True)
            parts += [
                "on images that a map was not made from:",
                plain_table(["", "before", "after"], [*map(list, rows)]),
            ]
        return "\n".join(parts)


def calibrate(
    result: EvaluationResult,
    *,
    match_threshold: float | None = None,
    folds: int = FOLDS,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
    groups: Sequence[Hashable] | None = None,
) -> Calibration:
    """Maps from scores to the probability that a detection is right, on images that the detector was not trained on.

    A class has an isotonic map; one with two parameters where it has fewer than 200 right or wrong detections; or the map of all
    classes where it has next to none. Maps rise strictly, so that the AP of a class stays as it is.

    Args:
        result: a result of `Evaluator.compute()`.
        match_threshold: one of the protocol's thresholds on overlaps, by which a detection is right (default: the first).
        folds: what is told of new images is cross-validated: each of so many parts of the images gets the maps of the others.
        level: the probability of the intervals.
        resamples: how often the images are drawn anew for these.
        seed: of the parts and of the draws.
        groups: the group of each image, in the order in which images were given, if some belong together (frames of a clip).

    >>> import torch, stepgrad as sg
    >>> evaluator = sg.Evaluator(1, class_names=["dog"])
    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [50, 0, 60, 10]])
    >>> for i in range(40):  # half of the detections are right, whatever their score
    ...     found = {"boxes": boxes[[i % 2]], "scores": torch.tensor([0.9 + i / 1000]), "labels": torch.tensor([0])}
    ...     evaluator.update([found], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> calibration = sg.calibrate(evaluator.compute())
    >>> round(float(calibration.probabilities([0.92], [0])[0]), 1)
    0.5
    """
    check_level(level)
    whole_number("folds", folds, least=2)
    evidence = result._kept_evidence
    at = 0 if match_threshold is None else position_of(result.protocol.match_thresholds, match_threshold)
    draws = Resamples.of(evidence.num_images, resamples, seed, groups)
    scores = evidence.detections.scores
    squash = bool(len(scores) and (scores.min() < 0.0 or scores.max() > 1.0))
    judged = judged_lists(result.classes, evidence, result.protocol, AVERAGE_PRECISION)
    lists = [_squashed(ranked_list(one, draws.unit, at), squash) for one in judged]
    fold = np.random.default_rng(seed).permutation(draws.units) % folds
    told, together = _out_of_fold(lists, fold, squash), all_together(lists)
    maps = maps_of(lists, squash)
    return Calibration(
        protocol=result.protocol.name,
        overlap=f"{result.overlap} {result.protocol.match_thresholds[at]:.4g}",
        squash=squash,
        classes=tuple(
            ClassMap(row.name, kind, len(one.object_units), found)
            for row, one, (kind, found) in zip(result.classes, lists, maps, strict=True)
        ),
        images=draws.units,
        before=None if squash else reliability_of(together, draws.weights, level),
        after=reliability_of(told, draws.weights, level),
        found=tuple(
            Ruled(found(one.scores), len(one.object_units)) for one, (_, found) in zip(lists, maps, strict=True)
        ),
    )


def maps_of(lists: Sequence[RankedList], squash: bool = False) -> list[tuple[str, RisingMap]]:
    """The map of each class with its kind."""
    together = all_together(lists)
    found = []
    for one in lists:
        good = int(np.count_nonzero(one.hits))
        fewest = min(good, len(one.hits) - good)
        if fewest >= MANY:
            found.append(("isotonic", isotonic(one.scores, one.hits)))
        elif fewest >= SOME:
            found.append(("two parameters", two_parameters(one.scores, one.hits, squash)))
        else:
            found.append(("of all classes", two_parameters(together.scores, together.hits, squash)))
    return found


def in_unit(scores: Floats, squash: bool) -> Floats:
    """Scores in [0, 1]: as they are, or squashed."""
    if squash:
        return squashed(scores)
    if len(scores) and not (scores.min() >= 0.0 and scores.max() <= 1.0):
        raise InputError(
            f"Expected scores in [0, 1], like those that the calibration was made from, but got {scores.min():g} to "
            f"{scores.max():g}."
        )
    return scores


def _squashed(ranked: RankedList, squash: bool) -> RankedList:
    return RankedList(in_unit(ranked.scores, squash), ranked.hits, ranked.units, ranked.object_units)


def _out_of_fold(lists: Sequence[RankedList], fold: NDArray[np.int64], squash: bool) -> RankedList:
    """All detections as one list, each with the probability by maps that the units of other folds led to."""
    scores = [np.zeros(len(one.scores)) for one in lists]
    for f in np.unique(fold):
        maps = maps_of([one.of_units(fold != f) for one in lists], squash)
        for own, one, (_, found) in zip(scores, lists, maps, strict=True):
            inside = fold[one.units] == f
            own[inside] = found(one.scores[inside])
    return all_together(
        [RankedList(own, one.hits, one.units, one.object_units) for own, one in zip(scores, lists, strict=True)]
    )


def _like(found: Floats, given: Any) -> Any:
    """Double precision, where two scores stay apart, in the form of what was given."""
    if hasattr(given, "detach"):
        import torch

        return torch.from_numpy(found).to(given.device)
    return found if isinstance(given, np.ndarray) else found.tolist()
