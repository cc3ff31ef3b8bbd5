"""Masks of a frozen YOLO11n-seg: scores that follow the masks instead of the boxes."""
