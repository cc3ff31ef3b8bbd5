"""`stepgrad explain`: what holds the mAP of detections back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from stepgrad.cli.terminal import Terminal
from stepgrad.errors import ConfigError


def explain(
    *,
    detections: Path | None = None,
    run: Path | None = None,
    data: Path | None = None,
    split: str | None = None,
    protocol: str | None = None,
    nms: float | None = None,
    class_names: list[str] | None = None,
    degenerate: Literal["error", "drop"] = "error",
    plot: Path | None = None,
    report: Path | None = None,
    checkpoint: str = "best",
    images_outside: bool = False,
    task: Literal["boxes", "masks", "keypoints", "oriented", "segments"] = "boxes",
    sigmas: list[float] | None = None,
) -> int:
    """Find out what holds mAP back: the order of scores, NMS, labels, boxes, or objects without a window.

    Prints a ladder of bounds, each the mAP of the same detections with one more kind of mistake undone, and what to do next:

        stepgrad explain --detections results.json --data annotations.json
        stepgrad explain --detections windows.json --data annotations.json --nms 0.5 --plot ladder.png
        stepgrad explain --detections poses.json --data person_keypoints.json --task keypoints
        stepgrad explain --run runs/voc

    Args:
        detections: The detections to explain, in a form that `stepgrad evaluate` reads, with low scores, too.
        run: The folder of a training run to detect with, by default on its own validation data.
        data: The data of the detections: a VOC folder, a COCO json file or folder, a YOLO data.yaml, or `shapes`.
        split: The split of the data, such as `test`; by default every annotated image.
        protocol: The protocol to judge by, as for `stepgrad evaluate`.
        nms: The overlap threshold of NMS, if the detections are windows before NMS; this adds a bound.
        class_names: The classes of a VOC folder, in the order of the labels.
        degenerate: How to treat objects without area: as an error (`error`), or by leaving them out (`drop`).
        plot: The file (.png, .svg, .pdf) for a picture of the ladder.
        report: The file to write all numbers to, as JSON.
        checkpoint: The weights of the run to detect with: best, last, or the step of a checkpoint.
        images_outside: Whether file names and links in the data may lead out of its folder.
        task: What to compare, as for `stepgrad evaluate`: boxes, masks, keypoints, oriented (boxes) or segments (of time).
        sigmas: A sigma for each keypoint with --task keypoints, as for `stepgrad evaluate`.

    Returns:
        0.
    """
    from stepgrad.cli.judged import read_or_run
    from stepgrad.cli.provenance import provenance
    from stepgrad.evaluation.explain import explain as explain_detections
    from stepgrad.evaluation.result import evaluate_under
    from stepgrad.files import write_whole
    from stepgrad.metric.protocol import get_protocol

    if run is not None and nms is not None:
        raise ConfigError(
            "nms: is for windows before NMS with --detections; a run detects with NMS: leave the option out."
        )
    made = read_or_run(detections, run, data, split, class_names, degenerate, checkpoint, images_outside, task, sigmas)
    evidence = made.evidence()
    judged_by = evidence.overlap.adapt(get_protocol(protocol or made.protocol))
    made.warn_of_mistakes(evaluate_under(evidence, judged_by))
    found = explain_detections(evidence, judged_by, nms)
    Terminal(markup=False, soft_wrap=True).print(str(found))
    if plot:
        found.plot(plot)
    if report:
        files = {"detections": detections, "run": run, "data": data}
        options = {"split": split, "nms": nms, "class_names": class_names, "degenerate": degenerate, "sigmas": sigmas}
        options |= {"task": None if task == "boxes" else task}
        came = provenance(files, evidence, [judged_by], options | {"checkpoint": checkpoint if run else None})
        write_whole(Path(report), (json.dumps(found.to_dict() | {"provenance": came}, indent=1) + "\n").encode())
    return 0
