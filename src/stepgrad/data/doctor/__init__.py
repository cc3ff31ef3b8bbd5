"""`stepgrad doctor`: lists everything that is wrong with a dataset, before an epoch is lost to it."""

from stepgrad.data.doctor.examine import Diagnosis, examine
from stepgrad.data.doctor.summary import ClassSummary, Summary

__all__ = ["ClassSummary", "Diagnosis", "Summary", "examine"]
