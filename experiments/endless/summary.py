"""How far runs on endless `shapes` have come, and whether they have come to rest.

    python -m experiments.endless.summary FOLDER ...

A row for each run: held-out mAP (area at IoU 0.5 and COCO's AP, in per cent) at its last evaluation; by how much that is above
the one three quarters of the way; and the standard deviation over the last quarter, which says how much of it is noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from experiments.endless.held_out import PROTOCOLS
from experiments.endless.run_files import RunFiles

HEADER = ["run", "steps", "hours", *(f"{name}{what}" for name in PROTOCOLS for what in ("", " rise", " spread"))]


def last_quarter(lines: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """The evaluations from three quarters of the way on."""
    return [line for line in lines if line["step"] >= 0.75 * steps]


def row(folder: Path) -> list[str]:
    """The cells of one run; rise and spread are left out until it is in its last quarter."""
    steps = json.loads((folder / "config.json").read_bytes())["steps"]
    lines = RunFiles(folder).lines()
    if not lines:
        return [folder.name, f"0 of {steps}", *[""] * (len(HEADER) - 2)]
    last, rest = lines[-1], last_quarter(lines, steps)
    cells = [folder.name, f"{last['step']} of {steps}", f"{last['seconds'] / 3600:.1f}"]
    for name in PROTOCOLS:
        cells.append(f"{100 * last['map'][name]:.1f}")
        values = [100 * line["map"][name] for line in rest]
        cells += [f"{values[-1] - values[0]:+.1f}", f"{statistics.stdev(values):.1f}"] if len(values) > 1 else ["", ""]
    return cells


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    rows = [row(folder) for folder in parser.parse_args(arguments).folders]
    print("\n".join(f"| {' | '.join(cells)} |" for cells in [HEADER, ["---"] * len(HEADER), *rows]))


if __name__ == "__main__":
    main()
