"""Objects in any picture by a trained run: its windows, its detections, and which of them to show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageOps
from torch import Tensor

from stepgrad.data.images import image_to_tensor, read_image
from stepgrad.data.proposals import load_proposals
from stepgrad.data.proposals.search import check_installed, selective_search
from stepgrad.detector.training.inputs import choose_windows
from stepgrad.errors import DataError

if TYPE_CHECKING:
    from stepgrad.detector.training.run_folder import Run

WindowsOf = Callable[[Path, Image.Image], Tensor]
SEARCH_SIDE = 500
"""Larger pictures are shrunk to this longest side for the search alone: about the size of VOC's photographs."""
TOP = 10


def detect_in(run: Run, picture: Image.Image, windows: Tensor) -> list[dict[str, Any]]:
    """The detections in a picture, each with its box, label, class and score."""
    with torch.inference_mode():
        tensors = run.model([image_to_tensor(picture)], [windows])[0]
    rows = zip(*(tensors[key].tolist() for key in ("boxes", "labels", "scores")), strict=True)
    return [{"box": b, "label": n, "class": run.class_names[n], "score": s} for b, n, s in rows]


def read_upright(path: Path) -> Image.Image:
    """The picture turned upright, as its EXIF block says."""
    if not path.exists():
        raise DataError(f"{path}: no such picture; check the path.")
    picture = read_image(path)
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # a damaged EXIF block says nothing, and the pixels are fine
        return picture


@dataclass(frozen=True)
class Choice:
    """The rule for which detections of a picture are shown: those that reach a threshold, or the best few."""

    text: str
    """The rule in words."""
    by_class: Mapping[str, float] = field(default_factory=dict)
    """Thresholds of single classes."""
    threshold: float = -math.inf
    """The one of all other classes."""
    top: int | None = None

    @classmethod
    def of(cls, run: Run, threshold: float | None, top: int | None) -> Choice:
        """The threshold or number asked for, else the best thresholds of validation, else a default for the kind of score."""
        why = ""
        if threshold is None and top is None:
            if run.thresholds:  # a class without one was never found in validation
                text = "showing scores that reach the threshold of their class, the one with the best F1 in validation"
                return cls(text, run.thresholds, math.inf)
            if run.config.score == "logprob":  # the scores of detections are probabilities
                threshold = 0.5
            else:
                top = TOP
                why = " (raw scores have no natural threshold; choose one with --threshold, or a number with --top)"
        parts = [] if threshold is None else [f"scores of at least {threshold:g}"]
        parts += [] if top is None else [f"the {top} best of each picture"]
        return cls(
            f"showing {' and '.join(parts)}{why}", threshold=-math.inf if threshold is None else threshold, top=top
        )

    @classmethod
    def by_file(
        cls, file: Path, thresholds: Mapping[str, float | None], class_names: Sequence[str], top: int | None
    ) -> Choice:
        """The thresholds of a file, which has one for each class of the run."""
        missing = [name for name in class_names if name not in thresholds]
        if missing:
            raise DataError(
                f"{file}: expected a threshold for each class of the run but {', '.join(missing)} have none; the file has "
                f"{', '.join(thresholds) or 'no classes'}. null stands for a class that is never shown."
            )
        best = "" if top is None else f" and the {top} best of each picture"
        text = f"showing scores that reach the threshold of their class in {file}{best}"
        levels = {name: math.inf if value is None else value for name, value in thresholds.items()}
        return cls(text, levels, math.inf, top)

    def keep(self, detections: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The detections to show, by decreasing score."""
        ranked = sorted(detections, key=lambda detection: -detection["score"])
        return [found for found in ranked if found["score"] >= self.by_class.get(found["class"], self.threshold)][
            : self.top
        ]


def find_windows(source: Path | None, limit: int | None) -> WindowsOf:
    """A function that gives the (N, 4) windows of a picture, at most as many as in training: by a search, or from disk."""
    if source is None:
        check_installed()
        return lambda path, picture: choose_windows(search_windows(picture), limit, path.stem)
    stored = load_proposals(source)
    best_first = stored.source.endswith(".mat")

    def look_up(path: Path, _: Image.Image) -> Tensor:
        for key in (path.stem, path.name, path.stem.lstrip("0")):  # COCO's ids are numbers
            if key in stored:
                return choose_windows(stored[key], limit, path.stem, best_first)
        raise DataError(f"{path}: {stored.source} has no windows for it; leave out --windows to search for windows.")

    return look_up


def search_windows(picture: Image.Image) -> Tensor:
    """Selective search on the picture, shrunk if it is large: a second or two, whatever its size."""
    width, height = picture.size
    scale = max(1.0, max(width, height) / SEARCH_SIDE)
    small_size = (max(1, round(width / scale)), max(1, round(height / scale)))
    small = picture if scale == 1.0 else picture.resize(small_size)
    windows = torch.from_numpy(selective_search(small)).float()
    return windows * torch.tensor([width / small.width, height / small.height] * 2)
