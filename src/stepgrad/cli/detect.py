"""`stepgrad detect`: objects in any pictures, drawn and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepgrad.cli.app import Whole
from stepgrad.cli.compress import open_detector
from stepgrad.cli.output import Output
from stepgrad.cli.output import draw as draw_picture
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.errors import ConfigError, DataError
from stepgrad.number_text import counted

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from stepgrad.detector.training.run_folder import Run

    WindowsOf = Callable[[Path, Image.Image], Tensor]

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
SEARCH_SIDE = 500
"""Larger pictures are shrunk to this longest side for the search alone: about the size of VOC's photographs."""
TOP = 10


def detect(
    pictures: list[Path],
    *,
    run: Path,
    out: Path = Path("detections"),
    threshold: float | None = None,
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

    Args:
        pictures: Picture files, or folders of them.
        run: The folder of a training run.
        out: The folder for the drawn pictures and detections.json. Your own files are never overwritten: only drawings that
            an earlier `stepgrad detect` wrote there, and that were not changed since, are replaced.
        threshold: The least score of a detection to keep. By default each class has the threshold at which its F1 was best
            in validation; if there is none, 0.5 for probabilities.
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
    paths = find_pictures(pictures)
    console = Terminal()
    output = Output(out.expanduser(), paths)
    opened = open_detector(run, checkpoint, compress, candidates, console)
    windows_of = find_windows(windows, opened.config.data.max_windows)
    choice = Choice.of(opened, threshold, top)
    console.print(
        f"{counted(len(paths), 'picture')}, run {safe_text(opened.folder)}, step {opened.step}; {choice}",
        soft_wrap=True,
    )
    failed = _detect_all(opened, paths, windows_of, choice, output, draw, console)
    for message in failed:
        console.print(f"[bold red]error[/] {safe_text(message)}", soft_wrap=True)
    return 1 if failed else 0


def _detect_all(
    run: Run,
    paths: Sequence[Path],
    windows_of: WindowsOf,
    choice: Choice,
    output: Output,
    draw: bool,
    console: Terminal,
) -> list[str]:
    """Detect in each picture, and write the record even if the work is cut short; returns one line per failure."""
    from stepgrad.files import WriteError
    from stepgrad.progress import RichProgress

    record: dict[str, Any] = {"run": str(run.folder), "step": run.step, "chosen": str(choice), "images": []}
    failed: list[str] = []
    try:
        with RichProgress(Terminal(stderr=True)) as progress, progress.stage("detecting", len(paths)) as tick:
            for path in paths:
                try:
                    record["images"].append(_look_at(path, run, windows_of, choice, output if draw else None))
                except WriteError:  # concerns all pictures
                    raise
                except Exception as error:  # search and model raise whatever they stumble over in odd pictures
                    failed.append(_reason(path, error))
                tick()
    finally:
        if record["images"]:
            output.save_record(record)
    objects = sum(len(entry["detections"]) for entry in record["images"])
    console.print(
        f"{counted(objects, 'object')} in {counted(len(record['images']), 'picture')}: {safe_text(output.folder)}",
        soft_wrap=True,
    )
    return failed


def _reason(path: Path, error: Exception) -> str:
    """One line with the path of a picture and the reason why nothing was detected."""
    if isinstance(error, DataError):
        return str(error)
    return f"{path}: detection failed ({type(error).__name__}: {error})."


def _look_at(path: Path, run: Run, windows_of: WindowsOf, choice: Choice, output: Output | None) -> dict[str, Any]:
    """The entry of one picture in the record; the drawing goes to the output, if there is one."""
    picture = read_upright(path)
    detections = _detect(run, picture, windows_of(path, picture), choice)
    drawn = output.save_drawing(path, draw_picture(path, picture, detections)) if output else {"drawing": None}
    width, height = picture.size
    return {"image": str(path), "width": width, "height": height, **drawn, "detections": detections}


def _detect(run: Run, picture: Image.Image, windows: Tensor, choice: Choice) -> list[dict[str, Any]]:
    import torch

    from stepgrad.data.images import image_to_tensor

    with torch.inference_mode():
        tensors = run.model([image_to_tensor(picture)], [windows])[0]
    rows = zip(*(tensors[key].tolist() for key in ("boxes", "labels", "scores")), strict=True)
    named = [{"box": b, "label": n, "class": run.class_names[n], "score": s} for b, n, s in rows]
    return choice.keep(named)


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


def read_upright(path: Path) -> Image.Image:
    """The picture turned upright, as its EXIF block says."""
    from PIL import ImageOps

    from stepgrad.data.images import read_image

    if not path.exists():
        raise DataError(f"{path}: no such picture; check the path.")
    picture = read_image(path)
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # a damaged EXIF block says nothing, and the pixels are fine
        return picture


@dataclass(frozen=True)
class Choice:
    """The rule for which detections are shown: a score threshold, one per class, or the best few."""

    threshold: float | None = None
    by_class: Mapping[str, float] = field(default_factory=dict)
    """Thresholds of single classes; where there are any, other classes were never found in validation and have none."""
    top: int | None = None
    why: str = ""

    @classmethod
    def of(cls, run: Run, threshold: float | None, top: int | None) -> Choice:
        """The threshold or number asked for, else the best thresholds of validation, else a default for the kind of score."""
        if threshold is not None or top is not None:
            return cls(threshold, top=top)
        if run.thresholds:
            return cls(by_class=run.thresholds)
        if run.config.score == "logprob":  # the scores of detections are probabilities
            return cls(0.5)
        return cls(
            top=TOP, why=" (raw scores have no natural threshold; choose one with --threshold, or a number with --top)"
        )

    def keep(self, detections: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The detections to show, by decreasing score."""
        ranked = sorted(detections, key=lambda detection: -detection["score"])
        return [detection for detection in ranked if self._reaches(detection)][: self.top]

    def _reaches(self, detection: Mapping[str, Any]) -> bool:
        if self.by_class:
            return bool(detection["score"] >= self.by_class.get(detection["class"], float("inf")))
        return self.threshold is None or bool(detection["score"] >= self.threshold)

    def __str__(self) -> str:
        if self.by_class:
            return "showing scores that reach the threshold of their class, the one with the best F1 in validation"
        parts = [] if self.threshold is None else [f"scores of at least {self.threshold:g}"]
        parts += [] if self.top is None else [f"the {self.top} best of each picture"]
        return f"showing {' and '.join(parts)}{self.why}"


def find_windows(source: Path | None, limit: int | None) -> WindowsOf:
    """A function that gives the (N, 4) windows of a picture, at most as many as in training: by a search, or from disk."""
    from stepgrad.data.proposals import load_proposals
    from stepgrad.data.proposals.search import check_installed
    from stepgrad.detector.training.inputs import choose_windows

    if source is None:
        check_installed()
        return lambda path, picture: choose_windows(search_windows(picture), limit, path.stem)
    stored = load_proposals(source)
    best_first = stored.source.endswith(".mat")

    def look_up(path: Path, _: Image.Image) -> Tensor:
        for key in (path.stem, path.name, path.stem.lstrip("0")):  # COCO's ids are numbers
            if key in stored:
                return choose_windows(stored[key], limit, path.stem, best_first)
        raise DataError(f"{path}: {stored.source} has no windows for it; leave out --windows to search for windows.")

    return look_up


def search_windows(picture: Image.Image) -> Tensor:
    """Selective search on the picture, shrunk if it is large: a second or two, whatever its size."""
    import torch

    from stepgrad.data.proposals.search import selective_search

    width, height = picture.size
    scale = max(1.0, max(width, height) / SEARCH_SIDE)
    small_size = (max(1, round(width / scale)), max(1, round(height / scale)))
    small = picture if scale == 1.0 else picture.resize(small_size)
    windows = torch.from_numpy(selective_search(small)).float()
    return windows * torch.tensor([width / small.width, height / small.height] * 2)
