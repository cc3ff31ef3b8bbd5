"""`stepgrad doctor`: prints the problems of a dataset and a table of its classes, or labels that are likely wrong."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

from stepgrad.cli.app import Whole
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.errors import ConfigError
from stepgrad.number_text import counted

if TYPE_CHECKING:  # imported where they are used: the help page should not wait for them
    from stepgrad.data.doctor import ClassSummary, Diagnosis, Summary
    from stepgrad.data.problems import Problem

STYLES = {"error": "bold red", "warning": "yellow"}


def doctor(
    data: Path,
    *,
    split: str | None = None,
    class_names: list[str] | None = None,
    images: Path | None = None,
    need_images: bool = True,
    proposals: Path | None = None,
    pixels: bool = True,
    limit: Whole = 20,
    report: Path | None = None,
    images_outside: bool = False,
    detections: Path | None = None,
    protocol: str = "coco",
    order: Literal["likely", "gain"] = "likely",
    kinds: list[Literal["add", "swap", "redraw", "remove"]] | None = None,
    apply: Path | None = None,
    out: Path | None = None,
) -> int:
    """Find what is wrong with a dataset before training on it.

    Every problem is printed with its file and a way to fix it; images and objects are counted. With --detections, labels are
    listed that are likely wrong instead, with the mAP that changing each would gain.

    Args:
        data: A VOC folder, a COCO json file or folder, a YOLO data.yaml, a DOTA folder, or `shapes`.
        split: The split to examine; by default all annotations and all lists.
        class_names: The classes that a VOC folder should have; objects of others are errors.
        images: The folder of the images of a COCO file, if it is not in the usual place.
        need_images: Whether to examine the images as well as the annotations.
        proposals: The windows to check against the images: a folder written by `stepgrad propose`, an .npz or a .mat file.
        pixels: Whether to decode every image; with false only headers are read, which misses truncated files.
        limit: Largest number of problems to show per kind, or of labels; 0 shows all.
        report: A JSON file to which everything found is written, too.
        images_outside: Whether file names and links in the data may lead out of its folder.
        detections: A file of detections, as for `stepgrad evaluate`, by which labels are examined. They must come from a model
            that did not train on these labels.
        protocol: The protocol of --detections that says what mAP is.
        order: The order of --detections: `likely` finds more errors in fewer looks, `gain` is by what mAP would gain.
        kinds: The changes that --detections looks for; by default all: labels to `add` or `remove`, classes to `swap`, boxes to
            `redraw`.
        apply: The review.json that the page of --detections exported; its accepted changes are written to --out.
        out: The page to write with --detections, such as review.html, on which changes are accepted or rejected; or the new
            annotation file of --apply. The data itself is never changed.

    Returns:
        1 if anything would break or spoil training, else 0.
    """
    if apply is not None:
        from stepgrad.cli.labels import write_reviewed

        return write_reviewed(data, apply, out, split)
    if detections is not None:
        from stepgrad.cli.labels import show_label_errors

        return show_label_errors(
            data, detections, split, class_names, images, images_outside, protocol, order, kinds, limit, out
        )
    if kinds is not None or out is not None:
        raise ConfigError(f"{'out' if kinds is None else 'kinds'}: needs --detections.")
    from stepgrad.data.doctor import examine
    from stepgrad.files import write_whole
    from stepgrad.progress import RichProgress

    console = Terminal()
    with RichProgress(Terminal(stderr=True)) as progress, progress.counted("examining images") as show:
        diagnosis = examine(
            data,
            split,
            class_names=class_names,
            images=images,
            need_images=need_images,
            proposals=proposals,
            pixels=pixels,
            images_outside=images_outside,
            progress=show,
        )
    console.print(_table(diagnosis.summary))
    _print_problems(console, diagnosis, limit)
    _print_verdict(console, diagnosis)
    if report:
        problems = [asdict(problem) for problem in diagnosis.problems]
        content = {"summary": asdict(diagnosis.summary), "problems": problems}
        write_whole(Path(report), json.dumps(content, indent=1).encode())
    return 1 if diagnosis.errors else 0


def _print_problems(console: Console, diagnosis: Diagnosis, limit: int) -> None:
    """Problems of a file together, files with errors first, one line each and the fix below."""
    seen: Counter[str] = Counter()
    printed = []
    for problem in sorted(diagnosis.problems, key=lambda problem: problem.severity != "error"):
        seen[problem.kind] += 1
        if limit <= 0 or seen[problem.kind] <= limit:
            printed.append(problem)
    by_file: dict[str, list[Problem]] = {}
    for problem in printed:
        by_file.setdefault(problem.path, []).append(problem)
    for problem in (problem for problems in by_file.values() for problem in problems):
        style = STYLES[problem.severity]  # lines are unwrapped: a path broken over two lines cannot be copied
        line = f"[{style}]{problem.severity}[/] {safe_text(problem.path)}: {safe_text(problem.what)}"
        console.print(line, soft_wrap=True)
        console.print(f"    {safe_text(problem.fix)}", style="dim", soft_wrap=True)
    for kind, count in seen.items():
        if 0 < limit < count:
            rest = f"... and {count - limit} more of this kind ({kind}); --limit 0 shows all"
            console.print(rest, style="dim", soft_wrap=True)


def _table(summary: Summary) -> Table:
    table = Table(title=_title(summary), title_justify="left")
    table.add_column("class")
    set_aside = "crowd" if summary.total.crowd else "difficult"  # VOC has the one, COCO the other
    for heading in ("images", "objects", set_aside, "smallest", "median", "largest"):
        table.add_column(heading, justify="right")
    for row in summary.classes:
        table.add_row(*_cells(row))
    table.add_section()
    table.add_row(*_cells(summary.total), style="bold")
    table.caption = "smallest, median, largest: square root of the box area, in pixels"
    return table


def _cells(row: ClassSummary) -> list[str]:
    counts = (row.images, row.objects, row.difficult + row.crowd)
    sides = [f"{side:.0f}" for side in row.sides] if row.sides else ["-"] * 3
    return [safe_text(row.name), *(str(count) for count in counts), *sides]


def _title(summary: Summary) -> str:
    parts = [f"{summary.kind} {summary.name}: {counted(summary.images, 'image')}"]
    if summary.smallest and summary.largest:
        low, high = (f"{width} x {height}" for width, height in (summary.smallest, summary.largest))
        parts.append(f"{low} pixels" if low == high else f"{low} to {high} pixels")
    if summary.without_objects:
        parts.append(f"{summary.without_objects} without objects")
    if set(summary.modes) - {"RGB"}:
        parts.append(", ".join(f"{count} {mode}" for mode, count in summary.modes.items()))
    return safe_text(", ".join(parts))


def _print_verdict(console: Console, diagnosis: Diagnosis) -> None:
    errors, warnings = diagnosis.errors, len(diagnosis.problems) - diagnosis.errors
    counts = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    good = "ready to train, but read the warnings" if warnings else "ready to train"
    bad = "training would fail or learn from wrong data; fix the errors first"
    style = "bold red" if errors else "bold green"
    console.print(f"{counts}: {bad if errors else good}", style=style, soft_wrap=True)
