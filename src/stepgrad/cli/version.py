"""`stepgrad --version`: what a report of a mistake should say about the machine."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import stepgrad

PACKAGES = ("torch", "numba", "numpy", "torchvision")


def version_text() -> str:
    """A line per part: stepgrad, Python, the packages whose versions matter most, and the CPU. Nothing large is imported."""
    packages = [f"{package} {_version(package)}" for package in PACKAGES]
    return "\n".join(
        [f"stepgrad {stepgrad.__version__}", f"Python {platform.python_version()}", *packages, f"CPU {cpu_name()}"]
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """The CPU as its maker calls it, with the numbers of its model where the system tells them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    field = {line.split(":")[0].strip(): line.split(":")[-1].strip() for line in reversed(lines) if ":" in line}
    name = field.get("model name") or _name_on_mac() or platform.processor() or platform.machine() or "unknown"
    if {"cpu family", "model", "stepping"} <= field.keys():  # cloud machines hide the marketing name
        name += f" (family {field['cpu family']}, model {field['model']}, stepping {field['stepping']})"
    return name


def _name_on_mac() -> str:
    """platform.processor() says no more than `arm` there."""
    if platform.system() != "Darwin":
        return ""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout.strip()
    except OSError:
        return ""
