"""One self-contained HTML page about one or several training runs: `write_report`."""

from headrace.train.report.page import write_report

__all__ = ["write_report"]
