"""What a training step of YOLOv8n for mAP costs, next to the stock step (needs ultralytics).

    python -m benchmarks.drop_in_yolo                   # 16 images of 640 pixels; writes results/drop_in_yolo.{json,md}
    python -m benchmarks.drop_in_yolo --images 4        # where time or memory do not suffice

Forward, loss and backward in one process on the CPU, 80 classes, seven objects per image as in COCO. Random weights, the head's
spread out so that scores differ: mAP ranks as many windows as it would for a trained one. Stock, a fixed weight and an automatic
one take turns in every round. The process's own CPU seconds stand beside those of the clock: other work does not count in them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import heading, write
from benchmarks.timing import machine, version
from experiments.records import table
from stepgrad.models.yolo.loss import WithMAP, make_switches
from stepgrad.models.yolo.trainer import MAPTraining

CLASSES, OBJECTS, TARGET = 80, 7, 1.15


def network() -> Any:
    from ultralytics.cfg import get_cfg
    from ultralytics.nn.tasks import DetectionModel

    torch.manual_seed(0)
    model = DetectionModel("yolov8n.yaml", nc=CLASSES, verbose=False).train()
    model.args = get_cfg()
    with torch.no_grad():
        for name, parameter in model.model[-1].named_parameters():
            if "dfl" not in name:
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def pictures(images: int, size: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    G = images * OBJECTS
    sides = 0.05 + 0.4 * torch.rand(G, 2, generator=g)
    centre = sides / 2 + torch.rand(G, 2, generator=g) * (1 - sides)
    return {
        "img": torch.rand(images, 3, size, size, generator=g),
        "batch_idx": torch.arange(G) // OBJECTS,
        "cls": torch.randint(CLASSES, (G, 1), generator=g).float(),
        "bboxes": torch.cat([centre, sides], dim=1),
    }


def criteria(model: Any) -> dict[str, Any]:
    """Stock and with mAP."""
    found: dict[str, Any] = {"stock": model.init_criterion()}
    for name, weight in (("fixed weight", 1.0), ("automatic weight", "auto")):
        stock = model.init_criterion()
        switches = make_switches(MAPTraining.options(weight=weight, protocol="coco").settings, stock, model.args)
        for switch in switches.values():
            switch.enabled = True
        found[name] = WithMAP(stock, switches, "")
    return found


def step(model: Any, criterion: Any, batch: dict[str, Tensor]) -> Callable[[], None]:
    def run() -> None:
        model.zero_grad(set_to_none=True)
        criterion(model(batch["img"]), batch)[0].sum().backward()

    return run


def measure(images: int, size: int, rounds: int) -> dict[str, Any]:
    """Medians of seconds, by the clock and of CPU, of each criterion."""
    model, batch = network(), pictures(images, size)
    steps = {name: step(model, criterion, batch) for name, criterion in criteria(model).items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, run in steps.items():
            clock, cpu = time.perf_counter(), time.process_time()
            run()
            if turn:  # the first warms up
                taken[name].append((time.perf_counter() - clock, time.process_time() - cpu))
    medians = {name: [statistics.median(kind) for kind in zip(*rows, strict=True)] for name, rows in taken.items()}
    return {"images": images, "size": size, "rounds": rounds, "seconds": medians}


def render(results: dict[str, Any]) -> str:
    """The page."""
    row = results["row"]
    stock = row["seconds"]["stock"]
    rows = [
        [name, f"{clock:.2f}", f"{cpu:.2f}", f"{clock / stock[0]:.2f}x", f"{cpu / stock[1]:.2f}x"]
        for name, (clock, cpu) in row["seconds"].items()
    ]
    facts = {**results["machine"], "ultralytics": results["ultralytics"]}
    parts = [
        "# YOLO, trained for mAP: the cost of a step",
        heading({**results, "machine": facts}),
        f"YOLOv8n, {row['images']} images of {row['size']} pixels, {CLASSES} classes, {OBJECTS} objects per image. Medians of "
        f"{row['rounds']} rounds, in which all take turns. At most {TARGET}x is promised.",
        table(["loss", "seconds", "of CPU", "ratio", "of CPU"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--print-only", action="store_true", help="do not write results")
    options = parser.parse_args(arguments)
    results = {
        "command": f"python -m benchmarks.drop_in_yolo --images {options.images} --rounds {options.rounds}",
        "machine": machine(),
        "ultralytics": version("ultralytics"),
        "row": measure(options.images, options.size, options.rounds),
    }
    if options.print_only:
        print(render(results))
    else:
        write("drop_in_yolo", results, render(results))


if __name__ == "__main__":
    main()
