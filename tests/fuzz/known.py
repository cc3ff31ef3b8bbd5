"""Inputs whose faults were known before the fuzzers were written."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from tests.fuzz import seeds
from tests.fuzz.damage_bytes import Files

_DEEP = b"[" * 100_000 + b"]" * 100_000
_HOSTILE = {
    "slash": "a/b",
    "dots": "../../sibling/canary",
    "two-dots": "..",
    "nul": "a\0b",
    "newline": "a\nb",
    "surrogate": "\ud800",
}


def _coco(section: str, **changes: Any) -> Files:
    """The valid COCO file with other values in the first entry of a section."""
    tree = json.loads(seeds.coco()["coco.json"] or b"")
    tree[section][0] |= changes
    return {"coco.json": json.dumps(tree).encode()}


def _found(**changes: Any) -> Files:
    """The valid detections with other values in the first."""
    tree = json.loads(seeds.coco_results()["found.json"] or b"")
    tree[0] |= changes
    return {"found.json": json.dumps(tree).encode()}


def _both(box: list[float]) -> Files:
    return {**_coco("annotations", bbox=box), **_found(bbox=box)}


def _image_id(name: str) -> Files:
    """An image of this id, with a detection in it."""
    tree = json.loads(seeds.coco()["coco.json"] or b"")
    tree["images"][0]["id"] = tree["annotations"][0]["image_id"] = name
    return {"coco.json": json.dumps(tree).encode(), **_found(image_id=name)}


def _boxes_of_strings() -> Files:
    packed = io.BytesIO()
    np.savez(packed, ids=np.array(["a", "b"]), offsets=np.array([0, 1, 1]), boxes=np.array([["a", "b", "c", "d"]]))
    return {"windows.npz": packed.getvalue()}


_READERS = ("coco", "coco-drop", "coco-doctor")
CASES: dict[tuple[str, str], Files] = {
    **{(reader, "image-id-a-list"): _coco("images", id=[1]) for reader in _READERS},
    **{(reader, "category-id-a-list"): _coco("categories", id=[1]) for reader in _READERS},
    **{(reader, "annotation-id-a-list"): _coco("annotations", id=[1]) for reader in _READERS},
    **{(reader, "category-of-object-a-list"): _coco("annotations", category_id=[1]) for reader in _READERS},
    **{(reader, "file-name-of-5000-letters"): _coco("images", file_name="A" * 5000) for reader in _READERS},
    **{(reader, "file-name-with-nul"): _coco("images", file_name="a\0b") for reader in _READERS},
    **{(reader, "file-name-absolute"): _coco("images", file_name="{GUARD}/sibling/canary.txt") for reader in _READERS},
    **{(reader, "file-name-above"): _coco("images", file_name="../../sibling/canary.txt") for reader in _READERS},
    **{(reader, "deep"): {"coco.json": _DEEP} for reader in _READERS},
    **{(reader, "box-too-wide"): _coco("annotations", bbox=[1e308, 0, 1e308, 5]) for reader in _READERS},
    **{(reader, "box-of-400-digits"): _coco("annotations", bbox=[0, 0, 10**400, 5]) for reader in _READERS},
    **{(reader, "area-nan"): _coco("annotations", area=float("nan")) for reader in _READERS},
    **{(reader, "area-of-400-digits"): _coco("annotations", area=10**400) for reader in _READERS},
    ("coco-results", "category-of-detection-a-list"): _found(category_id=[1]),
    ("coco-results", "score-of-400-digits"): _found(score=10**400),
    ("coco-results", "box-of-400-digits"): _found(bbox=[0, 0, 10**400, 5]),
    ("coco-results", "box-too-wide"): _found(bbox=[1e308, 0, 1e308, 5]),
    ("coco-results", "box-at-1e154"): _both([1e154, 1e154, 1e154, 1e154]),
    ("coco-results", "deep"): {"found.json": _DEEP},
    ("coco-results", "image-id-deep"): {"found.json": b'[{"image_id": ' + _DEEP + b"}]"},
    ("coco-numbers", "area-nan"): _coco("annotations", area=float("nan")),
    ("coco-numbers", "area-above-1e10"): _coco("annotations", area=1e11),
    ("coco-numbers", "box-at-1e154"): _both([1e154, 1e154, 1e154, 1e154]),
    ("windows-cache", "file-name-that-is-not-quoted"): {"windows/&lt;.npz": seeds.cached_windows()["windows/a.npz"]},
    ("windows-npz", "boxes-of-strings"): _boxes_of_strings(),
    ("log", "torn-line"): {"log.jsonl": b'{"kind": "train", "st\n{"kind": "end", "step": 1}\n'},
    ("log", "not-utf8"): {"log.jsonl": b"\xff\xfe\n"},
    ("log", "deep"): {"log.jsonl": _DEEP + b"\n"},
    ("run-best", "config-not-utf8"): {"run/config.yaml": b"\xff\xfe\x80"},
    ("run-best", "config-a-folder"): {"run/config.yaml": None},
    **{("coco-results", f"class-name-with-{kind}"): _coco("categories", name=name) for kind, name in _HOSTILE.items()},
    **{("coco-results", f"image-id-with-{kind}"): _image_id(name) for kind, name in _HOSTILE.items()},
}
