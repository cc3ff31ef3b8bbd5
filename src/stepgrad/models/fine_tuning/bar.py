"""Progress of a call that takes minutes; see `stepgrad.progress`."""

from stepgrad.progress import Watch, bar, lines, ticker

__all__ = ["Watch", "bar", "lines", "ticker"]
