"""Writes the pages and figures of the experiments from their runs on record.

python -m experiments.render                                # all of them
python -m experiments.render yolo/heads drop_in             # some
python -m experiments.render yolo/heads --runs FILE.jsonl   # the page or figure of your own runs, beside them
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments import (
    balance,
    batch_bias,
    box_gradient,
    coverage,
    curves,
    detector,
    drop_in_table,
    exported,
    finetune_bccd_table,
    label_errors,
    promises,
    ranking_table,
    tables,
    unfrozen,
)
from experiments.deployed import rule as deployed_rule
from experiments.deployed import table as deployed_table
from experiments.endless import arms_table, new_head, where
from experiments.masks import table as masks_table
from experiments.overlaps import table as overlaps_table
from experiments.poses import table as poses_table
from experiments.rescore import table as rescore_table
from experiments.yolo import budgets, gain_plot, heads_table, own_logits, train_for_map, ways
from stepgrad.errors import one_of
from stepgrad.files import write_whole

RESULTS = Path(__file__).parent / "results"
PAGES: dict[str, Callable[[Path], str]] = {
    "balance": balance.page,
    "batch_bias": batch_bias.page,
    "box_gradient": box_gradient.page,
    "coverage": coverage.page,
    "deployed/heads": deployed_table.page,
    "deployed/rule": deployed_rule.page,
    "detector": detector.page,
    "drop_in": drop_in_table.page,
    "endless/arms": arms_table.page,
    "endless/new_head": new_head.page,
    "exported": exported.page,
    "finetune_bccd": finetune_bccd_table.page,
    "label_errors": label_errors.page,
    "masks": masks_table.page,
    "overlaps": overlaps_table.page,
    "poses": poses_table.page,
    "promises": promises.page,
    "ranking": ranking_table.page,
    "rescore": rescore_table.page,
    "tables": tables.page,
    "unfrozen": unfrozen.page,
    "yolo/budgets": budgets.page,
    "yolo/heads": heads_table.page,
    "yolo/own_logits": own_logits.page,
    "yolo/train_for_map": train_for_map.page,
    "yolo/ways": ways.page,
}
"""By name: what makes the page from a file of runs."""
FIGURES: dict[str, Callable[[Path, Path], None]] = {
    "batch_bias": batch_bias.draw,
    "curves": curves.draw,
    "endless/where": where.draw,
    "overlaps": overlaps_table.draw,
    "yolo/gain": gain_plot.draw,
}
"""By name: what draws from a file of runs to an SVG."""
OTHER_RUNS = {"tables": "table", "yolo/gain": "yolo/heads"}
"""Files of runs that are not named like what is made of them."""


def runs_of(name: str) -> Path:
    return RESULTS / f"{OTHER_RUNS.get(name, name)}.jsonl"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys([*PAGES, *FIGURES]))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--runs", type=Path, help="runs of your own")
    options = parser.parse_args(arguments)
    for name in options.names or names:
        one_of("name", name, names)
        runs = options.runs or runs_of(name)
        if name in PAGES:
            file = options.runs.with_suffix(".md") if options.runs else RESULTS / f"{name}.md"
            write_whole(file, PAGES[name](runs).encode())
            print(file)
        if name in FIGURES:
            file = options.runs.with_suffix(".svg") if options.runs else RESULTS / f"{name}.svg"
            FIGURES[name](runs, file)
            print(file)


if __name__ == "__main__":
    main()
