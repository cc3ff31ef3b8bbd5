"""New classes for a trained detector as one call: its last class layer on frozen features, by cross-entropy, then for mAP."""

from stepgrad.models.new_head.result import NewHead
from stepgrad.models.new_head.train import train_new_head

__all__ = ["NewHead", "train_new_head"]
