"""The page of `experiments.poses.trial`: `python -m experiments.render poses`."""

from __future__ import annotations

from pathlib import Path

from experiments.masks.table import Page
from experiments.poses.trial import POSES

INTRODUCTION = """# Scores that follow poses: a frozen YOLO11n-pose on athletes

`python -m experiments.poses.windows --data LSP --weights yolo11n-pose.onnx --cache DIR`, then
`python -m experiments.poses.trial choose --cache DIR --out FILE.jsonl`, `bounds`, `final`, `intervals`.

Trained on 1,500 images of the extended Leeds Sports Pose set, judged on 1,500 others, once (a few with less than six labelled
joints are left out). The detector was trained on COCO. OKS counts the twelve joints that both have. One person per image is
annotated, by hands that err; windows that overlap its box by less than a tenth are left out, and its box is that of its joints, a
tenth larger to each side, so box AP is a rough number. Every arm was tuned on a fifth of the training images with equal
effort. In round brackets the spread over three seeds, in square ones 95 % intervals over images, paired. A *quality* is added to
the detector's own logit; a *new head* replaces it."""


def page(file: Path) -> str:
    """The page of the runs on record."""
    found = Page(file, POSES, set="LSP")
    return "\n\n".join([INTRODUCTION, found.arms(), found.curve(), found.settings()]) + "\n"
