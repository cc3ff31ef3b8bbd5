"""Runs cheap experiments again, with the code as it is, and compares them with the runs on record.

    python -m experiments.again                      # a new head on an SSD's features, one seed of each kind of labels: nightly

Trainings end a little different on every CPU, so a number is compared with those of all seeds on record: it may lie as far from
their mean as four of their standard deviations, and at least `LEEWAY` points. Ends with 1 if one lies further away.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

import torch

from experiments.endless import new_head
from experiments.records import Run, grouped, read_lines, table
from experiments.render import runs_of

LEEWAY = 0.5
SPREADS = 4.0


def compared(
    again: Sequence[Run], record: Sequence[Run], protocol: str = "coco"
) -> Iterator[tuple[str, float, float, float]]:
    """What was trained, its number now, the mean of the record, and how far they may be apart.

    >>> record = [{"labels": "hard", "arm": "map", "test": {"coco": value}} for value in (50.0, 52.0)]
    >>> [row] = compared([{"labels": "hard", "arm": "map", "test": {"coco": 51.5}}], record)
    >>> row[:3], round(row[3], 2)
    (('hard, map', 51.5, 51.0), 5.66)
    """
    known = grouped(record, "labels", "arm")
    for run in again:
        values = [old["test"][protocol] for old in known[run["labels"], run["arm"]]]
        spread = stdev(values) if len(values) > 1 else 0.0
        yield f"{run['labels']}, {run['arm']}", run["test"][protocol], fmean(values), max(LEEWAY, SPREADS * spread)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", nargs="+", choices=new_head.LABELS, default=new_head.LABELS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    record = read_lines(runs_of("endless/new_head"))
    again = list(new_head.final(new_head.chosen(record), [0], options.labels))
    rows = list(compared(again, [run for run in record if run["part"] == "final"]))
    print(
        table(
            ["new head on shapes", "now", "on record", "may differ by"],
            [[n, *(f"{v:.2f}" for v in r)] for n, *r in rows],
        )
    )
    far = [name for name, now, mean, leeway in rows if abs(now - mean) > leeway]
    print(f"{len(far)} of {len(rows)} differ by more than that{': ' if far else ''}{'; '.join(far)}")
    return 1 if far else 0


if __name__ == "__main__":
    raise SystemExit(main())
