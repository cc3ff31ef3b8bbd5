"""The rules in which protocols may differ, each with a name and words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from stepgrad.metric.protocol import Protocol

RULES: dict[str, tuple[str, ...]] = {
    "clipping": ("clip",),
    "pixel offset": ("pixel_offset",),
    "overlaps": ("overlaps",),
    "mask resolution": ("mask_size",),
    "rounding of masks": ("mask_edges",),
    "hidden parts": ("hidden",),
    "areas of poses": ("poses",),
    "likeness": ("oriented",),
    "equality": ("equality",),
    "duplicate rule": ("duplicates", "equal_overlaps"),
    "difficult": ("difficult",),
    "crowds": ("crowds",),
    "classes looked for": ("federated",),
    "least score": ("min_score",),
    "max detections": ("max_detections", "max_detections_of"),
    "ties": ("ties",),
    "IoU thresholds": ("match_thresholds", "nearness"),
    "recall levels": ("recall_levels", "recall_grid"),
    "interpolation": ("interpolation", "integral", "tail"),
    "absent classes": ("absent_classes",),
}
"""Name of each rule, and the fields of `Protocol` it lives in. What makes a verdict comes before what makes the sum."""

VERDICT_RULES = (*list(RULES)[: list(RULES).index("ties")], "IoU thresholds")
"""Those that can change what is said about a detection. Ties change its place; the others only the sum."""

_ONLY_FOR = {
    "clipping": ("boxes", "keypoints"),
    "pixel offset": ("boxes",),
    "mask resolution": ("masks",),
    "rounding of masks": ("masks",),
    "hidden parts": ("masks",),
    "areas of poses": ("keypoints",),
    "likeness": ("oriented",),
}
"""Rules that concern some kinds of shapes only."""
_ARITHMETIC = {"double": "double precision", "single": "single precision", "single_sizes": "boxes in single precision"}
_DIFFICULT = {"ignore": "ignored", "count": "count", "drop": "are removed"}


def differing(a: Protocol, b: Protocol) -> list[str]:
    """The rules in which two protocols differ.

    >>> from stepgrad.metric.protocol import VOC07_DEVKIT, VOC07_PYTHON
    >>> differing(VOC07_DEVKIT, VOC07_PYTHON)
    ['equality', 'recall levels']
    """
    return [rule for rule in RULES if setting(a, rule) != setting(b, rule)]


def concerns(rule: str, shapes: str) -> bool:
    """Whether a rule can change anything for detections that are boxes, masks, keypoints, ...

    >>> concerns("pixel offset", "masks"), concerns("ties", "masks")
    (False, True)
    """
    return shapes in _ONLY_FOR.get(rule, (shapes,))


def setting(protocol: Protocol, rule: str) -> object:
    """The setting of one rule in a protocol."""
    if rule == "ties":
        return protocol.tie_order
    if rule == "duplicate rule":
        return protocol.duplicates, protocol.last_of_equal_overlaps
    return tuple(getattr(protocol, name) for name in RULES[rule])


def switched(a: Protocol, b: Protocol, rules: Iterable[str]) -> Protocol:
    """`a`, but with `b`'s settings of these rules. The order of ties is a rule of its own, also where matching implies it."""
    rules = list(rules)
    changes = {name: getattr(b, name) for rule in rules for name in RULES[rule]}
    return replace(a, **{**changes, "ties": b.tie_order if "ties" in rules else a.tie_order})


def describe_rule(p: Protocol, rule: str) -> str:
    """One rule in words.

    >>> from stepgrad.metric.protocol import COCO
    >>> describe_rule(COCO, "duplicate rule")
    'takes the best object still free'
    """
    limit = "every detection" if p.max_detections is None else f"at most {p.max_detections} per image"
    words = {
        "clipping": "cut at the image's edges" if p.clip else "as they are",
        "pixel offset": f"adds {p.pixel_offset:g} to widths and heights",
        "overlaps": _ARITHMETIC[p.overlaps],
        "mask resolution": "masks as they are"
        if p.mask_size is None
        else f"masks at {p.mask_size} pixels, or as counted",
        "rounding of masks": "inside from a half on" if p.mask_edges == "half" else "inside only where whole",
        "hidden parts": "belong to both objects" if p.hidden == "kept" else "belong to the smaller object",
        "areas of poses": "as annotated" if p.poses == "annotated" else "0.53 of the box's",
        "likeness": "IoU of polygons" if p.oriented == "polygon" else "probIoU",
        "equality": "IoU >= threshold" if p.equality else "IoU > threshold",
        "duplicate rule": ("takes the best object" if p.duplicates == "best" else "takes the best object still free")
        + (f", the {p.equal_overlaps} of equals" if p.equal_overlaps else ""),
        "difficult": f"difficult objects {_DIFFICULT[p.difficult]}",
        "crowds": "crowds are regions" if p.crowds == "region" else "crowds are removed",
        "classes looked for": "those looked for in an image" if p.federated else "every class in every image",
        "least score": "any score" if p.min_score is None else f"scores of at least {p.min_score:g}",
        "max detections": limit + (" over all classes" if p.joins_classes else ""),
        "ties": "equal scores in the order given" if p.tie_order == "file" else "equal scores image by image",
        "IoU thresholds": _thresholds(p.match_thresholds),
        "recall levels": "area" if p.recall_levels is None else f"{p.recall_levels} levels ({p.recall_grid})",
        "interpolation": _interpolation(p),
        "absent classes": "count as 0" if p.absent_classes == "zero" else "left out",
    }
    return words[rule]


def _thresholds(values: tuple[float, ...]) -> str:
    """A few are listed; of many the ends, and whether they are in single precision (0.55 has no exact float).

    >>> _thresholds((0.5, 0.75)), _thresholds((0.5, 0.55, 0.6, 0.65)), _thresholds((0.5, 0.550000011920929, 0.75, 0.8))
    ('0.5, 0.75', '0.5 to 0.65, 4 of them', '0.5 to 0.8, 4 of them in single precision')
    """
    single = any(t != round(t, 6) and t == float(np.float32(round(t, 6))) for t in values)
    of_what = " in single precision" if single else ""
    if len(values) < 4:
        return ", ".join(f"{t:g}" for t in values) + of_what
    return f"{values[0]:g} to {values[-1]:g}, {len(values)} of them{of_what}"


def _interpolation(p: Protocol) -> str:
    if p.recall_levels is None:
        return "none: the area"
    mean = "mean" if p.integral == "mean" else "trapezoid"
    tail = ", then a line to 0 at recall 1" if p.tail == "line" else ""
    return f"{mean} of the best precision at recall {'>=' if p.interpolation == 'reached' else '>'} level{tail}"
