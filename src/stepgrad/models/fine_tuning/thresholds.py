"""From which score on a detection is worth showing: the score of the best F1 of its class, on held-out images.

mAP trains the order of scores and not their size, so a threshold that suited the head before may show far too much after.
"""

from __future__ import annotations

from collections.abc import Mapping

_SHOWN = 10  # classes in a line of text


def thresholds_text(thresholds: Mapping[str, float], protocol: str) -> str:
    """
    >>> thresholds_text({"cat": 0.3141, "dog": 0.9}, "coco")
    'Scores of best F1 on held-out images, at the first IoU of coco: cat from 0.314, dog from 0.900.'
    >>> thresholds_text({}, "coco")
    'No class has a score of best F1: no object was found on held-out images.'
    """
    if not thresholds:
        return "No class has a score of best F1: no object was found on held-out images."
    shown = [f"{name} from {value:.3f}" for name, value in list(thresholds.items())[:_SHOWN]]
    more = f" ({len(thresholds) - len(shown)} more in `thresholds`)" if len(thresholds) > len(shown) else ""
    return f"Scores of best F1 on held-out images, at the first IoU of {protocol}: {', '.join(shown)}{more}."
