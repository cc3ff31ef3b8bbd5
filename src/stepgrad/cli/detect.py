"""`stepgrad detect`: objects in any pictures, drawn and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stepgrad.cli.app import Whole
from stepgrad.cli.compress import open_detector
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.errors import ConfigError, DataError
from stepgrad.number_text import counted

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}


def detect(
    pictures: list[Path],
    *,
    run: Path,
    out: Path = Path("detections"),
    threshold: float | None = None,
    thresholds: Path | None = None,
    top: Whole | None = None,
    windows: Path | None = None,
    checkpoint: str = "best",
    draw: bool = True,
    compress: str | None = None,
    candidates: Whole | None = None,
) -> int:
    """Find objects in pictures with a trained run; write drawn pictures and JSON.

    Pictures are named one by one, or by their folders:

        stepgrad detect --run runs/voc photo.jpg holidays/
        stepgrad detect --run runs/voc photo.jpg --thresholds thresholds.json

    Args:
        pictures: Picture files, or folders of them.
        run: The folder of a training run.
        out: The folder for the drawn pictures and detections.json. Your own files are never overwritten: only drawings that
            an earlier `stepgrad detect` wrote there, and that were not changed since, are replaced.
        threshold: The least score of a detection to keep. By default each class has the threshold at which its F1 was best
            in validation; if there is none, 0.5 for probabilities.
        thresholds: The file of a threshold for each class, as `stepgrad thresholds --out` and the report write it.
        top: Largest number of detections to keep per picture: those with the highest scores.
        windows: Stored windows, by the names of the pictures: a folder written by `stepgrad propose`, an .npz or a .mat file;
            by default selective search finds them.
        checkpoint: The weights of the run to detect with: best, last, or the step of a checkpoint.
        draw: Whether to write drawn pictures as well as JSON.
        compress: The ranks of fc6 and fc7 for faster detection, such as 1024,256: a truncated SVD, which costs some mAP and
            takes a minute or two at the start for AlexNet. Without the option nothing is compressed.
        candidates: Largest number of windows per class and picture that enter NMS, or 0 for all; by default as in the run.

    Returns:
        0; 1 if nothing could be detected in some pictures: each has a line at the end, and the others are done.
    """
    if top is not None and top < 1:
        raise ConfigError(f"top: expected a number >= 1 but got {top}.")
    if threshold is not None and thresholds is not None:
        raise ConfigError("thresholds: expected --threshold (one for all) or --thresholds (a file) but got both.")
    paths = find_pictures(pictures)
    from stepgrad.deploy.cut_files import read_cuts
    from stepgrad.detector.pictures import Choice, detect_in, find_windows, read_upright
    from stepgrad.report.drawings import DetectionsFolder

    console = Terminal()
    output = DetectionsFolder(out.expanduser(), paths)
    opened = open_detector(run, checkpoint, compress, candidates, console)
    windows_of = find_windows(windows, opened.config.data.max_windows)
    if thresholds is None:
        choice = Choice.of(opened, threshold, top)
    else:
        choice = Choice.by_file(thresholds, read_cuts(thresholds)["thresholds"], opened.class_names, top)
    console.print(
        f"{counted(len(paths), 'picture')}, run {safe_text(opened.folder)}, step {opened.step}; {choice.text}",
        soft_wrap=True,
    )

    def look_at(path: Path) -> None:
        picture = read_upright(path)
        found = detect_in(opened, picture, windows_of(path, picture))
        output.add(path, picture, choice.keep(found), drawn=draw)

    try:
        failed = _failures(look_at, paths)
    finally:  # also if the work is cut short
        if output.images:
            output.save_record(run=str(opened.folder), step=opened.step, chosen=choice.text)
    objects = counted(sum(len(entry["detections"]) for entry in output.images), "object")
    console.print(f"{objects} in {counted(len(output.images), 'picture')}: {safe_text(output.folder)}", soft_wrap=True)
    for message in failed:
        console.print(f"[bold red]error[/] {safe_text(message)}", soft_wrap=True)
    return 1 if failed else 0


def _failures(look_at: Callable[[Path], None], paths: Sequence[Path]) -> list[str]:
    """Look at each picture; returns one line for each in which nothing could be detected."""
    from stepgrad.files import WriteError
    from stepgrad.progress import RichProgress

    failed: list[str] = []
    with RichProgress(Terminal(stderr=True)) as progress, progress.stage("detecting", len(paths)) as tick:
        for path in paths:
            try:
                look_at(path)
            except WriteError:  # concerns all pictures
                raise
            except DataError as error:
                failed.append(str(error))
            except Exception as error:  # search and model raise whatever they stumble over in odd pictures
                failed.append(f"{path}: detection failed ({type(error).__name__}: {error}).")
            tick()
    return failed


def find_pictures(names: Sequence[str | Path]) -> list[Path]:
    """Files as they are named, folders as the pictures in them, each once."""
    paths: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            inside = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in SUFFIXES and entry.is_file())
            if not inside:
                raise DataError(f"{path}: has no pictures ({', '.join(sorted(SUFFIXES))}).")
            paths += inside
        else:
            paths.append(path)
    return list(dict.fromkeys(paths))
