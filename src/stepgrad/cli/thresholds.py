"""`stepgrad thresholds`: from which score on a detection should be shown, and what that is worth on new images."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from stepgrad.cli.app import Whole
from stepgrad.cli.terminal import Terminal


def thresholds(
    *,
    detections: Path | None = None,
    run: Path | None = None,
    data: Path | None = None,
    wish: str = "f1",
    out: Path | None = None,
    split: str | None = None,
    protocol: str | None = None,
    match_threshold: float | None = None,
    folds: Whole = 10,
    seed: Whole = 0,
    group: str | None = None,
    class_names: list[str] | None = None,
    degenerate: Literal["error", "drop"] = "error",
    checkpoint: str = "best",
    images_outside: bool = False,
    task: Literal["boxes", "masks", "keypoints", "oriented", "segments"] = "boxes",
    sigmas: list[float] | None = None,
) -> int:
    """Choose thresholds of scores on images that the detector was not trained on, and say what to expect of new images.

    Prints a table with a threshold for each class and one for all, and the precision, recall and F1 to expect, with intervals:

        stepgrad thresholds --detections val.json --data annotations.json --wish "recall@precision=0.9" --out thresholds.json
        stepgrad thresholds --detections val.json --data my.yaml --split val --wish cost@false_alarm=1,miss=10
        stepgrad thresholds --run runs/voc --out thresholds.json

    `stepgrad detect --thresholds thresholds.json` and `sg.apply_thresholds` use the file.

    Args:
        detections: The detections, in a form that `stepgrad evaluate` reads, with low scores, too.
        run: The folder of a training run to detect with, by default on its own validation data.
        data: The data of the detections: a VOC folder, a COCO json file or folder, a YOLO data.yaml, a DOTA folder, or `shapes`.
        wish: What the thresholds should achieve: the best `f1`; as much recall as possible at a precision
            (`recall@precision=0.9`, or short `precision=0.9`); the best precision at a recall (`precision@recall=0.8`, or
            `recall=0.8`); or the least cost (`cost@false_alarm=1,miss=10`).
        out: The file (.json or .yaml) to write thresholds and numbers to.
        split: The split of the data, such as `val`; by default every annotated image.
        protocol: The protocol to judge by, as for `stepgrad evaluate`.
        match_threshold: The overlap from which on a detection is right, one of the protocol's; by default its first.
        folds: The number of parts of the images; each is counted at the thresholds that the others lead to.
        seed: The seed of the parts.
        group: Which images belong together, such as the frames of a clip: as for `stepgrad evaluate`.
        class_names: The classes of a VOC folder, in the order of the labels.
        degenerate: How to treat objects without area: as an error (`error`), or by leaving them out (`drop`).
        checkpoint: The weights of the run to detect with: best, last, or the step of a checkpoint.
        images_outside: Whether file names and links in the data may lead out of its folder.
        task: What to compare, as for `stepgrad evaluate`: boxes, masks, keypoints, oriented (boxes) or segments (of time).
        sigmas: A sigma for each keypoint with --task keypoints, as for `stepgrad evaluate`.

    Returns:
        0.
    """
    from stepgrad.cli.judged import read_or_run
    from stepgrad.cli.provenance import provenance
    from stepgrad.data.groups import read_groups
    from stepgrad.deploy import thresholds as choose
    from stepgrad.deploy.cut_files import check_name
    from stepgrad.deploy.wish import wish_of
    from stepgrad.evaluation.result import evaluate_under
    from stepgrad.metric.protocol import get_protocol

    wished = wish_of(wish)
    if out is not None:
        check_name(out)
    made = read_or_run(detections, run, data, split, class_names, degenerate, checkpoint, images_outside, task, sigmas)
    evidence = made.evidence()
    judged_by = evidence.overlap.adapt(get_protocol(protocol or made.protocol))
    result = evaluate_under(evidence, judged_by)
    made.warn_of_mistakes(result)
    chosen = choose(
        result,
        wished.name,
        match_threshold=match_threshold,
        folds=folds,
        seed=seed,
        groups=None if group is None else read_groups(group, made.dataset),
    )
    Terminal(markup=False, soft_wrap=True).print(str(chosen))
    if out is not None:
        files = {"detections": detections, "run": run, "data": data}
        options = {
            "split": split,
            "class_names": class_names,
            "degenerate": degenerate,
            "sigmas": sigmas,
            "group": group,
        }
        options |= {"task": None if task == "boxes" else task, "checkpoint": checkpoint if run else None}
        came = provenance(files, evidence, [judged_by], options)
        chosen.save(out, category_ids=made.category_ids, provenance=came)
    return 0
