"""Detectors of other people, trained for mAP: one folder per family, which needs the package it is named after."""
