"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from stepgrad.names import visible


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
