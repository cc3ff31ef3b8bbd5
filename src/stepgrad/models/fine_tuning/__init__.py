"""The recipe as one call: more of the usual loss, or mAP, for the same budget; what is better on held-out images is kept."""

from stepgrad.models.fine_tuning.finetune import finetune
from stepgrad.models.fine_tuning.result import FineTuned, Trained
from stepgrad.models.fine_tuning.windows import ImageWindows, Labelled

__all__ = ["FineTuned", "ImageWindows", "Labelled", "Trained", "finetune"]
