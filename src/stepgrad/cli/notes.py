"""What `stepgrad evaluate` says below its numbers about how they were counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepgrad.cli.judged import JudgedInput
from stepgrad.data import YOLODataset
from stepgrad.data.judged_files import natural_offset
from stepgrad.evaluation.edges import note_on_edges
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.protocol import Protocol


def notes_on_counting(
    made: JudgedInput, evidence: Evidence, protocols: Sequence[Protocol], boxes: str, coco: bool
) -> list[str]:
    """Notes for the reader on how the numbers were counted."""
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


def notes_on_shapes(made: JudgedInput, evidence: Evidence, coco: bool) -> list[str]:
    """Notes on what masks and poses were measured with."""
    notes = []
    if coco and evidence.has_shapes and evidence.by_box_area:
        notes.append(
            f"detections are small or large by their bbox, as in pycocotools; without `bbox` in the file it is the area of the "
            f"{'mask' if made.dataset.task == 'masks' else 'keypoints'}"
        )
    sigmas = made.dataset.sigmas or ()
    if made.dataset.task == "keypoints" and len(set(sigmas)) == 1:
        notes.append(
            f"OKS took {sigmas[0]:.4g} as sigma of each of {len(sigmas)} keypoints; others go to --sigmas, or to "
            "`kpt_oks_sigmas` of data.yaml, without which YOLO tools take 1 / keypoints"
        )
    return notes


def notes_on_edges(made: JudgedInput, evidence: Evidence, protocols: Sequence[Protocol]) -> list[str]:
    """Notes on boxes cut at the edges of images: by `yolo val` after it counted them, or for want of sizes by nobody."""
    if evidence.has_shapes:
        return []
    cutting = [p.name for p in protocols if p.clip]
    unknown = 0 if evidence.limits is None else int(np.isnan(evidence.limits).any(axis=(1, 2)).sum())
    if cutting and unknown:
        return [f"the annotations do not give the size of {unknown} images: {' and '.join(cutting)} cut no boxes there"]
    of_yolo = isinstance(made.dataset, YOLODataset) or any(p.name.startswith("ultralytics") for p in protocols)
    note = note_on_edges(evidence) if of_yolo and made.run is None and len(cutting) < len(protocols) else None
    return [note] if note else []
