"""How long tests wait for other processes."""

PATIENCE = 1800.0
"""Seconds. Only what hangs takes so long, however busy the machine: no test is about time."""
