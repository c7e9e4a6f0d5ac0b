"""Reports in the pages of a Prefect server, where the user has one."""

import logging
import os

from eigen_core.reporting.report.summary import report_markdown
from eigen_core.reporting.reports import WrittenReport
from flows.operations.server import configured_api
from flows.prefect_environment import prepare_environment

logger = logging.getLogger(__name__)


def publish(written: WrittenReport) -> str | None:
    """Show the verdict and figures of a report as an artifact; return its key, None without a server.

    A server that refuses it or does not answer is a warning: the report is written.
    """
    prepare_environment()
    if configured_api(os.environ) is None:
        return None
    from flows.server_presence import require_server
    from tasks.artifacts import REFUSALS, publish_report

    report = written.report
    try:
        require_server()
        return publish_report(report.run, report_markdown(report, str(written.file.absolute())), report.sentence)
    except REFUSALS as error:
        logger.warning("Prefect has no page of the report: %s: %s", type(error).__name__, error)
        return None
