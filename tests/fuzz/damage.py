"""Damage to the files of a case, each by the rules of its format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

from tests.fuzz.damage_arrays import damage_mat, damage_npz
from tests.fuzz.damage_bytes import Files, damage_bytes, damage_folder
from tests.fuzz.damage_pictures import damage_png
from tests.fuzz.damage_tensors import damage_pt, damage_safetensors
from tests.fuzz.damage_tree import damage_tree
from tests.fuzz.damage_xml import damage_xml
from tests.fuzz.nasty import MARKS, VALUES

_DEEP = "[" * 100_000 + "]" * 100_000
_JSON_RAW = (_DEEP, '{"a":' * 100_000 + "1" + "}" * 100_000, "9" * 5000, "1e999", '{"id": 1, "id": 2}')
_BOMB = "[&a [x,x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b,*b], &d [*c,*c,*c,*c,*c,*c], [*d,*d,*d]]"
_YAML_RAW = ("[" * 20_000, "9" * 5000, "2001-99-99", "&x [*x]", _BOMB)
_YAML_TEXT = (
    *(
        "!!python/object/apply:os.mkdir [executed]",
        "!!int x",
        "!!float x",
        "!!binary '@'",
        "!!timestamp x",
        "!!set {a, b}",
    ),
    *(
        "*nothing",
        "{<<: [1, 2]}",
        "{[a]: 1}",
        "{? {a: 1} : 2}",
        "1:99:99",
        "0b",
        "&a {a: *a}",
        "2001-01-01",
        "!!null x",
    ),
    *(
        "!!omap [a: 1]",
        "!!pairs [a]",
        "!!bool 7",
        "\t",
        "%TAG ! x",
        "--- 1\n--- 2",
        "!x 1",
        "{a: 1, a: 2}",
        "'\\ud800'",
    ),
)


def damage(files: Files, random: Random) -> Files:
    """A copy with one to three defects."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if not files:
            break
        name = _choose(files, random)
        data = files[name]
        if data is None or random.random() < 0.04:
            files = damage_folder(files, name, random)
        elif random.random() < 0.2:
            files = {**files, name: damage_bytes(data, random)}
        else:
            files = {**files, name: _damage_by_format(name, data, random)}
    return files


def _damage_by_format(name: str, data: bytes, random: Random) -> bytes:
    """By the rules of the format; data that earlier damage put beyond them gets some more, without rules."""
    try:
        return _BY_SUFFIX.get(name[name.rfind(".") :], damage_bytes)(data, random)
    except Exception:
        return damage_bytes(data, random)


def _choose(files: Files, random: Random) -> str:
    """The first file, which the case is about, half of the time; pictures, which have a reader of their own, seldom."""
    if random.random() < 0.5:
        return next(iter(files))
    others = [name for name in files if not name.endswith(".png")]
    return random.choice(others if others and random.random() < 0.8 else list(files))


def _json(data: bytes, random: Random) -> bytes:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return _json_text(damage_tree(tree, random))


def _json_text(tree: Any) -> bytes:
    return _with_raw(json.dumps(tree), _JSON_RAW).encode("utf-8", "surrogatepass")


def _json_lines(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    kind = random.randrange(5)
    if kind == 0:
        lines.insert(
            at, random.choice([b"", b"null", b"[]", b"1", b'"x"', b"{}", b"\xff", b'{"kind": "val"}', b'{"step": 1}'])
        )
    elif kind == 1:
        lines.insert(at, lines[random.randrange(len(lines))])
    else:
        lines[at] = _json(lines[at], random)
    return b"\n".join(lines)


def _yaml(data: bytes, random: Random) -> bytes:
    try:
        tree = yaml.safe_load(data)
    except Exception:  # damaged already
        return data
    if not isinstance(tree, (dict, list)):
        return data
    changed = damage_tree(tree, random, random.choice([VALUES, list(_YAML_TEXT)]))
    try:
        text = yaml.safe_dump(changed)
    except (yaml.YAMLError, RecursionError):
        return data
    text = _with_raw(text, _YAML_RAW)
    for raw in _YAML_TEXT:
        for quoted in (f"'{raw}'", f'"{raw}"'):
            text = text.replace(quoted, raw)
    return text.encode("utf-8", "surrogatepass")


def _with_raw(text: str, raws: tuple[str, ...]) -> str:
    for mark, raw in zip(MARKS, raws, strict=True):
        text = re.sub(f"['\"]?{mark}['\"]?", lambda _, raw=raw: raw, text)  # type: ignore[misc]
    return text


def _words(data: bytes, random: Random) -> bytes:
    """A table of words, as image lists and VOC's results are."""
    rows = [line.split(" ") for line in data.decode("utf-8", "surrogateescape").split("\n")]
    changed = damage_tree(rows, random, [str(value) for value in VALUES if str(value) not in MARKS])
    if not isinstance(changed, list):
        return str(changed).encode("utf-8", "surrogatepass")
    lines = [" ".join(map(str, row)) if isinstance(row, list) else str(row) for row in changed]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


_BY_SUFFIX: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".yaml": _yaml,
    ".xml": damage_xml,
    ".txt": _words,
    ".npz": damage_npz,
    ".mat": damage_mat,
    ".safetensors": damage_safetensors,
    ".pt": damage_pt,
    ".png": damage_png,
}
