"""Thresholds of a finished detector, chosen on held-out images, and what they are worth on new ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.deploy.apply import Cuts, apply_thresholds
from stepgrad.deploy.chosen import choose
from stepgrad.deploy.cut_files import save_cuts
from stepgrad.deploy.expected import Expected
from stepgrad.deploy.ranked import RankedList, ranked_list
from stepgrad.deploy.wish import Wish, wish_of
from stepgrad.errors import whole_number
from stepgrad.evaluation.class_result import position_of
from stepgrad.evaluation.intervals import FEW_IMAGES, check_level, judged_lists
from stepgrad.evaluation.resampling import Resamples
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.number_text import counted

FOLDS = 10
FEW_PASSING = 10
"""Detections that pass, below which precision is next to unknown."""
_SHOWN = 10  # classes in a line of text
_HEADS = {"precision": "precision", "recall": "recall", "f1": "F1", "cost": "cost of 100 images"}


@dataclass(frozen=True)
class ClassThreshold:
    """The threshold of one class, or the one that all classes share."""

    name: str
    threshold: float | None
    """The least score that passes; None: nothing passes."""
    objects: int
    images: int
    """Images, or groups of them, with objects of the class."""
    passing: int
    """Detections on these images that reach it."""
    is_kept: bool
    """Whether the precision or recall that was asked for is kept on these images."""
    expected: Expected

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for json."""
        return {
            "name": self.name,
            "threshold": self.threshold,
            "objects": self.objects,
            "images": self.images,
            "passing": self.passing,
            "kept": self.is_kept,
            "expected": self.expected.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Thresholds by class and the one for all classes together. `print` shows a table."""

    wish: str
    protocol: str
    overlap: str
    """What detections and objects were compared by, and from which value on, such as "IoU 0.5"."""
    classes: tuple[ClassThreshold, ...]
    overall: ClassThreshold
    """One threshold that all classes share; classes without objects get it, too."""
    expected: Expected
    """Of the thresholds by class: the mean over the classes that have objects; costs are summed."""
    images: int
    """Images, or groups of them, that thresholds were chosen on."""
    folds: int
    level: float
    seed: int

    @property
    def by_class(self) -> dict[str, float | None]:
        """The threshold of each class, in the order of labels; None: nothing passes."""
        return {row.name: row.threshold for row in self.classes}

    @property
    def warnings(self) -> list[str]:
        """What these images cannot promise, in words."""
        return list(_warnings(self))

    @property
    def cuts(self) -> Cuts:
        """What `apply_thresholds` needs."""
        return Cuts(self.by_class, self.overall.threshold)

    def apply_thresholds(self, detections: Any) -> Any:
        """The detections that reach the threshold of their class, in whatever form `sg.apply_thresholds` takes."""
        return apply_thresholds(detections, self.cuts)

    def save(
        self,
        path: str | Path,
        category_ids: Sequence[int] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        """Write thresholds and all numbers as JSON, or as YAML if the name ends so; `sg.apply_thresholds` reads both.

        Args:
            path: where to.
            category_ids: COCO's id of each class, with which COCO's results can be cut.
            provenance: how the numbers came.
        """
        content = self.to_dict()
        if category_ids is not None:
            content["category_ids"] = list(category_ids)
        if provenance is not None:
            content["provenance"] = dict(provenance)
        save_cuts(Path(path), content)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for json."""
        return {
            "thresholds": self.by_class,
            "overall": self.overall.threshold,
            "wish": self.wish,
            "protocol": self.protocol,
            "overlap": self.overlap,
            "images": self.images,
            "cross_validation": {"folds": self.folds, "seed": self.seed},
            "intervals": {"level": self.level},
            "expected": self.expected.to_dict(),
            "expected_overall": self.overall.expected.to_dict(),
            "classes": [row.to_dict() for row in self.classes],
            "warnings": self.warnings,
        }

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, a row per class, their mean, and the threshold that all share."""
        header = ["class", "threshold", "objects", "images", *(_HEADS[name] for name in self.expected)]
        rows = [
            [row.name, _score_text(row.threshold), str(row.objects), str(row.images), *row.expected.cells()]
            for row in self.classes
        ]
        present = sum(row.objects > 0 for row in self.classes)
        label = f"mean of {present}" + (", sum of costs" if "cost" in self.expected.numbers else "")
        joined = [label, "", str(self.overall.objects), str(self.overall.images), *self.expected.cells()]
        one = self.overall
        shared = ["one for all", _score_text(one.threshold), str(one.objects), str(one.images), *one.expected.cells()]
        return header, [*rows, joined, shared]

    def __str__(self) -> str:
        title = (
            f"thresholds for {self.wish} ({self.protocol}, {self.overlap}), chosen on {counted(self.images, 'image')}; what "
            f"to expect of new images, with {100 * self.level:g}% intervals:"
        )
        return "\n".join([title, plain_table(*self.table()), *(f"warning: {line}" for line in self.warnings)])

    def __repr__(self) -> str:
        return f"Thresholds({self.wish!r}, classes={len(self.classes)}, images={self.images})"


def thresholds(
    result: EvaluationResult,
    wish: str | ListMetric = "f1",
    *,
    match_threshold: float | None = None,
    folds: int = FOLDS,
    level: float = 0.95,
    seed: int = 0,
    groups: Sequence[Hashable] | None = None,
) -> Thresholds:
    """Thresholds by class and one for all, chosen on images that the detector was not trained on.

    Args:
        result: a result of `Evaluator.compute()`.
        wish: what the thresholds are chosen for: "f1"; "precision=0.9" (or "recall@precision=0.9"), to find as much as
            possible at this precision; "recall=0.8" (or "precision@recall=0.8"), the best precision at which this share is found;
            "cost@false_alarm=1,miss=10".
        match_threshold: one of the protocol's thresholds on overlaps, by which a detection is right (default: the first).
        folds: what to expect of new images is cross-validated: each of so many parts of the images is counted at the thresholds
            that the others lead to. The number told is for a third the one on these images themselves.
        level: the probability of the intervals.
        seed: of the parts.
        groups: the group of each image, in the order in which images were given, if some belong together (frames of a clip).

    >>> import torch, stepgrad as sg
    >>> evaluator = sg.Evaluator(1, class_names=["dog"])
    >>> boxes = torch.tensor([[0.0, 0, 10, 10], [50, 0, 60, 10]])
    >>> for score in torch.linspace(0.6, 0.9, 40):
    ...     found = {"boxes": boxes, "scores": torch.stack([score, score - 0.4]), "labels": torch.tensor([0, 0])}
    ...     evaluator.update([found], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> found = sg.thresholds(evaluator.compute(), "recall@precision=0.9")
    >>> round(found.by_class["dog"], 3), round(found.expected["precision"].value, 3)
    (0.6, 1.0)
    """
    wished = wish_of(wish)
    wished.metric.check_protocol(result.protocol)
    check_level(level)
    whole_number("folds", folds, least=2)
    evidence = result._kept_evidence
    at = 0 if match_threshold is None else position_of(result.protocol.match_thresholds, match_threshold)
    units = Resamples.of(evidence.num_images, 1, seed, groups)
    judged = judged_lists(result.classes, evidence, result.protocol, AVERAGE_PRECISION)
    lists = [ranked_list(one, units.unit, at) for one in judged]
    fold = np.random.default_rng(seed).permutation(units.units) % folds
    chosen = choose(lists, wished, fold, level)
    named = zip((row.name for row in result.classes), lists, chosen.cuts, chosen.by_class, strict=True)
    return Thresholds(
        wish=wished.name,
        protocol=result.protocol.name,
        overlap=f"{result.overlap} {result.protocol.match_thresholds[at]:.4g}",
        classes=tuple(_row(name, one, cut, expected, wished) for name, one, cut, expected in named),
        overall=_row("all", chosen.together, chosen.shared, chosen.of_shared, wished),
        expected=chosen.mean,
        images=units.units,
        folds=folds,
        level=level,
        seed=seed,
    )


def _row(name: str, ranked: RankedList, cut: float | None, expected: Expected, wish: Wish) -> ClassThreshold:
    passing = ranked.passing(cut)
    right, passed = int(np.count_nonzero(ranked.hits & passing)), int(np.count_nonzero(passing))
    objects = len(ranked.object_units)
    return ClassThreshold(
        name=name,
        threshold=cut,
        objects=objects,
        images=len(np.unique(ranked.object_units)),
        passing=passed,
        is_kept=wish.is_kept(right, passed, objects),
        expected=expected,
    )


def _score_text(threshold: float | None) -> str:
    return "-" if threshold is None else f"{threshold:.4g}"


def _warnings(chosen: Thresholds) -> Iterator[str]:
    if chosen.images < FEW_IMAGES:
        yield f"too few images ({chosen.images}) to promise anything"
    without = [row.name for row in chosen.classes if row.objects == 0]
    if without:
        yield f"no objects, so that these classes got the threshold for all classes: {_listed(without)}"
    missed = [row.name for row in chosen.classes if row.objects > 0 and not row.is_kept]
    if missed:
        does = "all detections pass" if chosen.expected.aim == "precision" else "nothing passes"
        yield f"no threshold keeps what was asked for on these images, so that {does}: {_listed(missed)}"
    few = [row.name for row in chosen.classes if 0 < row.images < FEW_IMAGES]
    if few and chosen.images >= FEW_IMAGES:
        yield f"objects in fewer than {FEW_IMAGES} images, too few to promise anything: {_listed(few)}"
    scarce = [row.name for row in chosen.classes if row.images >= FEW_IMAGES and 0 < row.passing < FEW_PASSING]
    if scarce:
        yield f"fewer than {FEW_PASSING} detections pass, too few to promise a precision: {_listed(scarce)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
