"""Poses of a frozen YOLO11n-pose: scores that follow the keypoints instead of the boxes."""
