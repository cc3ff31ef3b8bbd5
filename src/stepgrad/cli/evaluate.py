"""`stepgrad evaluate`: the AP of any detections, and why two protocols disagree about them."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepgrad.cli.app import Whole
from stepgrad.cli.terminal import Terminal
from stepgrad.errors import ConfigError
from stepgrad.names import visible

if TYPE_CHECKING:  # imported where they are used: the help page should not wait for them
    from stepgrad.cli.judged import JudgedInput
    from stepgrad.data import DetectionDataset
    from stepgrad.evaluation.compare import Comparison
    from stepgrad.evaluation.records import Evidence
    from stepgrad.evaluation.result import EvaluationResult
    from stepgrad.metric.protocol import Protocol


def evaluate(
    *,
    detections: Path | None = None,
    task: Literal["boxes", "masks", "keypoints", "oriented", "segments"] | None = None,
    run: Path | None = None,
    data: Path | None = None,
    split: str | None = None,
    protocol: str | None = None,
    compare: list[str] | None = None,
    classes: bool = False,
    boxes: Literal["converted", "file"] = "converted",
    empty_boxes: Literal["error", "count"] = "count",
    degenerate: Literal["error", "drop"] = "error",
    class_names: list[str] | None = None,
    coco: bool = False,
    errors: bool = False,
    plot: Path | None = None,
    plot_errors: Path | None = None,
    draw: Path | None = None,
    report: Path | None = None,
    checkpoint: str = "best",
    windows: Path | None = None,
    save_detections: Path | None = None,
    images_outside: bool = False,
    compress: str | None = None,
    metric: list[str] | None = None,
    candidates: Whole | None = None,
    resamples: Whole | None = None,
    seed: Whole = 0,
    group: str | None = None,
    against: Path | None = None,
    images: Whole | None = None,
    sigmas: list[float] | None = None,
    model: Path | None = None,
    recipe: list[str] | None = None,
    against_recipe: list[str] | None = None,
    model_classes: Path | None = None,
) -> int:
    """Measure the AP of a trained run or of any file of detections, and see why protocols disagree.

    The detections come from a file (which needs annotations, but no model and no images), or from a trained run:

        stepgrad evaluate --detections results.json --data annotations.json
        stepgrad evaluate --run runs/voc
        stepgrad evaluate --run runs/voc --data VOCdevkit/VOC2007 --split test --protocol voc07-devkit

    With --against, two files of detections are compared on the same images:

        stepgrad evaluate --detections old.json --against new.json --data annotations.json

    An exported model is run here; with --against, what makes its mAP differ from another's is told by cause:

        stepgrad evaluate --model best.onnx --data my.yaml --against best.pt

    Args:
        detections: The detections to judge: a result .json of COCO or of `yolo val`, text files of VOC (a folder, one file, or
            a pattern such as `out/comp4_det_val_*.txt`) or of DOTA (Task1_*.txt), or the folder of text files that `yolo val`
            saves (with save_conf).
        task: What to compare: boxes (the default), masks (COCO's segm), keypoints (poses, by OKS), oriented (boxes) or segments
            (of time). Detections and data must have them: in COCO's json as `segmentation` (run lengths or polygons), as
            `keypoints`, and as `poly` or `rbox`; segments are read from ActivityNet's json, or from one with `videos`.
        run: The folder of a training run to detect with, by default on its own validation data.
        data: The data of the detections: a VOC folder, a COCO json file or folder, a YOLO data.yaml, a DOTA folder, or `shapes`.
        split: The split of the data, such as `test`; by default every annotated image.
        protocol: The protocol to judge by: voc07, voc12, coco, voc07-devkit, voc12-devkit, voc07-python, lvis, torchmetrics,
            ultralytics (from 8.4.176 on), ultralytics-8.4 (from 8.4.37 on), ultralytics-8.3 (from 8.3.168 on), ultralytics-old,
            ultralytics-json (what `yolo val` prints of its predictions.json), ultralytics-unlimited, dota, dota07 or
            activitynet. The default is the protocol of the run; for files it is voc07-devkit for VOC folders, dota for DOTA's,
            activitynet for segments, coco for COCO files and YOLO data, and voc12 otherwise.
        compare: Several protocols to compare. Prints, for every two, how many points of mAP each rule changes, and the first
            detections that they judge differently, with the rule responsible. Or two .json files that --report wrote (then
            nothing else is needed): prints what differs in how their numbers came, and the numbers.
        classes: Whether --compare prints the AP of each class, too, and the first difference of every class.
        boxes: The boxes that a protocol gets: converted to its own pixel convention, as in training (`converted`), or with the
            numbers of the annotation files unchanged (`file`), which shows how much the extra pixel changes.
        empty_boxes: How to treat detections without area: as false alarms (`count`), or as an error (`error`).
        degenerate: How to treat objects without area: as an error (`error`), or by leaving them out (`drop`).
        class_names: The classes of a VOC folder, in the order of the labels.
        coco: Whether to print COCO's twelve numbers as well; of poses its ten.
        errors: Whether to print how many mistakes of each type there are, and how much mAP fixing them would gain.
        plot: The file (.png, .svg, .pdf) for a plot of the precision-recall curves.
        plot_errors: The file for a plot of the types of mistakes.
        draw: The file for a drawing of the first detection that the protocols of --compare judge differently.
        report: The file to write a report to: a FILE.html gets a page that shows what is wrong (mistakes by type, confused
            classes, every image with its boxes) and FILE.json its numbers; any other file gets all numbers as JSON.
        checkpoint: The weights of the run to detect with: best, last, or the step of a checkpoint.
        windows: The windows of the data for --run, as `stepgrad propose` writes them; by default they are searched for
            once and kept.
        save_detections: Where to write the detections of the run: a FILE.json gets COCO's results, a folder gets
            VOC's text files.
        images_outside: Whether file names and links in the data may lead out of its folder.
        compress: The ranks of fc6 and fc7 for faster detection with --run, such as 1024,256: a truncated SVD, which costs
            some mAP and takes a minute or two at the start for AlexNet. Without the option nothing is compressed.
        metric: Further metrics to report, by name: `f1`, `f1@threshold=0.5`, `recall@precision=0.95`, `precision@recall=0.9`,
            `cost@threshold=0.5,false_alarm=1,miss=10`, `miss_rate`, `ap@max_recall=0.5` or `ap@area=small`. The
            metric that a run was trained for needs no option.
        candidates: Largest number of windows per class and image that enter NMS with --run, or 0 for all; by default as in
            the run.
        resamples: How often the images are drawn anew for the intervals of the numbers, or 0 for no intervals. By default 1000,
            unless that takes longer than the evaluation itself.
        seed: The seed of these draws.
        group: Which images are drawn together, such as the frames of a clip: a .json file {"image": "clip"}, a .csv file with
            lines `image,clip`, or a regular expression for the names of images, with the clip in brackets: `(.*)_[0-9]+`.
        against: Other detections of the same images, in one of the forms of --detections. Prints which of the two are ahead,
            and whether these images can tell; by mAP and by each --metric. With --model also another model: then prints which
            cause makes how many points of the difference, and the first image that differs (--draw draws it).
        images: The number of images to name with --against: those that made most of the difference.
        sigmas: How far annotators differ about each keypoint, a number for each, for --task keypoints; by default as the data
            says, or COCO's for its 17 keypoints of persons.
        model: An exported detector .onnx, or weights .pt of ultralytics, to run on the images of --data: YOLO (v5, v8, 11, and 26
            or v10 end to end), torchvision and DETR by the names of their outputs.
        recipe: What to do otherwise than usual before and after the network of --model: NAME=VALUE, such as `kernel=nearest`,
            `colour=bgr`, `resize=stretch`, `nms=0.45` or `max_detections=100`. The usual recipe is printed.
        against_recipe: The same for the model of --against.
        model_classes: A text file with the name of a class in each line, for a model whose file does not name its classes.

    Returns:
        0.
    """
    if compare and all(name.lower().endswith(".json") for name in compare):
        return _compare_documents(compare, detections or run)
    from stepgrad.cli.judged import read, run_on

    models, called = None, ("", "")
    if model is not None:
        given = {"detections": detections, "run": run, "task": task, "windows": windows, "compress": compress}
        _refuse("is not for --model; leave one of them out", **given, candidates=candidates)
        if data is None:
            raise ConfigError("Expected --data (images with annotations) with --model.")
        from stepgrad.cli.exported import names_of, run_models
        from stepgrad.data import load_dataset

        more = {"class_names": class_names, "degenerate": degenerate, "images_outside": images_outside}
        dataset = load_dataset(data, split, **more)  # type: ignore[arg-type]
        called = model.name, ""
        recipes = recipe, against_recipe
        if against is not None:
            called = names_of(model, against, _names(model, against), recipes)
        models = run_models(model, against, dataset, recipes, model_classes, protocol, called, save_detections)
        made = models.model
    elif run is not None:
        if detections is not None:
            raise ConfigError("Expected --detections (a file to judge) or --run (a run that detects) but got both.")
        if class_names is not None:
            raise ConfigError("class_names: is not for --run, which has its own classes; leave the option out.")
        if task not in (None, "boxes"):
            raise ConfigError(f"task: a run detects boxes only; expected --detections for {task}.")
        made = run_on(run, data, split, checkpoint, windows, save_detections, images_outside, compress, candidates)
    else:
        _refuse("needs --run", windows=windows, compress=compress, candidates=candidates)
        _refuse("needs --run or --model", save_detections=save_detections)
        _refuse("needs --model", recipe=recipe, against_recipe=against_recipe, model_classes=model_classes)
        if detections is None or data is None:
            raise ConfigError("Expected --run, or both --detections (the file to judge) and --data (the annotations).")
        with Terminal(stderr=True).status("reading annotations and detections"):
            made = read(
                *(
                    detections,
                    data,
                    split,
                    class_names,
                    degenerate,
                    empty_boxes,
                    images_outside,
                    task or "boxes",
                    sigmas,
                )
            )
    if compare and metric:
        raise ConfigError("metric: needs a single protocol; leave out --compare, or --metric.")
    from stepgrad.cli.against import compare_with
    from stepgrad.cli.certainty import LEVEL, DrawnImages, with_intervals
    from stepgrad.cli.notes import notes_on_counting, notes_on_edges, notes_on_shapes
    from stepgrad.cli.provenance import provenance
    from stepgrad.data.groups import read_groups
    from stepgrad.evaluation.coco_numbers import coco_numbers
    from stepgrad.evaluation.compare import compare as compare_protocols
    from stepgrad.evaluation.document import numbers_of
    from stepgrad.evaluation.errors_by_type import error_types
    from stepgrad.evaluation.result import evaluate_under

    draws = DrawnImages(resamples, seed, None if group is None else read_groups(group, made.dataset))
    evidence = made.evidence(as_they_stand=boxes == "file")
    protocols = [evidence.overlap.adapt(p) for p in _protocols(protocol, compare, made)]
    metrics = made.metrics_under(protocols[0], metric or [])
    options = {
        **{"split": split, "boxes": boxes, "empty_boxes": empty_boxes, "degenerate": degenerate},
        **{"class_names": class_names, "metric": [found.name for found in metrics], "group": group},
        **{"resamples": draws.number, "seed": seed, "level": LEVEL, "checkpoint": checkpoint if run else None},
        **{"compress": compress, "candidates": candidates, "task": task, "sigmas": sigmas},
        **{"recipe": recipe, "against_recipe": against_recipe},
    }
    files = {"detections": detections, "run": run, "model": model, "data": data, "against": against}
    came = partial(provenance, files, evidence, protocols, options)
    console = Terminal(markup=False, soft_wrap=True)
    if against is not None:
        told = models.difference if models is not None else None
        _refuse("leave it out with --against", compare=compare, plot=plot, plot_errors=plot_errors)
        _refuse("needs two models with --against", draw=draw if told is None else None)
        _refuse("leave it out with --against", coco=coco or None, errors=errors or None)
        if _is_page(report):
            raise ConfigError(
                "report: two files have their page from `stepgrad report A B`; name a .json file with --against."
            )
        other = (models and models.against) or made.with_detections(against, empty_boxes)
        both = evidence, other.evidence(as_they_stand=boxes == "file")
        called = called if model is not None else _names(detections or run, against)
        found = compare_with(both, called, protocols[0], metrics, draws, images)
        console.print(str(found) if told is None else f"{found}\n\n{told}")
        for one, result in zip((made, other), found.results, strict=True):
            one.warn_of_mistakes(result)
        for note in [*notes_on_counting(made, evidence, protocols, boxes, coco), *found.notes]:
            console.print(f"note: {visible(note)}", style="dim")
        if report:
            causes = {} if told is None else {"causes": told.to_dict()}
            _write_numbers(report, found.to_dict() | causes | {"provenance": came()})
        if models is not None and draw:
            models.draw(draw)
        return 0
    _refuse("needs --against", images=images)
    outcome: Comparison | EvaluationResult
    if compare:
        compared = compare_protocols(evidence, protocols)
        results, left_out = with_intervals(compared.results, draws)
        outcome = replace(compared, results=tuple(results))
        text = outcome.text(classes)
    else:
        results, left_out = with_intervals([evaluate_under(evidence, protocols[0], metrics)], draws)
        outcome, text = results[0], str(results[0])
    first = results[0]
    console.print(text)
    made.warn_of_mistakes(first)
    twelve = coco_numbers(made.evidence()) if coco else None
    if twelve is not None:
        console.print(f"\n{twelve}")
    mistakes = error_types(evidence, protocols[0]) if errors or plot_errors else None
    if errors:
        console.print(f"\n{mistakes}")
    notes = [
        *notes_on_counting(made, evidence, protocols, boxes, coco),
        *notes_on_edges(made, evidence, protocols),
        left_out,
    ]
    if task is None:
        both_have = [kind for kind in made.detections.unread if kind in made.dataset.unread]
        notes += [f"boxes were judged; both files have {kind}, too: --task {kind} judges them" for kind in both_have]
    for note in filter(None, [*notes, *notes_on_shapes(made, evidence, coco)]):
        console.print(f"note: {visible(note)}", style="dim")
    if plot:
        first.plot(plot)
    if mistakes is not None and plot_errors:
        mistakes.plot(plot_errors)
    if draw:
        _draw(outcome, made.dataset, evidence, draw)
    if report and _is_page(report):
        page = made.write_page(Path(report).expanduser(), evidence, protocols, metrics, provenance=came())
        console.print(f"report: {visible(page)}")
    elif report:
        _write_numbers(report, numbers_of(outcome, twelve, mistakes, came()))
    return 0


def _is_page(report: Path | None) -> bool:
    return report is not None and Path(report).suffix.lower() in (".html", ".htm")


def _write_numbers(path: Path, numbers: dict[str, Any]) -> None:
    from stepgrad.files import write_whole

    write_whole(Path(path), (json.dumps(numbers, indent=1) + "\n").encode())


def _names(first: Path | None, second: Path) -> tuple[str, str]:
    """What to call the two: the parts of their paths that differ."""
    from stepgrad.cli.report import short_names

    a, b = short_names([first or "", second])
    return a, b


def _compare_documents(names: list[str], judged: Path | None) -> int:
    """Print what differs between two files of numbers, and the numbers."""
    from stepgrad.cli.provenance import compare_documents

    if len(names) != 2:
        raise ConfigError(f"compare: expected two files of numbers (or names of protocols) but got {len(names)}.")
    if judged is not None:
        raise ConfigError("compare: two files of numbers need no --detections and no --run; leave the option out.")
    Terminal(markup=False, soft_wrap=True).print(compare_documents([Path(name) for name in names]))
    return 0


def _refuse(why: str, **options: object) -> None:
    """Refuse options that mean nothing with the others."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name}: {why}.")


