"""New classes for a trained detector: train its last class layer on frozen features, for mAP and, as a control, without it.

    python examples/new_head.py --out RUN         # takes minutes; if it is stopped, the same command continues

The detector is the small SSD that comes with the package, and a program draws the images. Replace both with your own.
"""

from __future__ import annotations

import argparse

import stepgrad as sg
from stepgrad.data import ShapesDataset
from stepgrad.models.demo.detector import trained_ssd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for features, trained layers and the report")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--steps", type=int, default=600, help="number of steps of cross-entropy")
    parser.add_argument("--map-steps", type=int, default=60)
    options = parser.parse_args()
    result = sg.train_new_head(
        trained_ssd(),
        ShapesDataset("train", options.images, seed=7),
        ShapesDataset("val", max(1, options.images // 2)),
        out=options.out,
        start_steps=options.steps,
        start_rates=[1e-2],
        weight_decays=[1.0],
        steps=options.map_steps,
        rates=[3e-3],
        stock_rates=[1e-3],
        seeds=[0, 1],
    )
    print(result)
    print("labels:", result.names)


if __name__ == "__main__":
    main()
