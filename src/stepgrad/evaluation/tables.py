"""Numbers and tables as plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepgrad.names import visible


def rounded(value: float) -> str:
    """Four decimals, or a dash for nan.

    >>> rounded(0.72138), rounded(float("nan"))
    ('0.7214', '-')
    """
    return "-" if math.isnan(value) else f"{value:.4f}"


def per_cent(value: float, decimals: int = 1, sign: bool = False) -> str:
    """A share of one in per cent, the unit of every mAP, AP and recall that people read; a dash for nan.

    >>> per_cent(0.72138), per_cent(0.72138, decimals=2), per_cent(-0.00001, sign=True), per_cent(float("nan"))
    ('72.1', '72.14', '+0.0', '-')
    """
    if math.isnan(value):
        return "-"
    number = round(100.0 * value, decimals) + 0.0  # no minus before a zero
    return f"{number:{'+' if sign else ''}.{decimals}f}"


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, words to the left and numbers to the right.

    >>> print(plain_table(["class", "AP", "rule"], [["dog", "0.5", "ties"], ["cat", "12.75", ""]]))
    class     AP  rule
    dog      0.5  ties
    cat    12.75
    """
    lines_of_cells = [[visible(cell) for cell in line] for line in (header, *rows)]  # class names may hold anything
    columns = list(zip(*lines_of_cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(_numeric(cell) for cell in column[1:]) for column in columns]
    lines = [
        "  ".join(
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines_of_cells
    ]
    return "\n".join(lines)


def _numeric(cell: str) -> bool:
    return cell in ("", "-") or cell.lstrip("+-").replace(".", "", 1).isdigit()
