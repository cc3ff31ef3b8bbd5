"""Fair timing on a noisy machine: every case takes its turn in every round, and medians are compared."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from stepgrad.cli.version import cpu_name

PACKAGES = ["torch", "torchvision", "numpy", "numba", "torchsort", "libauc", "pytorch-metric-learning", "stepgrad"]


@dataclass(frozen=True)
class Timing:
    """Seconds of one case over the rounds."""

    median: float
    fastest: float
    slowest: float
    rounds: int


def interleaved(cases: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> dict[str, Timing]:
    """Run each case once per round, so that a slow spell of the machine hits all of them alike."""
    for _ in range(warm_up):
        for case in cases.values():
            case()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            seconds[name].append(_seconds(case))
    return {name: Timing(statistics.median(s), min(s), max(s), rounds) for name, s in seconds.items()}


def _seconds(case: Callable[[], object]) -> float:
    start = time.perf_counter()
    case()
    return time.perf_counter() - start


def machine() -> dict[str, object]:
    """What the numbers depend on."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "memory GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "load before": round(os.getloadavg()[0], 2),
        **{package: version(package) for package in PACKAGES},
    }


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
