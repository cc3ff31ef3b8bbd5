"""`stepgrad evaluate`: the AP of anybody's detections, and why two protocols disagree about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from rich.console import Console

from stepgrad.data import DetectionDataset, VOCDataset, load_dataset
from stepgrad.data.coco import COCODataset
from stepgrad.data.files import write_whole
from stepgrad.errors import ConfigError
from stepgrad.evaluation.coco_numbers import CocoNumbers, coco_numbers
from stepgrad.evaluation.compare import Comparison
from stepgrad.evaluation.compare import compare as compare_protocols
from stepgrad.evaluation.from_files import evidence_from, natural_offset
from stepgrad.evaluation.judge import Counting
from stepgrad.evaluation.plots import plot_curves
from stepgrad.evaluation.read_files import FileDetections, read_detections
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.metric.protocol import Protocol, get_protocol


def evaluate(
    detections: str | None = None,
    data: str | None = None,
    split: str | None = None,
    protocol: str | None = None,
    compare: list[str] | None = None,
    boxes: Literal["file", "converted"] = "file",
    empty_boxes: Literal["error", "count"] = "error",
    degenerate: Literal["error", "drop"] = "error",
    class_names: list[str] | None = None,
    coco: bool = False,
    plot: str | None = None,
    report: str | None = None,
) -> int:
    """Judge detections by a protocol, or compare what several protocols say about them.

    No model and no images are needed: annotations and a file of detections are enough.

    Args:
        detections: COCO's result .json, or VOC's text files: a folder, one file, or a pattern such as
            `out/comp4_det_val_*.txt`.
        data: What the detections were made on: a VOC folder, a COCO json file or folder, or `shapes`.
        split: The split of the data, such as `test`; by default every annotated image.
        protocol: voc07, voc12, coco, voc07-devkit, voc12-devkit or voc07-python; by default voc07-devkit for VOC
            folders, coco for COCO files, voc12 otherwise.
        compare: Several protocols: one table of them all and, for any two, the first detection of each class that
            they judge differently, with the rule responsible.
        boxes: `file`: every protocol counts the numbers of the annotation files as they stand. `converted`: each gets
            the boxes in its own pixel convention.
        empty_boxes: `count` counts detections without area as false positives instead of refusing them.
        degenerate: `drop` leaves out objects without area instead of refusing them.
        class_names: VOC folders: the classes, in the order of the labels.
        coco: Print COCO's twelve numbers as well.
        plot: Write the precision-recall curves to this file (.png, .svg, .pdf).
        report: Write all numbers to this JSON file.

    Returns:
        0.
    """
    if detections is None or data is None:
        raise ConfigError("Expected both --detections (what to judge) and --data (what there was to find).")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with Console(stderr=True).status("reading annotations and detections"):
        dataset = load_dataset(data, split, class_names=class_names, need_images=False, degenerate=degenerate)
        found = read_detections(detections, dataset, empty_boxes)
    protocols = _protocols(protocol, compare, boxes, dataset)
    evidence = evidence_from(dataset, found, continuous=boxes == "converted")
    outcome = compare_protocols(evidence, protocols) if compare else _result(evidence, protocols[0], boxes)
    console.print(str(outcome))
    numbers = coco_numbers(evidence_from(dataset, found, continuous=True)) if coco else None
    if numbers is not None:
        console.print(f"\n{numbers}")
    for note in _notes(dataset, found, evidence, protocols, boxes, coco):
        console.print(f"note: {note}", style="dim")
    if plot:
        plot_curves(outcome.results[0] if isinstance(outcome, Comparison) else outcome, plot)
    if report:
        write_whole(Path(report), _to_json(outcome, numbers))
    return 0


def _protocols(
    protocol: str | None, compare: list[str] | None, boxes: str, dataset: DetectionDataset
) -> list[Protocol]:
    if compare is None:
        return [get_protocol(protocol or _default_protocol(dataset))]
    if boxes == "converted":
        raise ConfigError("--compare counts the same numbers under every protocol; leave out --boxes converted.")
    names = list(dict.fromkeys([*([protocol] if protocol else []), *compare]))
    if len(names) < 2:
        raise ConfigError(f"Expected two or more protocols to compare but got {names}.")
    return [get_protocol(name) for name in names]


def _default_protocol(dataset: DetectionDataset) -> str:
    if isinstance(dataset, VOCDataset):
        return "voc07-devkit"
    return "coco" if isinstance(dataset, COCODataset) else "voc12"


def _result(evidence: Evidence, protocol: Protocol, boxes: str) -> EvaluationResult:
    seen = evidence.shrunk(protocol.pixel_offset) if boxes == "converted" else evidence
    return evaluate_under(seen, Counting.of(protocol))


def _notes(
    dataset: DetectionDataset,
    found: FileDetections,
    evidence: Evidence,
    protocols: list[Protocol],
    boxes: str,
    coco: bool,
) -> list[str]:
    """What a reader of the numbers should know."""
    notes = []
    if found.missing:
        notes.append(f"no file for {', '.join(found.missing)}: counted as without detections")
    other = [p.name for p in protocols if p.pixel_offset != natural_offset(dataset)]
    if other and boxes == "file":
        inclusive = natural_offset(dataset) == 1.0
        kind = "inclusive pixels (widths need a pixel added)" if inclusive else "continuous boxes"
        does = "without" if inclusive else "with"
        notes.append(
            f"the annotations are {kind}; {' and '.join(other)} counted these numbers {does} a pixel added; "
            "--boxes converted gives a protocol boxes in its own convention"
        )
    if coco and evidence.objects.difficult.any():
        notes.append("the twelve numbers count difficult objects like any other: COCO does not know them")
    return notes


def _to_json(outcome: EvaluationResult | Comparison, numbers: CocoNumbers | None) -> bytes:
    content = outcome.to_dict()
    if numbers is not None:
        content["coco"] = numbers.to_dict()
    return (json.dumps(content, indent=1) + "\n").encode()
