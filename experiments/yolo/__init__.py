"""A new class head on YOLOv8n's features, on real images. The weights are AGPL-3.0 and never part of this repository."""
