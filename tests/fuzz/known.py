"""Inputs that are tried every time: those whose faults were known before the fuzzers were written, and those that once escaped
and are too large, or too plain, for a file of their own."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from tests.fuzz import seeds
from tests.fuzz.damage_bytes import Files
from tests.fuzz.damage_tensors import with_digest

_OPEN = b"[" * 100_000
_DEEP = _OPEN + b"]" * 100_000
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


_CHECKPOINT = "run/checkpoints/step-00000002.safetensors"
_STATE = {"seconds": 1.0, "class_names": ["cat"]}
_BOMB = b"[&a [x], " + b", ".join(b"&%c [*%c" % (c + 1, c) + b", *%c" % c * 9 + b"]" for c in b"abcdefghij") + b"]"


def tensors(metadata: dict[str, Any], name: str = "weights/a", shape: Any = (1,)) -> bytes:
    """A file of one number, as stepgrad writes it except for what is asked for."""
    place = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": {"digest": "0" * 64, **metadata}, name: place}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 64 + 56)
    return with_digest(len(header).to_bytes(8, "little") + header + bytes(4))


def _checkpoint(state: Any, step: Any = "2", **options: Any) -> Files:
    return {
        _CHECKPOINT: tensors({"step": step, "state": state if isinstance(state, str) else json.dumps(state)}, **options)
    }


def _best(facts: Any) -> Files:
    return {"run/best.safetensors": tensors({"stepgrad": facts if isinstance(facts, str) else json.dumps(facts)})}


def _box(far: float) -> Files:
    corners = f"<xmin>1</xmin><ymin>1</ymin><xmax>{far}</xmax><ymax>9</ymax>"
    thing = f"<object><name>cat</name><bndbox>{corners}</bndbox></object>"
    return {"VOC/Annotations/a.xml": f"<annotation>{thing}</annotation>".encode()}


def _log(*lines: dict[str, Any]) -> Files:
    return {"log.jsonl": b"".join(json.dumps(line).encode() + b"\n" for line in lines)}


_FACTS = {"class_names": ["cat"], "step": 2}


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
    # ---- once escaped
    **{(reader, "box-at-1e300"): _box(1e300) for reader in ("voc", "voc-drop", "voc-doctor")},
    ("log", "no-step"): _log({"kind": "train"}, {"kind": "train", "step": 1}),
    ("log", "step-a-string"): _log({"kind": "train", "step": "1"}, {"kind": "train", "step": 1}),
    ("log", "losses-a-number"): _log({"kind": "train", "step": 1, "losses": 0.5}),
    ("log", "end-at-a-dict"): _log({"kind": "end", "step": {}}),
    ("log", "loss-of-400-digits"): _log({"kind": "train", "step": 1, "loss": 10**400}),
    ("record", "deep"): {"detections.json": _OPEN},
    ("config", "deep"): {"config.yaml": b"loss: " + b"[" * 20_000},
    ("config", "billions-by-aliases"): {"config.yaml": b"loss: " + _BOMB},
    ("config", "number-of-5000-digits"): {"config.yaml": b"nll: {steps: " + b"9" * 5000 + b"}"},
    ("config", "list-null"): {"config.yaml": b"also_report: null"},
    ("config", "number-null"): {"config.yaml": b"nll: {steps: null}"},
    ("run-best", "config-of-billions-by-aliases"): {"run/config.yaml": b"loss: " + _BOMB},
    ("run-best", "config-month-99"): {"run/config.yaml": b"loss: 2001-99-99"},
    ("run-best", "a-checkpoint-in-its-place"): {"run/best.safetensors": tensors({"step": "2", "state": "{}"})},
    ("run-best", "no-classes"): _best({"step": 2}),
    ("run-best", "classes-a-number"): _best({**_FACTS, "class_names": 1}),
    ("run-best", "facts-not-json"): _best("{"),
    ("run-best", "facts-deep"): _best(_OPEN.decode()),
    ("run-best", "facts-a-list"): _best([]),
    ("checkpoints", "state-a-list"): _checkpoint([]),
    ("checkpoints", "state-not-json"): _checkpoint("{"),
    ("checkpoints", "step-a-word"): _checkpoint(_STATE, step="two"),
    ("checkpoints", "tensor-of-neither-part"): _checkpoint(_STATE, name="a"),
    ("checkpoints", "shape-of-words"): _checkpoint(_STATE, shape=["a"]),
    ("checkpoints", "state-with-an-unknown-counter"): _checkpoint({**_STATE, "colour": 1}),
    ("checkpoints", "state-with-a-step-of-its-own"): _checkpoint({**_STATE, "step": 1}),
    ("own-weights", "cut-short"): {"best.safetensors": tensors({"stepgrad": "{}"})[:-1]},
    ("own-weights", "not-safetensors"): {"best.safetensors": b"hello"},
    ("own-weights", "metadata-a-number"): {"best.safetensors": tensors({"stepgrad": 1})},
}
