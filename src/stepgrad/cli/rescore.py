"""`stepgrad rescore`: better scores for a finished detector, learnt from its detections on labelled images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepgrad.cli.app import Whole
from stepgrad.cli.terminal import Terminal
from stepgrad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from stepgrad.models.rescore import Rescorer


def rescore(
    *,
    detections: list[Path] | None = None,
    data: Path | None = None,
    apply: list[Path] | None = None,
    rescorer: Path | None = None,
    out: Path | None = None,
    split: str | None = None,
    protocol: str | None = None,
    task: Literal["boxes", "masks", "keypoints"] = "boxes",
    features: Path | None = None,
    onnx: Path | None = None,
    class_names: list[str] | None = None,
    sigmas: list[float] | None = None,
    images_outside: bool = False,
    seed: Whole = 0,
) -> int:
    """Give the detections of a finished detector better scores, learnt from labelled images that it was not trained on.

    First the rescorer is fitted; it takes a minute or two for 1,000 images. Four ways are tuned and compared on held-out images,
    and the detector's own scores are kept unless a way is clearly ahead. Then it is applied to any detections:

        stepgrad rescore --detections val.json --data annotations.json --out rescorer.json
        stepgrad rescore --apply test.json --rescorer rescorer.json --out better.json

    Several files are joined by weighted boxes fusion first, with tuned weights, and what each model says helps to rescore:

        stepgrad rescore --detections a.json b.json c.json --data my.yaml --split val --out rescorer.json
        stepgrad rescore --apply a_test.json b_test.json c_test.json --rescorer rescorer.json --out better.json

    Args:
        detections: The detections to learn from, in a form that `stepgrad evaluate` reads, after NMS and with low scores, too;
            out-of-fold ones if there are no labelled images that the detector has not seen. One file per model.
        data: The annotations: a VOC folder, a COCO json file or folder, or a YOLO data.yaml.
        apply: Detections to rescore, as COCO's results (.json); all that an entry has but its score is kept. One file per model.
        rescorer: The rescorer to apply.
        out: Where to write the rescorer, or the detections.
        split: The split of the data, such as `val`; by default every annotated image.
        protocol: What the scores are to be better by, as for `stepgrad evaluate`; by default coco.
        task: What to compare: boxes, masks or keypoints.
        features: A .npz file with an array `features` (N, D): numbers on each detection, in the order of the file.
        onnx: Where to write the rescorer as ONNX, too.
        class_names: The classes of a VOC folder, in the order of the labels.
        sigmas: A sigma for each keypoint with --task keypoints, as for `stepgrad evaluate`.
        images_outside: Whether file names and links in the data may lead out of its folder.
        seed: The seed of the held-out parts and of the training.

    Returns:
        0.
    """
    if out is None:
        raise ConfigError("Expected --out: the file for the rescorer, or for the rescored detections.")
    if apply is not None:
        if rescorer is None or detections is not None or data is not None:
            raise ConfigError("Expected --apply with --rescorer and --out, and without --detections and --data.")
        return _apply(apply, rescorer, out, features)
    if detections is None or data is None or rescorer is not None:
        raise ConfigError(
            "Expected --detections and --data to fit a rescorer, or --apply and --rescorer to use one; see "
            "`stepgrad rescore --help`."
        )
    from stepgrad.cli.judged import set_sigmas
    from stepgrad.data import load_dataset
    from stepgrad.data.read_detections import category_ids
    from stepgrad.models.rescore import Rescorer
    from stepgrad.models.rescore.detections import checked_images, read_with_data

    if features is not None and len(detections) > 1:
        raise ConfigError("features: are for one file of detections; leave the option out with several.")
    dataset = load_dataset(
        data, split, class_names=class_names, need_images=False, images_outside=images_outside, task=task
    )
    if sigmas is not None:
        set_sigmas(dataset, sigmas)
    found = [read_with_data(path.expanduser(), dataset) for path in detections]
    images = [checked_images(one, task, path) for one, path in zip(found, detections, strict=True)]
    targets = [dict(dataset.target(i)) for i in range(len(dataset))]
    judged_by = dataset.overlap() if task == "keypoints" else task
    fitted = Rescorer(len(dataset.class_names), protocol or "coco", judged_by, show_progress=True)
    fitted.classes_of_file = {"names": list(dataset.class_names), "ids": list(category_ids(dataset))}
    if len(images) > 1:
        fitted.fit_several(images, targets, seed)
    else:
        given = None if features is None else found[0].split(_features(features, len(found[0].entries)))
        fitted.fit(images[0], targets, given, seed)
    fitted.save(out)
    console = Terminal(markup=False, soft_wrap=True)
    console.print(fitted.table)
    console.print(fitted.sentence)
    if onnx is not None:
        _write_onnx(fitted, onnx, console)
    console.print(
        f"rescorer: {out}; use it with `stepgrad rescore --apply new.json --rescorer {out} --out better.json`"
    )
    return 0


def _apply(paths: list[Path], rescorer: Path, out: Path, features: Path | None) -> int:
    from stepgrad.files import write_whole
    from stepgrad.models.rescore import Rescorer
    from stepgrad.models.rescore.detections import checked_images, entries_of, read_alone

    fitted = Rescorer.load(rescorer)
    categories = fitted.classes_of_file.get("ids")
    if categories is None:
        raise DataError(
            f"{rescorer}: knows no category ids; expected a rescorer that `stepgrad rescore` fitted to files"
        )
    models = 1 if fitted.fusion is None else len(fitted.fusion.weights)
    if len(paths) != models:
        raise ConfigError(
            f"apply: expected {models} files, one per model that the rescorer was fitted to, but got {len(paths)}."
        )
    order: dict[Any, int] = {}
    for path in paths:  # images of which a model found nothing are known from the others
        read_alone(path.expanduser(), categories, order)
    found = [read_alone(path.expanduser(), categories, order) for path in paths]
    images = [checked_images(one, fitted.overlap.key, path) for one, path in zip(found, paths, strict=True)]
    if fitted.fusion is not None:
        entries = entries_of(fitted.apply_several(images), list(order), categories)
    else:
        given = None if features is None else found[0].split(_features(features, len(found[0].entries)))
        entries = found[0].rescored(fitted.apply(images[0], given))
    write_whole(out.expanduser(), json.dumps(entries).encode())
    Terminal(markup=False, soft_wrap=True).print(f"{len(entries)} detections of {len(order)} images: {out}")
    return 0


def _features(path: Path, count: int) -> Any:
    """(N, D) of the file."""
    import numpy as np

    try:
        with np.load(path.expanduser(), allow_pickle=False) as content:
            found = content["features"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: expected an .npz file with an array `features` ({error})") from error
    if found.ndim != 2 or len(found) != count:
        raise DataError(f"{path}: expected features ({count}, D), a row per detection, but got {found.shape}")
    return found.astype(np.float64)


def _write_onnx(fitted: Rescorer, path: Path, console: Terminal) -> None:
    if fitted.module is None:
        console.print("no ONNX is written: the detector's own scores are kept")
    else:
        fitted.to_onnx(path)
        console.print(f"ONNX: {path}")
