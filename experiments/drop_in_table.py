"""The page of the drop-in experiment, from its runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments import drop_in
from experiments.records import Run, about, gain, grouped, load_runs, mean_and_spread, table

PROTOCOLS = drop_in.PROTOCOLS


def page(file: Path) -> str:
    """The page of the runs on record."""
    parts = [
        "# torchvision's detectors: stock loss, or stock loss and then mAP",
        about(drop_in.__doc__).strip("\n"),
        "mAP in per cent on unseen images, mean (standard deviation) over seeds; `gain` is over `stock-more` of the same seed.",
        final_table(load_runs(file, "final")),
        "## What was tried",
        "mAP on val, first seed. Of the points of an arm (see `ARMS`), that with the best `voc12` went on to the table above; "
        "rate 0.0003 at weight 1 was tried earlier and is none of them.",
        choose_table(load_runs(file, "choose")),
        "## How strongly each loss pulls",
        "Length of the gradient in all weights of the stock models, mean over seeds and four minibatches; mAP at weight 1.",
        lengths_table(load_runs(file, "lengths")),
        "## What the pre-selection of dense heads leaves out",
        "Stock models after training, eight val images, `voc12`; everything relative to ranking all anchors for all classes.",
        left_out_table(load_runs(file, "left-out")),
    ]
    return "\n\n".join(parts) + "\n"


def final_table(runs: Sequence[Run]) -> str:
    groups, rows = grouped(runs, "family", "arm"), []
    for (family, arm), own in groups.items():
        cells = [family, arm, *_point(own[0])]
        for protocol in PROTOCOLS:
            values, control = (
                {run["seed"]: run["map"][protocol] for run in some}
                for some in (own, groups.get((family, "stock-more"), []))
            )
            cells += [mean_and_spread(list(values.values())), gain(values, control) if arm == "mix" else ""]
        rows.append([*cells, str(len(own))])
    return table(["family", "training", "rate", "weight", "voc12", "gain", "coco", "gain", "seeds"], rows)


def choose_table(runs: Sequence[Run]) -> str:
    rows = [
        [run["family"], run["arm"], *_point(run), *(f"{run['map'][protocol]:.1f}" for protocol in PROTOCOLS)]
        for run in sorted(runs, key=lambda r: (r["family"], r["arm"] == "mix", r["arm"] == "stock-more", r["rate"]))
    ]
    return table(["family", "training", "rate", "weight", *PROTOCOLS], rows)


def lengths_table(runs: Sequence[Run]) -> str:
    found = [
        {"family": run["family"], "loss": loss, "length": length}
        for run in runs
        for loss, length in run["lengths"].items()
    ]
    groups = grouped(found, "family", "loss")
    rows = [[*names, f"{statistics.mean(one['length'] for one in own):.2f}"] for names, own in groups.items()]
    return table(["family", "loss", "length"], rows)


def _point(run: Run) -> list[str]:
    """Rate, and the weight of mAP if it took part."""
    return [f"{run['rate']:g}", f"{run['weight']:g}" if "weight" in run else ""]


def left_out_table(runs: Sequence[Run]) -> str:
    found = [{"family": run["family"], **row} for run in runs for row in run["rows"]]
    columns = {  # the title of each, the factor and the form of its number
        "candidates": ("share of pairs", 100, ".0f", " %"),
        "map": ("mAP", 100, ".2f", ""),
        "map of all": ("of all", 100, ".2f", ""),
        "gradient left out": ("gradient left out", 100, ".2f", " %"),
        "gradient error": ("gradient error", 100, ".2f", " %"),
        "cosine": ("cosine", 1, ".4f", ""),
    }
    rows = [
        [
            *names,
            *(
                f"{factor * statistics.mean(one[key] for one in own):{form}}{unit}"
                for key, (_, factor, form, unit) in columns.items()
            ),
        ]
        for names, own in grouped(found, "family", "selection").items()
    ]
    return table(["family", "candidates", *(title for title, *_ in columns.values())], rows)
