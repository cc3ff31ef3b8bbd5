"""`stepgrad propose`: windows for every image of a dataset, on disk, and how many objects they cover."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

from stepgrad.cli import INTERRUPTED
from stepgrad.cli.app import Whole
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.number_text import counted

if TYPE_CHECKING:  # imported where they are used: the help page should not wait for them
    from stepgrad.data import DetectionDataset, Recall, SearchSettings
    from stepgrad.data.proposals.generate import Outcome
    from stepgrad.progress import RichProgress


def propose(
    data: Path,
    *,
    split: str | None = None,
    out: Path | None = None,
    mode: Literal["fast", "quality"] = "fast",
    min_side: Whole = 12,
    workers: Whole | None = None,
    overwrite: bool = False,
    source: Path | None = None,
    images: Path | None = None,
    images_outside: bool = False,
) -> int:
    """Search the images of a dataset for windows, and keep the windows on disk.

    The number of objects that they cover is printed. Windows that are there already are kept, so the same command continues after
    a stop. Windows of another dataset or with other settings are overwritten only with --overwrite.

    Args:
        data: A VOC folder, a COCO json file or folder, a YOLO data.yaml, or `shapes`.
        split: The split to search; by default every annotated image.
        out: The folder of the windows; by default `proposals/NAME-MODE`.
        mode: The mode of selective search: `fast`, or `quality`, which finds three times as many windows in three times the
            time.
        min_side: Least width and height of a window in pixels; smaller ones are left out.
        workers: Number of images to search at a time; by default one per core.
        overwrite: Whether to make all windows again, even those that are there.
        source: The .npz or .mat file to take the windows from instead of searching, or `built-in` for the windows of shapes.
        images: The folder of the images of a COCO file, if it is not in the usual place.
        images_outside: Whether file names and links in the data may lead out of its folder.

    Returns:
        0; 1 if some images could not be searched; 130 after Ctrl-C.
    """
    from stepgrad.data import CachedProposals, SearchSettings, load_dataset, recall
    from stepgrad.data.proposals.generate import default_folder
    from stepgrad.progress import RichProgress

    console = Terminal()
    dataset = load_dataset(data, split, images=images, images_outside=images_outside)
    folder = Path(out) if out else default_folder(dataset, Path(source).stem if source else mode)
    console.print(
        f"{counted(len(dataset), 'image')} of {safe_text(dataset.name)}, windows in {safe_text(folder)}", soft_wrap=True
    )
    try:
        with RichProgress(Terminal(stderr=True)) as progress:
            if source is not None:
                outcome = _import(dataset, folder, source, overwrite, progress)
            else:
                settings = SearchSettings(mode, min_side)
                outcome = _search(dataset, folder, settings, workers or os.cpu_count() or 1, overwrite, progress)
    except KeyboardInterrupt:
        _print_interrupted(console, folder, len(dataset))
        return INTERRUPTED
    _print_outcome(console, outcome)
    if outcome.failed:
        return 1
    console.print(_table(recall(CachedProposals(folder), dataset)))
    return 0


def _import(dataset: DetectionDataset, folder: Path, source: Path, overwrite: bool, progress: RichProgress) -> Outcome:
    from stepgrad.data import import_proposals, load_proposals

    windows = load_proposals(source, dataset)
    with progress.stage("importing", len(dataset)) as tick:
        return import_proposals(windows, dataset, folder, overwrite, tick, say=progress.say)


def _search(
    dataset: DetectionDataset,
    folder: Path,
    settings: SearchSettings,
    workers: int,
    overwrite: bool,
    progress: RichProgress,
) -> Outcome:
    """Search the images that need it; only these count for the time left."""
    from stepgrad.data import generate_proposals
    from stepgrad.data.proposals.generate import Outcome, missing_windows

    todo = list(range(len(dataset))) if overwrite else missing_windows(dataset, folder, settings)
    if not todo:
        return Outcome(found=len(dataset))
    with progress.stage("searching", len(todo)) as tick:
        outcome = generate_proposals(
            dataset, folder, settings, workers, overwrite, tick, indices=todo, say=progress.say
        )
    outcome.found += len(dataset) - len(todo)
    return outcome


def _print_interrupted(console: Console, folder: Path, total: int) -> None:
    done = len(list(folder.glob("[!.]*.npz")))
    text = (
        f"stopped; {safe_text(folder)} has {done} of {counted(total, 'image')}: run the same command again to continue"
    )
    console.print(f"[yellow]{text}[/]", soft_wrap=True)


def _print_outcome(console: Console, outcome: Outcome) -> None:
    for message in outcome.failed:
        console.print(f"[bold red]error[/] {safe_text(message)}", soft_wrap=True)
    console.print(f"{outcome.made} made, {outcome.found} already there, {len(outcome.failed)} failed")
    if outcome.failed:
        console.print("[bold red]some images have no windows; fix the errors above and run the same command again[/]")


def _table(measured: Recall) -> Table:
    counts = measured.windows
    title = f"{counts.mean():.0f} windows per image ({counts.min()} to {counts.max()})"
    table = Table(title=title, title_justify="left", caption="difficult and crowd objects are not counted")
    table.add_column("class")
    table.add_column("objects", justify="right")
    for threshold in measured.thresholds:
        table.add_column(f"recall at IoU {threshold:g}", justify="right")
    for label, name in enumerate(measured.class_names):
        table.add_row(safe_text(name), *_shares(int(measured.objects[label]), measured.covered[:, label].tolist()))
    table.add_section()
    total = _shares(int(measured.objects.sum()), measured.covered.sum(axis=1).tolist())
    table.add_row("all", *total, style="bold")
    return table


def _shares(objects: int, covered: list[int]) -> list[str]:
    return [str(objects), *(f"{count / objects:.1%}" if objects else "-" for count in covered)]
