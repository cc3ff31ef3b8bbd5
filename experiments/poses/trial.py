"""Scores of a frozen YOLO11n-pose that follow its keypoints: a quality added to its logit, or a new class head.

    python -m experiments.poses.trial bounds --cache DIR --out FILE.jsonl    # the detector's own scores; true overlaps as scores
    python -m experiments.poses.trial choose --cache DIR --out FILE.jsonl    # one seed, held-out images
    python -m experiments.poses.trial final --cache DIR --out FILE.jsonl     # three seeds, val, what was chosen
    python -m experiments.poses.trial intervals --cache DIR --out FILE.jsonl # of the gains, over images of val
    python -m experiments.render poses --runs FILE.jsonl

The windows come from `python -m experiments.poses.windows`. All else is as in `experiments.masks.trial`, with OKS in the place of
mask IoU. Settings are chosen by OKS AP on a fifth of the training images. Learning curves: `choose` and `final` with
`--images 100 400 --arms scoring exact`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.masks.arms import AREA, Study, arms_of, grid
from experiments.masks.trial import Images, Trial, parser_of, run
from experiments.masks.windows import Tensors
from stepgrad.metric.protocol import COCO
from stepgrad.overlaps import Keypoints

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
STAGES = {
    "aligned": [grid(rate=RATES, steps=(1000,), weight_decay=(0.0, 0.3))],
    "scoring": [grid(rate=RATES, steps=(1000,), hit=(0.1, 0.5), alpha=(0.5, 1.0, 2.0, 4.0))],
    "exact": [grid(rate=RATES, radius=(0.5, 3.0))],
}
"""Eight trainings each; one training serves every alpha."""
POSES = Study(
    "pose",
    "OKS",
    1,
    {"OKS AP": (Keypoints().adapt(COCO), "shape"), "OKS AP50": (AREA, "shape"), "box AP": (COCO, "box")},
    arms_of("pose", "OKS", "OKS AP"),
    stages=STAGES,
)


def describe(image: Tensors, form: str) -> Tensor:
    """(N, F) what a network sees of the windows; a new class head sees class features but not the logit."""
    if form != "head":
        return image["statistics"]
    return torch.cat([image["statistics"][:, :-1], image["features"].float(), F.one_hot(image["level"], 3)], dim=1)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser_of(__doc__, POSES, seeds=3).parse_args(arguments)
    run(Trial(Images(options.cache, POSES, "oks", {"set": "LSP"}, describe), options.out), options)


if __name__ == "__main__":
    main()
