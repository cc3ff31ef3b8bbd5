"""What the pages of all benchmarks share: promises with what was measured, the machine, and the two files of results."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.records import table
from stepgrad.files import write_whole

RESULTS = Path(__file__).parent / "results"
Results = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """One promise: `measured` must not exceed `target`; `aim`, if any, is what we would like."""

    text: str
    target: float
    measured: float
    unit: str = "x"
    aim: float | None = None
    detail: str = ""

    @property
    def met(self) -> bool:
        return self.measured <= self.target


def write(name: str, results: Results, page: str, folder: Path = RESULTS) -> None:
    """Write NAME.json and NAME.md, and print the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.json", (json.dumps(results, indent=1) + "\n").encode())
    write_whole(folder / f"{name}.md", page.encode())
    print(page)


def heading(results: Results) -> str:
    """The command and what the numbers depend on. Older results name the file, which was a script then."""
    facts = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    command = re.sub(r"python benchmarks/(\w+)\.py", r"python -m benchmarks.\1", results["command"])
    return f"`{command}` on {facts}."


def claims_table(claims: list[Claim]) -> str:
    """Each promise with its target and what was measured."""
    return table(["promise", "target", "measured", "kept", "remarks"], [_claim_row(claim) for claim in claims])


def _claim_row(claim: Claim) -> list[str]:
    target = f"<= {_number(claim.target)}{claim.unit}" + (f" (aim {_number(claim.aim)})" if claim.aim else "")
    return [claim.text, target, f"{_number(claim.measured)}{claim.unit}", kept(claim.met), claim.detail]


def kept(met: bool) -> str:
    """A broken promise stands out."""
    return "yes" if met else "**no**"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value < 100 else f"{value:.0f}"
