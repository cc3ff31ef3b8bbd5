"""YOLO of ultralytics, where it is installed."""
