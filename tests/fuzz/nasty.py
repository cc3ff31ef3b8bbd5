"""Values that people, broken programs and attackers put where a plain number or name belongs."""

from __future__ import annotations

import math
from typing import Any

GUARD = "{GUARD}"
"""Becomes the path of the guarded folder, which no case may change."""
MARKS = ("<<raw-0>>", "<<raw-1>>", "<<raw-2>>", "<<raw-3>>", "<<raw-4>>")
"""Become text that the format has and a tree has not: nesting of 100,000, endless numbers, tags, entities."""

NUMBERS: list[Any] = [
    *(-1, 0, 1, 2, 3, 7, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**400, -(10**400)),
    *(0.5, -0.0, 1e-320, 1e15, 1e38, 1e39, 1e154, 1e200, 1e308, -1e308, math.nan, math.inf, -math.inf),
]
NAMES: list[str] = [
    *(
        "",
        " ",
        ".",
        "..",
        "/",
        "../x",
        "../../x",
        "a/b",
        "a\\b",
        "C:\\x",
        "~",
        "~nobody/x",
        "*",
        "[",
        "a?b",
        "-x",
        "con",
    ),
    *(
        "\0",
        "a\0b",
        "a\nb",
        "\r",
        "\x1b[31mred\x1b[0m",
        "\ud800",
        "\udcff",
        "\u202eabc",
        "e\u0301",
        "[bold]",
        "{0}",
        "%s",
    ),
    *("A" * 300, "A" * 5000, "0", "1", "1e999", "nan", "0x10", "1_000", "true", "null", "shapes", "built-in", "\ufeff"),
    *("a", "b", "2", "dog", "cat", "train", "imagenet", "tiny", "{", "]", "<a/>", "&lt;", "__class__", "digest"),
    *(f"{GUARD}/sibling/canary.txt", "../../sibling/canary.txt", "../../sibling/canary", "../sibling"),
]
VALUES: list[Any] = [
    *NUMBERS,
    *NAMES,
    *MARKS,
    *(
        None,
        True,
        False,
        [],
        {},
        [[]],
        [1],
        [None],
        [1, 2, 3, 4],
        [0, 0, -1, 5],
        [1e308, 0, 1e308, 5],
        {"a": 1},
        {"id": 1},
    ),
    [[0, 0, 1, 1]] * 3,
]
