"""DETR and its kin: models of transformers, and criteria of their own repositories."""