def _protocols(protocol: str | None, compare: list[str] | None, made: JudgedInput) -> list[Protocol]:
    from stepgrad.metric.protocol import get_protocol

    if compare is None:
        return [get_protocol(protocol or made.protocol)]
    names = list(dict.fromkeys([*([protocol] if protocol else []), *compare]))
    if len(names) < 2:
        raise ConfigError(f"Expected two or more protocols to compare but got {names}.")
    return [get_protocol(name) for name in names]


def _draw(outcome: Comparison | EvaluationResult, dataset: DetectionDataset, evidence: Evidence, path: Path) -> None:
    """The first difference, on its picture where there is one."""
    import numpy as np

    from stepgrad.data.base import FileDataset
    from stepgrad.errors import DataError
    from stepgrad.evaluation.compare import Comparison
    from stepgrad.evaluation.draw_difference import draw_difference, first_pair

    if not isinstance(outcome, Comparison):
        raise ConfigError("draw: needs --compare.")
    pair = first_pair(outcome)
    picture = None
    if isinstance(dataset, FileDataset):
        with suppress(DataError):  # loaded without images, or the file is not there: boxes alone are drawn
            picture = np.asarray(dataset.image(evidence.image_ids.index(pair.first[0].image_id)))
    draw_difference(pair, path, picture, evidence)
