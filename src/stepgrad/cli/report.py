"""`stepgrad report`: the page of a run, or of several runs or files of detections side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepgrad.cli.terminal import Terminal
from stepgrad.errors import ConfigError
from stepgrad.names import visible

if TYPE_CHECKING:  # imported where they are used: the help page should not wait for them
    from stepgrad.cli.judged import JudgedInput
    from stepgrad.data.shape_fields import Task
    from stepgrad.metric.protocol import Protocol
    from stepgrad.report import Arm


def report(
    runs: list[Path],
    *,
    data: Path | None = None,
    split: str | None = None,
    protocol: list[str] | None = None,
    out: Path | None = None,
    checkpoint: str = "best",
    images_outside: bool = False,
    names: list[str] | None = None,
    task: Literal["boxes", "masks", "keypoints", "oriented", "segments"] = "boxes",
    sigmas: list[float] | None = None,
) -> int:
    """Write a page that shows what is wrong with a run, or several runs side by side.

    Each RUN is the folder of a training run, which detects again, or a file of detections, which needs --data:

        stepgrad report runs/a
        stepgrad report runs/cross-entropy runs/map --out comparison
        stepgrad report yolo.json mine.json --data annotations.json --names YOLO mine
        stepgrad report a.json b.json --data instances.json --task masks

    Several have their curves on one axis, and their mistakes and pictures side by side. The others are compared with the first
    one, and the last one is shown in most detail.

    Args:
        runs: Folders of training runs, or files of detections as `stepgrad evaluate` takes them.
        data: The data to judge on; by default the validation data of the run, or of the first of several.
        split: The split of the data, such as `test`.
        protocol: The protocols to judge by; the first one decides. By default that of the run or of the data.
        out: The folder to write report.html to; by default the run itself for one run, else `comparison`.
        checkpoint: The weights of a run to detect with: best, last, or the step of a checkpoint.
        images_outside: Whether file names and links in the data may lead out of its folder.
        names: What to call each RUN on the page of several; by default the part of its path that tells it from the others.
        task: What files of detections are compared by, as for `stepgrad evaluate`: boxes, masks, keypoints, oriented (boxes) or
            segments (of time). Pictures show them.
        sigmas: A sigma for each keypoint with --task keypoints, as for `stepgrad evaluate`.

    Returns:
        0.
    """
    from stepgrad.cli.provenance import provenance
    from stepgrad.evaluation.result import evaluate_under
    from stepgrad.metric.protocol import get_protocol

    if names is not None and len(names) != len(runs):
        raise ConfigError(f"names: expected one name for each of the {len(runs)} runs but got {len(names)}.")
    made = [_judged(run, data, split, checkpoint, images_outside, task, sigmas) for run in runs]
    adapt = made[0].dataset.overlap().adapt
    protocols = [adapt(get_protocol(name)) for name in protocol or [made[0].protocol]]
    for one in made:
        if one.run is None:
            one.warn_of_mistakes(evaluate_under(one.evidence(), protocols[0]))
    files = {"data": data} | (
        {"detections": runs[0]} if len(runs) == 1 else dict(zip(short_names(runs), runs, strict=True))
    )
    options = {"split": split, "checkpoint": checkpoint if any(one.run for one in made) else None, "sigmas": sigmas}
    options |= {"task": None if task == "boxes" else task}
    came = provenance(files, made[0].evidence(), protocols, options)
    if len(made) == 1:
        page = _page(made[0], out or (runs[0] if made[0].run else None), protocols, came)
    else:
        page = _comparison(out or Path("comparison"), names or short_names(runs), made, protocols, came)
    console = Terminal(markup=False, soft_wrap=True)
    console.print(visible(json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["sentence"]))
    console.print(f"report: {visible(page)}")
    return 0


def _judged(
    run: Path,
    data: Path | None,
    split: str | None,
    checkpoint: str,
    images_outside: bool,
    task: Task,
    sigmas: list[float] | None,
) -> JudgedInput:
    """The detections of a run folder, or of a file."""
    from stepgrad.cli.judged import read, run_on

    if (run.expanduser() / "config.yaml").exists():
        if task != "boxes":
            raise ConfigError(
                f"task: {run} is a run, which detects boxes only; expected files of detections for {task}."
            )
        return run_on(run, data, split, checkpoint, images_outside=images_outside)
    if data is None:
        raise ConfigError(
            f"{run}: is not a run folder (it has no config.yaml); for a file of detections, name its data with --data."
        )
    return read(run, data, split, None, "error", "count", images_outside, task, sigmas)


def _page(made: JudgedInput, folder: Path | None, protocols: Sequence[Protocol], came: dict[str, Any]) -> Path:
    if folder is None:
        raise ConfigError("out: expected a folder for the report of a file of detections; name it with --out.")
    page, metrics = folder.expanduser() / "report.html", made.metrics_under(protocols[0])
    return made.write_page(page, made.evidence(), protocols, metrics, made.run is not None, came)


def _comparison(
    folder: Path,
    names: Sequence[str],
    made: Sequence[JudgedInput],
    protocols: Sequence[Protocol],
    came: dict[str, Any],
) -> Path:
    """All on one page: the first is the reference, the last the one to look at."""
    from stepgrad.report import write_comparison

    arms = [_arm(name, one, protocols) for name, one in zip(names, made, strict=True)]
    return write_comparison(
        folder.expanduser(),
        title=" and ".join(arm.name for arm in arms),
        sentence=None,
        arms=arms,
        reference=0,
        chosen=len(arms) - 1,
        protocols=protocols,
        dataset=next((one for one in made if one.run), made[0]).pictures(),
        config={},
        provenance=came,
    )


def _arm(name: str, made: JudgedInput, protocols: Sequence[Protocol]) -> Arm:
    from stepgrad.evaluation.result import evaluate_under
    from stepgrad.report import Arm

    evidence = made.evidence()
    maps = {protocol.name: evaluate_under(evidence, protocol).map for protocol in protocols}
    return Arm(name, made.name, [maps], evidence, training=_TRAININGS[made.run.config().loss] if made.run else "")


_TRAININGS = {"nll": "cross-entropy", "map": "mAP training", "nll-then-map": "cross-entropy, then mAP training"}
"""What a run trained with, in words, by the name of its loss."""


def short_names(runs: Sequence[str | Path]) -> list[str]:
    """The end of each path, as long as it takes to tell them apart, without an end that all share; else the paths.

    >>> short_names(["runs/a", "runs/b.json"]), short_names(["x/1/val/found.json", "x/2/val/found.json"])
    (['a', 'b'], ['1', '2'])
    """
    paths = [Path(run).expanduser().resolve() for run in runs]
    parts = [(path if path.is_dir() else path.with_suffix("")).parts for path in paths]
    while len({part[-1:] for part in parts}) == 1 and min(map(len, parts)) > 1:
        parts = [part[:-1] for part in parts]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(run) for run in runs]
