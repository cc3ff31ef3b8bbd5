"""What minibatches without limit cost: memory and time of chunked steps, a million windows, bytes between processes.

    python -m benchmarks.scale                 # some ten minutes; writes results/scale.{json,md}
    python -m benchmarks.scale --images 64 --rounds 1 --million 100000     # rougher

The model is Fast R-CNN on AlexNet (random weights) over random pictures; every measurement has a process of its own.
Peak memory is that of live tensors: the C library is told to give freed memory back at once. With its default it keeps
some, the more the longer a process allocates; that is measured too.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from benchmarks.children import peak, run_child
from benchmarks.report import RESULTS, Claim, claims_table, heading, write
from benchmarks.scenes import HEIGHT, WIDTH, Scene, clustered_scene
from benchmarks.timing import interleaved, machine
from experiments.records import table
from stepgrad.detector import FastRCNN
from stepgrad.losses.detection import MAPLoss
from stepgrad.losses.distributed import DistributedMAPLoss
from stepgrad.losses.large_batch import large_batch

CLASSES, WINDOWS, CHUNK, HIDDEN = 20, 300, 4, 1024
PICTURES = 8  # different ones; the pictures' own memory is not what is measured
Step = Callable[[], object]


class Trial:
    """A model and a batch of pictures with windows."""

    def __init__(self, images: int, windows: int = WINDOWS) -> None:
        torch.manual_seed(0)
        self.model = FastRCNN(CLASSES, "alexnet", score="raw", loss="map", hidden=HIDDEN, shortest_side=None)
        self.pictures = torch.randint(256, (PICTURES, 3, int(HEIGHT), int(WIDTH)), dtype=torch.uint8)
        self.scene = clustered_scene(images, windows, CLASSES)
        self.loss_fn = MAPLoss(CLASSES, estimator="mee")

    def score(self, chunk: list[int]) -> list[Tensor]:
        return self.model.score_windows(
            [self.pictures[i % PICTURES] for i in chunk], [self.scene.boxes[i] for i in chunk]
        )

    def loss(self, scores: list[Tensor], first: int = 0) -> Tensor:
        part = slice(first, first + len(scores))
        return self.loss_fn(scores, self.scene.boxes[part], self.scene.targets[part])

    def plain_step(self) -> None:
        """The loss of all images in one graph."""
        self.model.zero_grad()
        self.loss(self.score(list(range(len(self.scene.boxes))))).backward()

    def accumulated_steps(self) -> None:
        """As many plain steps of a chunk as there are chunks: what one would do without large_batch."""
        self.model.zero_grad()
        for chunk in self.chunks():
            self.loss(self.score(chunk), first=chunk[0]).backward()

    def chunked_step(self) -> None:
        self.model.zero_grad()
        large_batch(self.score, self.chunks(), self.loss)

    def chunks(self) -> list[list[int]]:
        every = list(range(len(self.scene.boxes)))
        return [every[i : i + CHUNK] for i in range(0, len(every), CHUNK)]


def measure_memory(images: int, chunked: bool) -> dict[str, float]:
    """Peak bytes of a step beyond what the process held before: model, pictures and windows."""
    for _ in range(2):
        Trial(CHUNK, windows=150).chunked_step()  # loads kernels, starts threads
    trial = Trial(images)
    return peak(trial.chunked_step if chunked else trial.plain_step)


def measure_time(images: int, rounds: int) -> dict[str, Any]:
    trial = Trial(images)
    cases: dict[str, Step] = {"chunked step": trial.chunked_step, "plain steps of a chunk": trial.accumulated_steps}
    return {name: asdict(t) for name, t in interleaved(cases, rounds).items()}


def measure_million(windows: int) -> dict[str, float]:
    """Forward and backward of the loss alone."""
    loss_step(clustered_scene(2, 300, CLASSES))()
    scene = clustered_scene(max(1, windows // 2000), 2000, CLASSES)
    began = time.perf_counter()
    found = peak(loss_step(scene))
    return {**found, "seconds": time.perf_counter() - began, "windows": scene.windows}


def loss_step(scene: Scene, loss_fn: MAPLoss | None = None) -> Step:
    loss_fn = loss_fn or MAPLoss(CLASSES, estimator="mee")

    def run() -> None:
        leaves = [s.clone().requires_grad_() for s in scene.scores]
        loss_fn(leaves, scene.boxes, scene.targets).backward()

    return run


def measure_traffic(images: int, world: int, rounds: int) -> dict[str, Any]:
    """Bytes and seconds of the loss over `images` images on `world` processes, against one process."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        ranks = [context.Process(target=_rank, args=(r, world, images, rounds, folder)) for r in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        found = [json.loads((Path(folder) / f"{r}.json").read_text(encoding="utf-8")) for r in range(world)]
    scene = clustered_scene(images, 2000, CLASSES)
    alone = interleaved({"one": loss_step(scene)}, rounds)["one"].median
    return {
        "world": world,
        "ranks": found,
        "seconds, one process": alone,
        "threads, one process": torch.get_num_threads(),
    }


