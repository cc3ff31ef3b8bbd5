"""`stepgrad calibrate`: scores that mean what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from stepgrad.cli.app import Whole
from stepgrad.cli.terminal import Terminal
from stepgrad.errors import ConfigError, DataError


def calibrate(
    *,
    detections: Path | None = None,
    run: Path | None = None,
    data: Path | None = None,
    out: Path | None = None,
    calibration: Path | None = None,
    apply: Path | None = None,
    save_detections: Path | None = None,
    plot: Path | None = None,
    split: str | None = None,
    protocol: str | None = None,
    match_threshold: float | None = None,
    folds: Whole = 5,
    resamples: Whole = 200,
    seed: Whole = 0,
    group: str | None = None,
    class_names: list[str] | None = None,
    degenerate: Literal["error", "drop"] = "error",
    checkpoint: str = "best",
    images_outside: bool = False,
    task: Literal["boxes", "masks", "keypoints", "oriented", "segments"] = "boxes",
    sigmas: list[float] | None = None,
) -> int:
    """Turn scores into probabilities that a detection is right, on images that the detector was not trained on.

    The order of the scores of a class stays, and with it the AP. Prints how far scores could be trusted before and after:

        stepgrad calibrate --detections val.json --data annotations.json --out calibration.json --plot reliability.png
        stepgrad calibrate --calibration calibration.json --apply new.json --save_detections better.json

    Args:
        detections: The detections, in a form that `stepgrad evaluate` reads, with low scores, too.
        run: The folder of a training run to detect with, by default on its own validation data.
        data: The data of the detections: a VOC folder, a COCO json file or folder, a YOLO data.yaml, a DOTA folder, or `shapes`.
        out: The file to write the maps to: .json for this command and Python, or .onnx to ship with a model.
        calibration: A .json file that --out wrote, for --apply without --detections.
        apply: Other detections to calibrate, a result .json of COCO or of `yolo val`.
        save_detections: Where to write these; by default beside them, as NAME.calibrated.json.
        plot: The file (.png, .svg, .pdf) for a reliability chart.
        split: The split of the data, such as `val`; by default every annotated image.
        protocol: The protocol to judge by, as for `stepgrad evaluate`.
        match_threshold: The overlap from which on a detection is right, one of the protocol's; by default its first.
        folds: The number of parts of the images; what is printed is counted on each with the maps of the others.
        resamples: How often the images are drawn anew for the intervals.
        seed: The seed of the parts and draws.
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
    from stepgrad.deploy import calibrate as make
    from stepgrad.deploy.calibration_files import read_calibration
    from stepgrad.deploy.calibration_writing import check_name
    from stepgrad.evaluation.result import evaluate_under
    from stepgrad.metric.protocol import get_protocol

    if save_detections is not None and apply is None:
        raise ConfigError("save_detections: needs --apply, the detections to calibrate.")
    console = Terminal(markup=False, soft_wrap=True)
    if calibration is not None:
        if apply is None or any(given is not None for given in (detections, run, data, out, plot)):
            raise ConfigError(
                "calibration: is for --apply alone; leave out --detections, --run, --data, --out and --plot, or leave out "
                "--calibration to make a new one."
            )
        found = read_calibration(calibration)
    else:
        if out is not None:
            check_name(out)
        made = read_or_run(
            detections, run, data, split, class_names, degenerate, checkpoint, images_outside, task, sigmas
        )
        evidence = made.evidence()
        judged_by = evidence.overlap.adapt(get_protocol(protocol or made.protocol))
        result = evaluate_under(evidence, judged_by)
        made.warn_of_mistakes(result)
        groups = None if group is None else read_groups(group, made.dataset)
        found = make(
            result, match_threshold=match_threshold, folds=folds, resamples=resamples, seed=seed, groups=groups
        )
        found = replace(found, category_ids=made.category_ids)
        console.print(str(found))
        if out is not None:
            files = {"detections": detections, "run": run, "data": data}
            options: dict[str, Any] = {
                "split": split,
                "class_names": class_names,
                "degenerate": degenerate,
                "sigmas": sigmas,
            }
            options |= {"group": group, "match_threshold": match_threshold, "folds": folds, "seed": seed}
            options |= {"task": None if task == "boxes" else task, "checkpoint": checkpoint if run else None}
            found.save(out, provenance(files, evidence, [judged_by], options))
        if plot is not None:
            found.plot(plot)
    if apply is not None:
        place = save_detections or apply.with_name(f"{apply.stem}.calibrated.json")
        count = _apply(found, apply, place)
        console.print(f"{count} detections with calibrated scores: {place}")
    return 0


def _apply(calibration: object, source: Path, place: Path) -> int:
    """Calibrate the detections of a result file; returns how many there are."""
    from stepgrad.data.read_detections import json_entries
    from stepgrad.deploy.calibration import Calibration
    from stepgrad.errors import InputError
    from stepgrad.files import write_whole

    assert isinstance(calibration, Calibration)
    rows, fields = json_entries(source.expanduser()), ("category_id", "score")
    if not all(isinstance(row, dict) and all(f in row for f in fields) for row in rows):
        raise DataError(f"{source}: expected a list of detections with category_id and score (COCO's result format)")
    try:
        found = calibration.apply(rows)
    except InputError as error:
        raise DataError(f"{source}: {error}") from None
    write_whole(place.expanduser(), json.dumps(found).encode())
    return len(found)
