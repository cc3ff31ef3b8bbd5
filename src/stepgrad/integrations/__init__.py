"""Detectors and training frameworks of others, trained for mAP: each module needs the package it is named after."""
