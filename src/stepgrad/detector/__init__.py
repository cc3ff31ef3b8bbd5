"""Fast R-CNN without box regression: windows are scored, NMS is part of the model, and the loss is what you report."""

from stepgrad.extras import need

need("torchvision", "safetensors", purpose="stepgrad.detector")

from stepgrad.detector.compress import compressed
from stepgrad.detector.fast_rcnn import FastRCNN
from stepgrad.detector.resize import Features
from stepgrad.detector.sampling import Sampling
from stepgrad.detector.weights import WeightsReport

__all__ = ["FastRCNN", "Features", "Sampling", "WeightsReport", "compressed"]
