"""The report of a run: verdict, plots and tables in one HTML file."""

from eigen_core.reporting.report.content import NAMES, Fact, Fold, Report, Setting
from eigen_core.reporting.report.page import report_page

__all__ = ["NAMES", "Fact", "Fold", "Report", "Setting", "report_page"]
