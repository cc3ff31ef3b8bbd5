"""Thresholds applied to detections in the forms that detectors and tools give them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.deploy.cut_files import read_cuts
from stepgrad.errors import InputError, suggest

_COLUMNS = ("boxes", "scores", "labels", "masks", "keypoints", "areas")


@dataclass(frozen=True)
class Cuts:
    """The threshold of each class, in the order of labels; None: nothing passes."""

    by_class: Mapping[str, float | None]
    overall: float | None = None
    category_ids: Sequence[int] | None = None
    """COCO's id of each class, if known."""

    @property
    def levels(self) -> NDArray[np.float64]:
        """(K,) the least score that passes, infinite where nothing does."""
        return np.array([_level(threshold) for threshold in self.by_class.values()], dtype=np.float64)

    def pass_labels(self, scores: Any, labels: Any) -> NDArray[np.bool_]:
        """Which detections reach the threshold of their class, by labels."""
        return _reach(plain(scores), self.levels[plain_labels(labels, len(self.by_class))])

    def pass_names(self, scores: Any, names: Sequence[str]) -> NDArray[np.bool_]:
        """Which detections reach the threshold of their class, by the names of classes."""
        known = list(self.by_class)
        for name in dict.fromkeys(names):
            if name not in self.by_class:
                raise InputError(
                    f"Expected one of the classes of the thresholds, {', '.join(known)}, but got {name!r}."
                    f"{suggest(name, known)}"
                )
        return _reach(plain(scores), np.array([_level(self.by_class[name]) for name in names], dtype=np.float64))


def apply_thresholds(detections: Any, thresholds: Any) -> Any:
    """The detections that reach the threshold of their class, in the form in which they were given.

    Args:
        detections: of one image, a dict of boxes, scores and labels (as `Evaluator.update` takes them), supervision's
            `Detections` or ultralytics' `Results`; a list of such; or a list of COCO's results (with category_id and score).
        thresholds: of `sg.thresholds`, or the file that their `save` wrote, or a dict of a threshold by class, in the order
            of labels.

    >>> import torch
    >>> found = {"boxes": torch.zeros(3, 4), "scores": torch.tensor([0.9, 0.4, 0.4]), "labels": torch.tensor([0, 0, 1])}
    >>> apply_thresholds(found, {"dog": 0.5, "cat": 0.3})["labels"].tolist()
    [0, 1]
    """
    cuts = cuts_of(thresholds)
    if isinstance(detections, (list, tuple)):
        if detections and isinstance(detections[0], Mapping) and "category_id" in detections[0]:
            return _of_coco(detections, cuts)
        return type(detections)(_of_image(one, cuts) for one in detections)
    return _of_image(detections, cuts)


def cuts_of(thresholds: Any) -> Cuts:
    """The thresholds themselves, whatever holds them."""
    if isinstance(thresholds, Cuts):
        return thresholds
    held = getattr(thresholds, "cuts", None)
    if isinstance(held, Cuts):
        return held
    if isinstance(thresholds, Mapping):
        return Cuts(dict(thresholds))
    if isinstance(thresholds, (str, Path)):
        found = read_cuts(Path(thresholds))
        return Cuts(found["thresholds"], found.get("overall"), found.get("category_ids"))
    raise InputError(
        f"Expected thresholds of `sg.thresholds`, a file of them, or a dict by class, but got {type(thresholds).__name__}."
    )


def predictor_hook(thresholds: Any) -> Any:
    """A callback that cuts the results of an ultralytics predictor:
    `model.add_callback("on_predict_postprocess_end", predictor_hook("thresholds.json"))`.

    The predictor's own `conf` has to be as low as the lowest threshold: `model.predict(source, conf=0.001)`.
    """
    cuts = cuts_of(thresholds)
    lowest = float(cuts.levels.min(initial=np.inf))

    def cut(predictor: Any) -> None:
        conf = predictor.args.conf
        if conf is not None and conf > lowest:
            raise InputError(
                f"Expected the predictor's conf to be at most the lowest threshold, {lowest:.4g}, but got {conf:g}: it would "
                f"leave out detections that the thresholds let pass; call predict(..., conf={max(lowest / 2, 0):.2g})."
            )
        predictor.results = apply_thresholds(list(predictor.results), cuts)

    return cut