def _rank(rank: int, world: int, images: int, rounds: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    whole = clustered_scene(images, 2000, CLASSES)
    scene = Scene(whole.scores[rank::world], whole.boxes[rank::world], whole.targets[rank::world])
    loss_fn = DistributedMAPLoss(CLASSES, timeout=600, estimator="mee")
    step = loss_step(scene, loss_fn)
    step()
    first = loss_fn.traffic.sent
    timing = interleaved({"step": step}, rounds, warm_up=0)["step"]
    sent = (loss_fn.traffic.sent - first) / rounds
    objects = sum(len(t["labels"]) for t in scene.targets)
    least = least_bytes(rank, world, scene.windows, whole.windows, objects)
    Path(folder, f"{rank}.json").write_text(
        json.dumps({"sent": sent, **least, "seconds": timing.median}), encoding="utf-8"
    )
    dist.destroy_process_group()


def least_bytes(rank: int, world: int, own: int, everyones: int, objects: int) -> dict[str, float]:
    """What a process cannot do without sending, in float32, and what gathering everything everywhere would send.

    Each score goes to the one process that ranks its class and each gradient comes back, unless they are the same; boxes
    go to all, objects (box and label) to the process of their class.
    """
    classes = len(range(rank, CLASSES, world))
    numbers = own * (CLASSES - classes) + (everyones - own) * classes
    boxes, found = 4 * own * (world - 1), 5 * objects * (world - 1) / world
    gathered = (own * (CLASSES + 4) + 5 * objects) * (world - 1)
    return {"least": 4 * (numbers + boxes + found), "gathering everything": 4.0 * gathered}


def child(what: str, *numbers: int) -> dict[str, Any]:
    if what == "memory":
        return measure_memory(numbers[0], bool(numbers[1]))
    return {"time": measure_time, "million": measure_million, "traffic": measure_traffic}[what](*numbers)  # type: ignore[operator,no-any-return]


def measure(images: int, rounds: int, million: int, world: int) -> dict[str, Any]:
    results: dict[str, Any] = {"machine": machine(), "images": images}
    plan: dict[str, tuple[str | int, ...]] = {
        "memory, plain step of a chunk": ("memory", CHUNK, 0),
        "memory, chunked step": ("memory", images, 1),
        "kept memory, plain step of a chunk": ("memory", CHUNK, 0),
        "kept memory, chunked step": ("memory", images, 1),
        "time": ("time", images, rounds),
        "million": ("million", million),
        "traffic": ("traffic", 16, world, max(rounds, 3)),
    }
    for name, arguments in plan.items():
        print(f"{name} ...", flush=True)
        gives_back = {"MALLOC_MMAP_THRESHOLD_": "65536"} if name.startswith("memory") else {}
        results[name] = run_child("scale", "--child", *arguments, **gives_back)
    return {**results, "claims": [asdict(claim) for claim in check_claims(results)]}


def check_claims(results: dict[str, Any]) -> list[Claim]:
    steps = ("plain step of a chunk", "chunked step")
    small, large = (results[f"memory, {name}"]["extra"] for name in steps)
    small_kept, large_kept = (results[f"kept memory, {name}"]["extra"] for name in steps)
    chunked, plain = (results["time"][name]["median"] for name in ("chunked step", "plain steps of a chunk"))
    million, images = results["million"], results["images"]
    sent = max(rank["sent"] / rank["least"] for rank in results["traffic"]["ranks"])
    return [
        Claim(
            f"peak memory of a step of {images} images in chunks of {CHUNK}, against a plain step of {CHUNK}",
            target=1.3,
            measured=large / small,
            detail=f"{large / 1e6:.0f} MB against {small / 1e6:.0f} MB beyond model and input, {WINDOWS} windows per image; "
            f"with what the C library keeps {large_kept / 1e6:.0f} MB against {small_kept / 1e6:.0f} MB",
        ),
        Claim(
            f"time per image of that step, against plain steps of {CHUNK}",
            target=1.6,
            measured=chunked / plain,
            detail=f"{1000 * chunked / images:.0f} ms against {1000 * plain / images:.0f} ms an image",
        ),
        Claim(
            f"loss of {million['windows']:,} windows x {CLASSES} classes: share of the machine's memory",
            target=1.0,
            measured=million["whole"] / (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
            detail=f"{million['whole'] / 1e9:.1f} GB in all, {million['extra'] / 1e9:.1f} GB of it for forward and "
            f"backward, {million['seconds']:.0f} s",
        ),
        Claim(
            "bytes a process sends a step, against the least possible",
            target=1.05,
            measured=sent,
            detail=f"{results['traffic']['world']} processes, 16 images x 2000 windows x {CLASSES} classes",
        ),
    ]


def render(results: dict[str, Any]) -> str:
    traffic = results["traffic"]
    ranks = [
        [
            str(r),
            *(f"{rank[key] / 1e6:.3f}" for key in ("sent", "least", "gathering everything")),
            f"{rank['seconds']:.3f}",
        ]
        for r, rank in enumerate(traffic["ranks"])
    ]
    parts = [
        "# Minibatches without limit: what they cost",
        heading(results),
        f"Fast R-CNN on AlexNet, {HIDDEN} units, pictures of {WIDTH:.0f} x {HEIGHT:.0f} pixels.",
        claims_table([Claim(**claim) for claim in results["claims"]]),
        "## Between processes",
        f"One loss, forward and backward, over gloo on this machine; each process on one thread. One process with "
        f"{traffic['threads, one process']} threads: {traffic['seconds, one process']:.3f} s.",
        table(["rank", "MB sent a step", "least", "if every process gathered everything", "s a step"], ranks),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=256, help="of the large batch")
    parser.add_argument("--rounds", type=int, default=3, help="how often every case is timed")
    parser.add_argument("--million", type=int, default=1_000_000, help="windows of the largest loss")
    parser.add_argument("--world", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)  # what a child process is asked
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(child(options.child[0], *(int(n) for n in options.child[1:]))))
        return
    words = f"--images {options.images} --rounds {options.rounds} --million {options.million}"
    results = {"command": f"python -m benchmarks.scale {words}"}
    results |= measure(options.images, options.rounds, options.million, options.world)
    write("scale", results, render(results), options.out)


if __name__ == "__main__":
    main()
