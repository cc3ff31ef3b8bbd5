"""`stepgrad explain`: what holds the mAP of detections back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from stepgrad.cli.terminal import Terminal
from stepgrad.errors import ConfigError

_WINDOWS = 3000
"""Per image, before NMS."""


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
    model: Path | None = None,
    recipe: list[str] | None = None,
    model_classes: Path | None = None,
) -> int:
    """Find out what holds mAP back: the order of scores, NMS, labels, boxes, or objects without a window.

    Prints a ladder of bounds, each the mAP of the same detections with one more kind of mistake undone, and what to do next:

        stepgrad explain --detections results.json --data annotations.json
        stepgrad explain --detections windows.json --data annotations.json --nms 0.5 --plot ladder.png
        stepgrad explain --detections poses.json --data person_keypoints.json --task keypoints
        stepgrad explain --run runs/voc
        stepgrad explain --model best.onnx --data my.yaml --nms 0.7

    Args:
        detections: The detections to explain, in a form that `stepgrad evaluate` reads, with low scores, too.
        run: The folder of a training run to detect with, by default on its own validation data.
        data: The data of the detections: a VOC folder, a COCO json file or folder, a YOLO data.yaml, or `shapes`.
        split: The split of the data, such as `test`; by default every annotated image.
        protocol: The protocol to judge by, as for `stepgrad evaluate`.
        nms: The overlap threshold of NMS, if the detections are windows before NMS; this adds a bound. With --model, its windows
            before NMS are looked at.
        class_names: The classes of a VOC folder, in the order of the labels.
        degenerate: How to treat objects without area: as an error (`error`), or by leaving them out (`drop`).
        plot: The file (.png, .svg, .pdf) for a picture of the ladder.
        report: The file to write all numbers to, as JSON.
        checkpoint: The weights of the run to detect with: best, last, or the step of a checkpoint.
        images_outside: Whether file names and links in the data may lead out of its folder.
        task: What to compare, as for `stepgrad evaluate`: boxes, masks, keypoints, oriented (boxes) or segments (of time).
        sigmas: A sigma for each keypoint with --task keypoints, as for `stepgrad evaluate`.
        model: An exported detector .onnx, or weights .pt of ultralytics, to run on the images of --data.
        recipe: What to do otherwise than usual before and after the network of --model: NAME=VALUE, as for `stepgrad evaluate`.
        model_classes: A text file with the name of a class in each line, for a model whose file does not name its classes.

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
    if model is None:
        if recipe or model_classes:
            raise ConfigError("recipe, model-classes: are for --model; leave them out.")
        made = read_or_run(
            detections, run, data, split, class_names, degenerate, checkpoint, images_outside, task, sigmas
        )
    else:
        if detections is not None or run is not None or data is None or task != "boxes":
            raise ConfigError(
                "Expected --model with --data (images with annotations), without --detections, --run and --task."
            )
        from stepgrad.cli.exported import run_models
        from stepgrad.data import load_dataset

        words = [*(recipe or []), *([] if nms is None else _before_nms(recipe or []))]
        dataset = load_dataset(
            data, split, class_names=class_names, degenerate=degenerate, images_outside=images_outside
        )
        name = model.name, ""
        made = run_models(model, None, dataset, (words, None), model_classes, protocol, name, None).model
    evidence = made.evidence()
    judged_by = evidence.overlap.adapt(get_protocol(protocol or made.protocol))
    made.warn_of_mistakes(evaluate_under(evidence, judged_by))
    found = explain_detections(evidence, judged_by, nms)
    Terminal(markup=False, soft_wrap=True).print(str(found))
    if plot:
        found.plot(plot)
    if report:
        files = {"detections": detections, "run": run, "model": model, "data": data}
        options = {"split": split, "nms": nms, "class_names": class_names, "degenerate": degenerate, "sigmas": sigmas}
        options |= {"task": None if task == "boxes" else task, "recipe": recipe}
        came = provenance(files, evidence, [judged_by], options | {"checkpoint": checkpoint if run else None})
        write_whole(Path(report), (json.dumps(found.to_dict() | {"provenance": came}, indent=1) + "\n").encode())
    return 0


def _before_nms(recipe: list[str]) -> list[str]:
    """What makes a model hand out its windows before NMS, unless the recipe says how many."""
    limit = [] if any(word.startswith("max_detections=") for word in recipe) else [f"max_detections={_WINDOWS}"]
    return ["nms=none", *limit]
