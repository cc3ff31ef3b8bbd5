"""`stepgrad demo`: a new class head on a trained detector; more cross-entropy, or mAP, for as many images."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from stepgrad.cli import INTERRUPTED
from stepgrad.cli.app import Whole
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.errors import ConfigError
from stepgrad.number_text import counted, in_points

if TYPE_CHECKING:
    from stepgrad.models.demo.trial import Settings, TrialOutcome
    from stepgrad.progress import RichProgress

KERNELS = ("radius float64", "values float64", "others", "intervals")
"""Calls whose kernels the demo needs, of the loss and of what judges test images: it should wait for compilation only once."""


def demo(
    *,
    out: Path = Path("runs/demo"),
    steps: Whole = 1000,
    map_steps: Whole = 100,
    images: Whole = 600,
    test_images: Whole = 300,
    seeds: Whole = 3,
    seed: Whole = 0,
) -> int:
    """Train a class head on built-in pictures, by cross-entropy and for mAP, and compare: two or three minutes.

    The detector is a small SSD that was fully trained on the built-in shapes. Its trunk and its boxes stay fixed, and it gets
    a new class head, the way most people use a trained detector. The head is trained by cross-entropy until it gains no more.
    From there the same budget is spent in three ways: on more cross-entropy, on cross-entropy with YOLOv8's labels, and on
    mAP. All are measured on test images, which were used neither for training nor for any choice. This takes a minute or two
    on a laptop, without a network or a GPU. After Ctrl-C, the same command continues where it stopped.

    Args:
        out: The folder for the trained heads and the report.
        steps: Number of minibatches of the first training, by cross-entropy.
        map_steps: Number of minibatches of training for mAP.
        images: Number of training images to draw.
        test_images: Number of test images to draw.
        seeds: Number of repetitions with other random numbers; their spread shows whether a gain is more than luck.
        seed: The first of the seeds.

    Returns:
        0; 130 after Ctrl-C.
    """
    numbers = {"steps": steps, "map_steps": map_steps, "images": images, "test_images": test_images, "seeds": seeds}
    for name, value in numbers.items():
        if value < 1:
            raise ConfigError(f"Expected --{name} to be at least 1 but got {value}.")
    console = Terminal()
    began = time.monotonic()
    from stepgrad.models.demo.trial import NEXT_STEPS, Settings  # these take seconds to import
    from stepgrad.progress import RichProgress

    try:
        with RichProgress(console) as progress:
            outcome, report = _run(out, Settings(seed=seed, **numbers), progress)
    except KeyboardInterrupt:
        console.print(
            f"stopped and saved; to continue, run the same command again: stepgrad demo --out {safe_text(out)}",
            soft_wrap=True,
        )
        return INTERRUPTED
    console.print(_table(outcome))
    console.print(outcome.sentence, soft_wrap=True)
    console.print(f"{time.monotonic() - began:.0f} s in total; report: {safe_text(report)}", soft_wrap=True)
    console.print("next, on your own data:", *NEXT_STEPS, sep="\n  ", soft_wrap=True)
    return 0


def _run(out: Path, settings: Settings, progress: RichProgress) -> tuple[TrialOutcome, Path]:
    from stepgrad.locks import only_writer
    from stepgrad.losses.warmup import warm_up
    from stepgrad.models.demo.trial import Trial

    with only_writer(out, "wait until it has finished, or choose another --out"):
        trial = Trial(out, settings)  # refuses a folder of another trial before anything is waited for
        with progress.stage("compiling kernels (only once)", len(KERNELS)) as tick:
            warm_up(KERNELS, tick)
        return trial.run(progress.stage)


def _table(outcome: TrialOutcome) -> Table:
    table = Table(
        "training", "COCO AP", "mAP at IoU 0.5", "seconds", title=f"on {counted(outcome.images, 'test image')}"
    )
    for name, way in outcome.ways.items():
        coco, voc = (in_points(values) for values in way.test.values())
        table.add_row(name, coco, voc, f"{way.seconds:.1f}")
    return table
