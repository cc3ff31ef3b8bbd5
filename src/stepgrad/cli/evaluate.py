"""`stepgrad evaluate`: the AP of any detections, and why two protocols disagree about them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

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
) -> int:
    """Measure the AP of a trained run or of any file of detections, and see why protocols disagree.

    The detections come from a file (which needs annotations, but no model and no images), or from a trained run:

        stepgrad evaluate --detections results.json --data annotations.json
        stepgrad evaluate --run runs/voc
        stepgrad evaluate --run runs/voc --data VOCdevkit/VOC2007 --split test --protocol voc07-devkit

    Args:
        detections: The detections to judge: a result .json of COCO or of `yolo val`, text files of VOC (a folder, one file, or
            a pattern such as `out/comp4_det_val_*.txt`), or the folder of text files that `yolo val` saves (with save_conf).
        run: The folder of a training run to detect with, by default on its own validation data.
        data: The data of the detections: a VOC folder, a COCO json file or folder, a YOLO data.yaml, or `shapes`.
        split: The split of the data, such as `test`; by default every annotated image.
        protocol: The protocol to judge by: voc07, voc12, coco, voc07-devkit, voc12-devkit, voc07-python, lvis, torchmetrics,
            ultralytics (from 8.4.176 on), ultralytics-8.4 (from 8.4.37 on), ultralytics-8.3 (from 8.3.168 on), ultralytics-old,
            ultralytics-json (what `yolo val` prints of its predictions.json) or ultralytics-unlimited. The default is the
            protocol of the run; for files it is voc07-devkit for VOC folders, coco for COCO files and YOLO data, and voc12
            otherwise.
        compare: Several protocols to compare. Prints, for every two, how many points of mAP each rule changes, and the first
            detections that they judge differently, with the rule responsible.
        classes: Whether --compare prints the AP of each class, too, and the first difference of every class.
        boxes: The boxes that a protocol gets: converted to its own pixel convention, as in training (`converted`), or with the
            numbers of the annotation files unchanged (`file`), which shows how much the extra pixel changes.
        empty_boxes: How to treat detections without area: as false alarms (`count`), or as an error (`error`).
        degenerate: How to treat objects without area: as an error (`error`), or by leaving them out (`drop`).
        class_names: The classes of a VOC folder, in the order of the labels.
        coco: Whether to print COCO's twelve numbers as well.
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

    Returns:
        0.
    """
    from stepgrad.cli.judged import read, run_on

    if run is not None:
        if detections is not None:
            raise ConfigError("Expected --detections (a file to judge) or --run (a run that detects) but got both.")
        if class_names is not None:
            raise ConfigError("class_names: is not for --run, which has its own classes; leave the option out.")
        made = run_on(run, data, split, checkpoint, windows, save_detections, images_outside, compress, candidates)
    else:
        _refuse(windows=windows, save_detections=save_detections, compress=compress, candidates=candidates)
        if detections is None or data is None:
            raise ConfigError("Expected --run, or both --detections (the file to judge) and --data (the annotations).")
        with Terminal(stderr=True).status("reading annotations and detections"):
            made = read(detections, data, split, class_names, degenerate, empty_boxes, images_outside)
    if compare and metric:
        raise ConfigError("metric: needs a single protocol; leave out --compare, or --metric.")
    from stepgrad.evaluation.coco_numbers import coco_numbers
    from stepgrad.evaluation.compare import compare as compare_protocols
    from stepgrad.evaluation.document import numbers_of
    from stepgrad.evaluation.errors_by_type import error_types
    from stepgrad.evaluation.result import evaluate_under
    from stepgrad.files import write_whole

    protocols = _protocols(protocol, compare, made)
    evidence = made.evidence(as_they_stand=boxes == "file")
    metrics = made.metrics_under(protocols[0], metric or [])
    outcome: Comparison | EvaluationResult
    if compare:
        outcome = compare_protocols(evidence, protocols)
        first, text = outcome.results[0], outcome.text(classes)
    else:
        outcome = first = evaluate_under(evidence, protocols[0], metrics)
        text = str(outcome)
    console = Terminal(markup=False, soft_wrap=True)
    console.print(text)
    made.warn_of_mistakes(first)
    twelve = coco_numbers(made.evidence()) if coco else None
    if twelve is not None:
        console.print(f"\n{twelve}")
    mistakes = error_types(evidence, protocols[0]) if errors or plot_errors else None
    if errors:
        console.print(f"\n{mistakes}")
    for note in [*_notes(made, evidence, protocols, boxes, coco), *_edge_notes(made, evidence, protocols)]:
        console.print(f"note: {visible(note)}", style="dim")
    if plot:
        first.plot(plot)
    if mistakes is not None and plot_errors:
        mistakes.plot(plot_errors)
    if draw:
        _draw(outcome, made.dataset, evidence, draw)
    if report and Path(report).suffix.lower() in (".html", ".htm"):
        page = made.write_page(Path(report).expanduser(), evidence, protocols, metrics)
        console.print(f"report: {visible(page)}")
    elif report:
        numbers = numbers_of(outcome, twelve, mistakes)
        write_whole(Path(report), (json.dumps(numbers, indent=1) + "\n").encode())
    return 0


def _refuse(**of_run: object) -> None:
    """Refuse options that say how a run detects."""
    for name, value in of_run.items():
        if value is not None:
            raise ConfigError(f"{name}: needs --run.")


def _protocols(protocol: str | None, compare: list[str] | None, made: JudgedInput) -> list[Protocol]:
    from stepgrad.metric.protocol import get_protocol

    if compare is None:
        return [get_protocol(protocol or made.protocol)]
    names = list(dict.fromkeys([*([protocol] if protocol else []), *compare]))
    if len(names) < 2:
        raise ConfigError(f"Expected two or more protocols to compare but got {names}.")
    return [get_protocol(name) for name in names]


def _notes(made: JudgedInput, evidence: Evidence, protocols: list[Protocol], boxes: str, coco: bool) -> list[str]:
    """Notes for the reader on how the numbers were counted."""
    from stepgrad.data.judged_files import natural_offset

    notes = []
    missing, inclusive = made.detections.missing, natural_offset(made.dataset) == 1.0
    if missing:
        notes.append(f"no file for {', '.join(missing)}: counted as having no detections")
    other = [p.name for p in protocols if p.pixel_offset != natural_offset(made.dataset)]
    if other and boxes == "file":
        kind = "inclusive pixels (widths need a pixel added)" if inclusive else "continuous boxes"
        does = "without" if inclusive else "with"
        notes.append(
            f"the annotations are {kind}, but {' and '.join(other)} measured them {does} a pixel added; "
            "with --boxes converted, the default, each protocol gets boxes in its own convention"
        )
    if coco and evidence.objects.difficult.any():
        notes.append(
            "the twelve numbers leave difficult objects out, as mAP does; COCO's own tools do not know this mark"
        )
    return notes


def _edge_notes(made: JudgedInput, evidence: Evidence, protocols: list[Protocol]) -> list[str]:
    """Notes on boxes cut at the edges of images: by `yolo val` after it counted them, or for want of sizes by nobody."""
    import numpy as np

    from stepgrad.data import YOLODataset
    from stepgrad.evaluation.edges import note_on_edges

    cutting = [p.name for p in protocols if p.clip]
    unknown = 0 if evidence.limits is None else int(np.isnan(evidence.limits).any(axis=(1, 2)).sum())
    if cutting and unknown:
        return [f"the annotations do not give the size of {unknown} images: {' and '.join(cutting)} cut no boxes there"]
    of_yolo = isinstance(made.dataset, YOLODataset) or any(p.name.startswith("ultralytics") for p in protocols)
    note = note_on_edges(evidence) if of_yolo and made.run is None and len(cutting) < len(protocols) else None
    return [note] if note else []


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
