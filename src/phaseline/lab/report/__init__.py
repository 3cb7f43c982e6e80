"""The report: one self-contained HTML page from records. It reads records and never measures."""

from phaseline.lab.report.page import report_page
from phaseline.lab.report.reading import read_records

__all__ = ["read_records", "report_page"]
