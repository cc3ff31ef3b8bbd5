"""The report of a run as one HTML page, a page that compares trainings, and boxes drawn on pictures."""

from stepgrad.extras import need

need("jinja2", "matplotlib", "PIL", "yaml", purpose="stepgrad.report")

from stepgrad.report.arms import Arm
from stepgrad.report.comparison import write_comparison
from stepgrad.report.draw import colour_of, draw_detections, draw_verdicts
from stepgrad.report.write import write_page, write_report

__all__ = [
    "Arm",
    "colour_of",
    "draw_detections",
    "draw_verdicts",
    "write_comparison",
    "write_page",
    "write_report",
]
