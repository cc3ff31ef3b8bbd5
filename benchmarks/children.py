"""Measurements that need a process of their own: peak memory, import time, and the wait of the first call.

`python -m benchmarks.children memory --images 32 --mode exact` prints one line of JSON; the parent reads it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def run_child(*arguments: str, cache: Path | None = None) -> dict[str, Any]:
    """Run one measurement in a fresh process; what it wrote to stderr comes back under "stderr"."""
    environment = dict(os.environ)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-m", "benchmarks.children", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}


IMPORTS = ("import torch", "import stepgrad", "from stepgrad import MAPLoss")


def import_seconds(rounds: int) -> dict[str, float]:
    """Median seconds of each import in fresh processes, taking turns.

    stepgrad loads names when they are first used, so the plain import says little; what users wait for is the third.
    """
    seconds: dict[str, list[float]] = {statement: [] for statement in IMPORTS}
    for turn in range(rounds + 1):
        for statement, taken in seconds.items():
            code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
            )
            if turn > 0:  # the first turn fills the disk cache
                taken.append(float(done.stdout))
    return {statement: statistics.median(taken) for statement, taken in seconds.items()}


def first_calls() -> list[dict[str, Any]]:
    """The first call in two processes that share a kernel cache, empty at first."""
    with tempfile.TemporaryDirectory() as cache:
        return [run_child("first-call", cache=Path(cache)) for _ in range(2)]


def _first_call() -> dict[str, float]:
    """Seconds of the first and of a later call, and how many kernels were compiled (not loaded from the cache)."""
    from numba.core import event

    compiled = event.RecordingListener()
    event.register("numba:compile", compiled)
    from benchmarks.scenes import clustered_scene

    scene = clustered_scene(images=2, windows=300)
    seconds = [_timed_step(scene, "exact") for _ in range(3)]
    starts = sum(1 for _, e in compiled.buffer if e.is_start)
    return {"first": seconds[0], "later": seconds[-1], "compiled": starts}


def _timed_step(scene: Any, mode: str) -> float:
    start = time.perf_counter()
    _step(scene, mode)
    return time.perf_counter() - start


def _step(scene: Any, mode: str) -> None:
    import stepgrad

    loss_fn = stepgrad.MAPLoss(
        num_classes=scene.scores[0].shape[1], nms_threshold=0.3, through_nms=mode, estimator="mee"
    )
    scores = [s.detach().requires_grad_() for s in scene.scores]
    loss_fn(scores, scene.boxes, scene.targets).backward()


def _memory(images: int, windows: int, classes: int, mode: str) -> dict[str, float]:
    """Peak resident bytes of one forward and backward beyond what the process held before, the gradient included."""
    from benchmarks.scenes import clustered_scene

    for _ in range(2):
        _step(clustered_scene(images=2, windows=300, classes=classes, seed=1), mode)  # loads kernels, starts threads
    scene = clustered_scene(images, windows, classes)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else memory freed a moment ago would be used again unseen
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the high-water mark starts again from here
    before = _status("VmRSS")
    _step(scene, mode)
    extra = _status("VmHWM") - before
    return {"extra": extra, "scores": images * windows * classes, "overlap lists": overlap_bytes(scene)}


def _status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; peak memory is measured on Linux only")


def overlap_bytes(scene: Any) -> int:
    """Plain lists of who overlaps whom: 4 bytes for every neighbour of every window."""
    from torchvision.ops import box_iou

    return sum(4 * int((box_iou(b, b) > 0.3).sum() - len(b)) for b in scene.boxes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["memory", "first-call"])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--windows", type=int, default=2000)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--mode", default="exact")
    options = parser.parse_args()
    if options.what == "memory":
        result = _memory(options.images, options.windows, options.classes, options.mode)
    else:
        result = _first_call()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
