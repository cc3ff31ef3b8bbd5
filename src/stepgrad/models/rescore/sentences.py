"""What was chosen, and why, in words."""

from __future__ import annotations

from collections.abc import Sequence

from stepgrad.models.rescore.choose import LEAST_IMAGES, WayTried, best_of
from stepgrad.models.rescore.fuse import Fusion
from stepgrad.models.rescore.ways import SAYS, Setting
from stepgrad.number_text import counted


def choice_sentence(trials: Sequence[WayTried], setting: Setting | None, images: int, protocol: str) -> str:
    """Which way was chosen among these."""
    if not images:
        return "Not fitted yet: call fit(detections, targets)."
    these = counted(images, "image")
    if not trials and setting is not None:
        return f"Scores follow {SAYS[setting.way]} ({setting.text}), as asked for, without a comparison."
    if not trials:
        return (
            f"The detector's own scores are kept: {these} with too few detections or objects to learn from; "
            f"{LEAST_IMAGES} images with detections, and objects in some of them, are the least."
        )
    chosen, own = best_of(trials), trials[0]
    where = f"on held-out parts of {these}"
    if chosen.setting is None:
        best = max(trials[1:], key=lambda trial: trial.value)
        return (
            f"The detector's own scores are kept ({protocol} mAP {own.text}): the best other way, {SAYS[best.way]}, has "
            f"{best.text} {where}, which is not clearly ahead."
        )
    others = ", ".join(f"{SAYS[t.way]} {100 * t.value:.1f}" for t in trials[1:] if t.way != chosen.way)
    return (
        f"Scores follow {SAYS[chosen.way]}: {protocol} mAP {chosen.text} against {own.text} of the detector's own {where}; "
        f"{others}."
    )


def fusion_sentence(fusion: Fusion, alone: Sequence[float], choice: str) -> str:
    """How several models were joined, then what was chosen for their scores."""
    weights = ", ".join(f"{weight:.2f}" for weight in fusion.weights)
    *each, joined = (f"{100 * value:.1f}" for value in alone)
    choice = choice.replace("the detector's own", "the fusion's own").replace("The detector's", "The fusion's")
    return (
        f"{len(each)} models (mAP {', '.join(each)}) are joined by weighted boxes fusion (mAP {joined} on the images it was "
        f"tuned on; weights {weights}, IoU {fusion.threshold:g}). {choice}"
    )
