"""`python -m tests.kills --count 500`: kill real commands, and print what came of it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.kills.campaign import SHARES, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="kills over all commands [500]")
    parser.add_argument("--seed", type=int, default=0, help="another one has other moments [0]")
    parser.add_argument("--only", choices=list(SHARES), help="kill this command only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        count = run(options.count, Path(folder), options.seed, lambda text: print(text, flush=True), options.only)
    return 0 if count.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
