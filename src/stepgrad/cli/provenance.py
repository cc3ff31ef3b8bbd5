"""How numbers came: version, files with their digests, rules and options; written with them, so that two people can find out
from their files alone why their numbers differ."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

import stepgrad
from stepgrad.errors import DataError
from stepgrad.evaluation.records import Detections, Evidence, GroundTruth
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import metric_text

_TEXT = (".json", ".txt", ".xml", ".yaml", ".yml", ".csv")
"""Files of a folder that hold annotations or detections; pictures are not judged."""
_SHOWN = 12  # digits of a digest in a line of text


def provenance(
    files: Mapping[str, Path | str | None],
    evidence: Evidence,
    protocols: Sequence[Protocol],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """What the numbers of these detections depend on, for json.

    Args:
        files: what was read, by the name of the option that named it; None is left out.
        evidence: what was judged. Its digest tells equal objects and detections in files of another form or place.
        protocols: whose rules are written out.
        options: further options, by name; None is left out.
    """
    return {
        "stepgrad": stepgrad.__version__,
        "files": {name: describe_files(Path(path)) for name, path in files.items() if path is not None},
        "judged": {"objects": _digest_of_objects(evidence), "detections": _digest(evidence.detections)},
        "protocols": {protocol.name: asdict(protocol) for protocol in protocols},
        "options": {name: value for name, value in options.items() if value is not None},
    }


def describe_files(path: Path) -> dict[str, Any]:
    """Path, number, bytes and SHA-256 of a file, or of all text files of a folder or pattern, by name and content."""
    place = path.expanduser()
    if place.is_dir():
        found = sorted(file for file in place.rglob("*") if file.suffix.lower() in _TEXT and file.is_file())
    else:
        found = [place] if place.is_file() else sorted(place.parent.glob(place.name)) if place.name else []
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in found]
    names = [file.relative_to(place if place.is_dir() else place.parent).as_posix() for file in found]
    together = hashlib.sha256("".join(f"{d} {n}\n" for d, n in zip(digests, names, strict=True)).encode())
    return {
        "path": str(path),
        "files": len(found),
        "bytes": sum(file.stat().st_size for file in found),
        "sha256": digests[0] if len(found) == 1 else together.hexdigest(),
    }


def _digest_of_objects(evidence: Evidence) -> str:
    names = repr(([str(image_id) for image_id in evidence.image_ids], list(evidence.class_names)))
    return _digest(evidence.objects, names)


def _digest(flat: Detections | GroundTruth, also: str = "") -> str:
    """SHA-256 of all columns of plain numbers; shapes of other tasks are told by their files."""
    digest = hashlib.sha256(also.encode("utf-8", "surrogatepass"))
    for column in fields(flat):
        values = getattr(flat, column.name)
        if isinstance(values, np.ndarray):
            digest.update(f"{column.name} {values.dtype.str} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def read_document(path: Path) -> dict[str, Any]:
    """The numbers that `stepgrad evaluate --report FILE.json` or a report wrote."""
    try:
        content = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected numbers that `stepgrad evaluate --report` wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as numbers of `stepgrad evaluate --report`: {error}") from error
    try:
        _results(content)
    except (KeyError, TypeError, AttributeError, IndexError):
        raise DataError(
            f"{path}: is not what `stepgrad evaluate --report FILE.json` writes; write it again from the detections"
        ) from None
    return dict(content)


def _results(content: Any) -> list[dict[str, Any]]:
    """Every result of a document: protocol, mAP with its interval, and the AP of each class."""
    if "maps" in content:  # report.json
        sure = content.get("intervals", {})
        found = [
            {
                "protocol": name,
                "map": value,
                "interval": sure.get(name),
                "classes": [{"name": row["name"], "ap": row["ap"][name]} for row in content["classes"]],
            }
            for name, value in content["maps"].items()
        ]
    else:
        found = content.get("results", [content])
    return [
        {
            "protocol": str(one["protocol"]),
            "numbers": {"mAP": ("ap", *_number(one["map"], one.get("interval")))}
            | {f"AP of {row['name']}": ("ap", *_number(row["ap"], row.get("interval"))) for row in one["classes"]}
            | {name: (name, *_number(m["value"], m.get("interval"))) for name, m in _metrics(one).items()},
        }
        for one in found
    ]


def _metrics(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(result.get("metrics") or {})


def _number(value: Any, interval: Any) -> tuple[float, list[float] | None]:
    """A value, nan for none, and its interval; TypeError for anything else."""
    number = math.nan if value is None else float(value + 0.0)
    return number, None if interval is None else [float(end + 0.0) for end in interval]


def compare_documents(paths: Sequence[Path]) -> str:
    """What differs in how the numbers of two documents came, then the numbers side by side."""
    a, b = (read_document(path) for path in paths)
    names = [str(path) for path in paths]
    said = list(_told(names, a.get("provenance"), b.get("provenance")))
    tables = []
    for one, other in _pairs(_results(a), _results(b)):
        rows = [
            [label, *(_shown(found["numbers"].get(label)) for found in (one, other)), _change(label, one, other)]
            for label in dict.fromkeys([*one["numbers"], *other["numbers"]])
        ]
        heads = [f"{name}: {found['protocol']}" for name, found in zip(names, (one, other), strict=True)]
        tables.append(plain_table(["number", *heads, "difference"], rows))
    return "\n\n".join(["\n".join(said), *tables])


def _pairs(a: list[Any], b: list[Any]) -> list[tuple[Any, Any]]:
    """Results of the same protocol, in order; without any, the first of each."""
    rest = list(b)
    found = []
    for one in a:
        same = next((other for other in rest if other["protocol"] == one["protocol"]), None)
        if same is not None:
            rest.remove(same)
            found.append((one, same))
    return found or [(a[0], b[0])]


def _shown(number: tuple[str, float, list[float] | None] | None) -> str:
    if number is None:
        return "-"
    metric, value, interval = number
    ends = "" if interval is None else f" ({' to '.join(metric_text(metric, end) for end in interval)})"
    return metric_text(metric, value) + ends


def _change(label: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    if label not in one["numbers"] or label not in other["numbers"]:
        return "-"
    metric, before, _ = one["numbers"][label]
    return metric_text(metric, other["numbers"][label][1] - before)


def _told(names: Sequence[str], a: Any, b: Any) -> Iterator[str]:
    """The differences of two provenances, a line each."""
    for name, given in zip(names, (a, b), strict=True):
        if not isinstance(given, dict):
            yield f"{name} does not say how its numbers came; write it again with this version of stepgrad"
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return
    lines = [*_other_files(a, b), *_other_values(a, b)]
    yield f"how the numbers of {names[0]} / {names[1]} came differs in:" if lines else "both came in the same way"
    yield from (f"  {line}" for line in lines)


def _other_files(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    before, after = (dict(given.get("files") or {}) for given in (a, b))
    for name in dict.fromkeys([*before, *after]):
        pair = [given.get(name) for given in (before, after)]
        if [(one or {}).get("sha256") for one in pair].count((pair[0] or {}).get("sha256")) < 2:
            yield f"files of --{name}: {' / '.join(_file_text(one) for one in pair)}"
    judged = [dict(given.get("judged") or {}) for given in (a, b)]
    for name in ("objects", "detections"):
        if judged[0].get(name) != judged[1].get(name):
            yield f"other {name} were judged"


def _file_text(described: Mapping[str, Any] | None) -> str:
    if described is None:
        return "none"
    digest = str(described.get("sha256"))[:_SHOWN]
    return f"{described.get('path')} ({described.get('bytes')} bytes, sha256 {digest})"


def _other_values(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Version, options, and rules of protocols of the same name, or protocols that only one has."""
    if a.get("stepgrad") != b.get("stepgrad"):
        yield f"version of stepgrad: {a.get('stepgrad')} / {b.get('stepgrad')}"
    before, after = (dict(given.get("protocols") or {}) for given in (a, b))
    if list(before) != list(after):
        yield f"protocol: {', '.join(before)} / {', '.join(after)}"
    for name in before:
        if name in after:
            yield from _changes(f"rules of {name}: ", before[name], after[name])
    yield from _changes("", a.get("options") or {}, b.get("options") or {})


def _changes(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield f"{what}{key}: {before.get(key)} / {after.get(key)}"
