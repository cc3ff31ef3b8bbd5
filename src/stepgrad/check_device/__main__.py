"""Checks a device and prints what it found, to be pasted into an issue; ends with 1 if something was wrong."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence

import torch

import stepgrad
from stepgrad.check_device.checks import check_all, step_transfers
from stepgrad.check_device.cost import CLASSES, IMAGES, WINDOWS, StepCost, measure_cost
from stepgrad.errors import ConfigError, StepgradError

COMPUTED = (8, 16, 32)


def device_of(name: str) -> torch.device:
    """The device of a name; ConfigError where this machine has none."""
    if name.startswith("xla"):
        try:
            import torch_xla
        except ImportError:
            raise ConfigError(
                f"device: expected one that is there but {name} needs torch_xla, of torch's own version: pip install torch_xla"
            ) from None
        found: torch.device = torch_xla.device()
        return found
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        expected = "expected one that is there, such as cpu, cuda, mps or xla"
        raise ConfigError(f"device: {expected}, but got {name!r}: {reason}") from None
    return device


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every check on the device."""
    parser = argparse.ArgumentParser(prog="python -m stepgrad.check_device", description=__doc__)
    parser.add_argument("device", help="cuda, mps, xla or cpu")
    parser.add_argument("--no-cost", action="store_true", help="check only, without the cost per step")
    options = parser.parse_args(arguments)
    try:
        device = device_of(options.device)
    except StepgradError as error:
        print(f"check_device: {error}", file=sys.stderr)
        return 2
    cores = os.cpu_count() or 1
    versions = f"stepgrad {stepgrad.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    print(f"{versions}, {_named(device)}, {cores} cores")
    wrong = 0
    for check in check_all(device):
        wrong += bool(check.problem)
        print(check, flush=True)
    print(f"one step copies: {', '.join(step_transfers(device)) or 'nothing'}")
    if not options.no_cost:
        threads = [n for n in (1, 2, 4, *COMPUTED) if n <= cores]
        _print_cost(measure_cost(device, threads))
    print("all equal to the CPU" if not wrong else f"{wrong} results differ from the CPU's")
    return 1 if wrong else 0


def _named(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return f"{device} {name}".strip()


def _print_cost(cost: StepCost) -> None:
    print(f"MAPLoss coco, forward and backward, {IMAGES} images, {WINDOWS} windows each, {CLASSES} classes:")
    for threads, seconds in cost.by_threads.items():
        print(f"  {1000 * seconds:8.1f} ms  {threads} thread{'s' if threads > 1 else ''}")
    for threads in COMPUTED:
        computed = cost.computed(threads)
        if threads not in cost.by_threads and computed is not None:
            print(f"  {1000 * computed:8.1f} ms  {threads} threads, computed from 1 and 2")
    print(f"  {1000 * cost.copies:8.1f} ms  of them copies")


if __name__ == "__main__":
    sys.exit(main())
