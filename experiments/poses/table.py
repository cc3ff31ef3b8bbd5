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
effort (eight trainings; 32 readings of pose scoring). In round brackets the spread over three seeds, in square ones 95 %
intervals over images, paired. A *quality* is added to the detector's own logit; a *new head* replaces it. AMD EPYC, one thread.

The scores also get to know how LSP is annotated, which differs from COCO, so a part of every gain is that of another domain. The
comparison with box-aligned training and with exact box AP, which know the same images, is free of it: they lose."""


def page(file: Path) -> str:
    """The page of the runs on record."""
    found = Page(file, POSES, set="LSP")
    curve = [found.curve()] if any(run["images"] for run in found.runs("final")) else []
    return "\n\n".join([INTRODUCTION, found.arms(), *curve, found.settings()]) + "\n"
