"""A pass over images of many sizes does not keep the memory of each."""

import subprocess
import sys

import pytest

PASS = """
import sys, torch
from stepgrad.detector.training.process import return_large_blocks
if sys.argv[1] == "given back":
    assert return_large_blocks()
torch.manual_seed(0)
torch.set_num_threads(1)
kept = []
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
for i in range(40):
    sizes = torch.randint(1 << 20, 4 << 20, (6,)).tolist()
    large = [torch.ones(size) for size in sizes]         # 4 to 16 MB each, as activations are
    kept.extend(large[-1][:5000].clone() for _ in range(4))   # results, 20 kB each
    del large[::2]
    large = [torch.ones(size + 1000) for size in sizes]
    del large
print(resident() - sum(k.numel() * 4 for k in kept))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_small_results_do_not_hold_large_freed_blocks() -> None:
    def resident(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", PASS, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert resident("given back") < resident("default")
