"""The weights that come with the package: the SSD of a finished run, in half precision.

python -m experiments.endless.package --start RUN
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save

from experiments.endless.run_files import load_start
from stepgrad.files import write_whole
from stepgrad.models.demo.detector import WEIGHTS

FILE = Path(__file__).parents[2] / "src/stepgrad/models/demo" / WEIGHTS


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, required=True, help="folder of a finished run of an SSD")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args(arguments)
    _, model = load_start(options.start)
    halves = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    write_whole(options.out, save({name: value.contiguous() for name, value in halves.items()}))
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
