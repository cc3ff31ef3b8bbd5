"""New classes for a trained detector as one call: its last class layer on frozen features, by cross-entropy, then for mAP."""

from stepgrad.models.new_head.features import windows_of
from stepgrad.models.new_head.layer import ClassLayer
from stepgrad.models.new_head.train import NewHead, frozen_detector, train_new_head

__all__ = ["ClassLayer", "NewHead", "frozen_detector", "train_new_head", "windows_of"]