def _of_image(detections: Any, cuts: Cuts) -> Any:
    if isinstance(detections, Mapping):
        if "scores" not in detections or "labels" not in detections:
            raise InputError(f"Expected a dict with scores and labels but got one with {sorted(map(str, detections))}.")
        keep = cuts.pass_labels(detections["scores"], detections["labels"])
        return {name: _taken(value, keep) if name in _COLUMNS else value for name, value in detections.items()}
    if hasattr(detections, "confidence") and hasattr(detections, "class_id"):  # supervision
        if detections.confidence is None or detections.class_id is None:
            raise InputError("Expected supervision's Detections with confidence and class_id but one of them is None.")
        names = (detections.data or {}).get("class_name")
        if names is None:
            return detections[cuts.pass_labels(detections.confidence, detections.class_id)]
        return detections[cuts.pass_names(detections.confidence, [str(name) for name in names])]
    if hasattr(detections, "names") and hasattr(detections, "boxes"):  # ultralytics
        found = detections.boxes if detections.boxes is not None else detections.obb
        labels = plain(found.cls).astype(np.int64).tolist()
        return detections[cuts.pass_names(found.conf, [detections.names[label] for label in labels])]
    raise InputError(
        "Expected detections as a dict of boxes, scores and labels, supervision's Detections, ultralytics' Results, or COCO's "
        f"results, but got {type(detections).__name__}."
    )


def labels_of_rows(rows: Sequence[Mapping[str, Any]], category_ids: Sequence[int] | None, expected: str) -> list[int]:
    """The label of each of COCO's results; an InputError says what was `expected` if the ids are not known."""
    if category_ids is None:
        raise InputError(f"Expected {expected}")
    label = {category: c for c, category in enumerate(category_ids)}
    unknown = next((row["category_id"] for row in rows if row["category_id"] not in label), None)
    if unknown is not None:
        raise InputError(f"Expected category ids among {list(category_ids)} but got {unknown!r}.")
    return [label[row["category_id"]] for row in rows]


def _of_coco(rows: Sequence[Mapping[str, Any]], cuts: Cuts) -> list[Mapping[str, Any]]:
    expected = (
        "thresholds that know COCO's category ids; those that `stepgrad thresholds --out` writes for COCO's files do, and "
        "`save(path, category_ids=...)` takes them."
    )
    passing = cuts.pass_labels([row["score"] for row in rows], labels_of_rows(rows, cuts.category_ids, expected))
    return [row for row, passes in zip(rows, passing.tolist(), strict=True) if passes]


def _level(threshold: float | None) -> float:
    return np.inf if threshold is None else float(threshold)


def _reach(scores: NDArray[Any], levels: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Scores of single precision are compared with thresholds of it: those of the held-out images came so, too."""
    if scores.dtype.itemsize < 8 and scores.dtype.kind == "f":
        levels = levels.astype(scores.dtype)
    passes: NDArray[np.bool_] = scores >= levels
    return passes


def plain_labels(labels: Any, classes: int) -> NDArray[np.int64]:
    """Labels as an array; InputError for any that is none of the classes."""
    wanted = plain(labels).astype(np.int64)
    if len(wanted) and not (wanted.min() >= 0 and wanted.max() < classes):
        raise InputError(
            f"Expected labels in [0, {classes}), the classes that are known, but got {wanted.min()} to {wanted.max()}; labels "
            "that count background as 0 need 1 subtracted."
        )
    return wanted


def plain(values: Any) -> NDArray[Any]:
    """A tensor of any device, an array or a list as an array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.dtype.is_floating_point and values.element_size() < 4 else values
        return np.asarray(values.numpy())
    return np.asarray(values)


def _taken(values: Any, keep: NDArray[np.bool_]) -> Any:
    """The rows to keep of a tensor, an array or a list."""
    if hasattr(values, "detach"):
        import torch

        return values[torch.from_numpy(keep).to(values.device)]
    if isinstance(values, np.ndarray):
        return values[keep]
    return [value for value, kept in zip(values, keep.tolist(), strict=True) if kept]
