"""The reference: nothing fast in it, and its recall levels counted by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepgrad.metric.protocol import PROTOCOLS
from stepgrad.reference.average_precision import levels_served


def test_the_reference_needs_neither_torch_nor_a_compiler() -> None:
    code = "import sys, stepgrad.reference; print(sorted({'torch', 'numba', 'llvmlite'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_protocols_weigh_true_positives_as_the_reference_counts_levels(name: str) -> None:
    for P in [*range(1, 130), 1000]:
        counts, norm = PROTOCOLS[name].level_counts(P)
        assert (tuple(counts[1:].tolist()), norm) == levels_served(P, PROTOCOLS[name])
