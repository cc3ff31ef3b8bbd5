"""Piecewise-constant layers that pass pseudogradients: what they compute is exact, what they send back is a step's slope."""

from stepgrad.steps.layers.base import ElementwiseLayer, StepLayer
from stepgrad.steps.layers.elementwise import Round, Sign, Staircase, Threshold, UniformQuantizer
from stepgrad.steps.layers.nms import NMSLayer
from stepgrad.steps.layers.rows import ArgmaxOneHot, Ranks, TopKMask

__all__ = [
    "ArgmaxOneHot",
    "ElementwiseLayer",
    "NMSLayer",
    "Ranks",
    "Round",
    "Sign",
    "Staircase",
    "StepLayer",
    "Threshold",
    "TopKMask",
    "UniformQuantizer",
]
