"""Print the lowest versions that pyproject.toml allows, one `name==version` per line: `python .ci/pins.py train lightning`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; the pip of its environments brings one
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).parents[1]


def lowest(*extras: str) -> list[str]:
    """The requirements of the core and of these extras, each at its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    return sorted({_pin(line) for line in wanted if not line.startswith("stepgrad[")})


def _pin(requirement: str) -> str:
    found = re.fullmatch(r"([\w.-]+(?:\[[\w,-]+\])?)>=([\d.]+)", requirement)
    if found is None:
        raise SystemExit(f"pyproject.toml: expected NAME>=VERSION but got {requirement!r}, which has no lowest version")
    return "{}=={}".format(*found.groups())


if __name__ == "__main__":
    print("\n".join(lowest(*sys.argv[1:])))
