"""The built-in synthetic set."""

from stepgrad.data.shapes.dataset import ShapesDataset, parse_shapes

__all__ = ["ShapesDataset", "parse_shapes"]
