"""Exported models (ONNX) and weights of ultralytics, run and judged here, and why two of them give other numbers."""
