"""Lists on the command line: `--compare voc07-devkit coco` in place of `--compare '[voc07-devkit, coco]'`."""

from __future__ import annotations

import json
from collections.abc import Sequence

LIST_OPTIONS = ("--compare", "--class_names")


def gather_lists(arguments: Sequence[str], options: Sequence[str] = LIST_OPTIONS) -> list[str]:
    """Join the words that follow a list option into the one json word that the parser takes.

    >>> gather_lists(["evaluate", "--compare", "voc07", "coco", "--data", "shapes"])
    ['evaluate', '--compare', '["voc07", "coco"]', '--data', 'shapes']
    >>> gather_lists(["--compare", '["voc07", "coco"]'])
    ['--compare', '["voc07", "coco"]']
    """
    gathered: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        gathered.append(word)
        if word in options:
            values = []
            while words and not words[0].startswith(("-", "[")):
                values.append(words.pop(0))
            if values:
                gathered.append(json.dumps(values))
    return gathered
