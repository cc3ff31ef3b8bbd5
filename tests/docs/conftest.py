from tests.report.conftest import browser

__all__ = ["browser"]
