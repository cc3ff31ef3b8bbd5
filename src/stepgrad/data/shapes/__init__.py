"""The built-in synthetic set, of a given length or without an end."""

from stepgrad.data.shapes.dataset import ShapesDataset, parse_shapes
from stepgrad.data.shapes.endless import EndlessShapes, FreshImage

__all__ = ["EndlessShapes", "FreshImage", "ShapesDataset", "parse_shapes"]
